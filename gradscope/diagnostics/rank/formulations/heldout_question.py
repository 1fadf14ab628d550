"""What is asked of a step beside its rows where held-out answers were given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gradscope.diagnostics.rank.formulations.heldout_file import HeldoutAnswers
from gradscope.errors import InputError, UsageError
from gradscope.gradients.engine_options import EngineOptions
from gradscope.progress import ProgressCallback, no_progress
from gradscope.reason import Reason

if TYPE_CHECKING:
    from gradscope.gradients.plan.prepared_step import PreparedStep
    from gradscope.gradients.step.heldout import HeldoutGram
    from gradscope.gradients.step.step_gram import StepGram


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldoutQuestion:
    """The inner products of a step's rollouts with the correct answers of held-out prompts."""

    answers: HeldoutAnswers
    """The answers."""
    engine: EngineOptions
    """How gradients are computed."""

    def measure(
        self, prepared: PreparedStep, gram: StepGram, progress: ProgressCallback = no_progress
    ) -> tuple[HeldoutGram | Reason]:
        """The products at one step, or why there are none: the step itself stands either way."""
        from gradscope.gradients.processes import shared_errors
        from gradscope.gradients.step.heldout import measure_heldout_gram

        try:
            with shared_errors():
                found = measure_heldout_gram(
                    prepared,
                    gram,
                    self.answers.prompts,
                    self.answers.shares,
                    engine=self.engine.engine,
                    verify=self.engine.verify,
                    progress=progress,
                )
        except (InputError, UsageError) as error:
            return (Reason(error.cause or "unusable", error.message.rstrip("."), error.hint or ""),)
        return (found,)
