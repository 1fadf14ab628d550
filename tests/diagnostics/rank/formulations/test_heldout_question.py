"""The answer of a step about held-out prompts, or why it has none."""

from __future__ import annotations

import pytest

from gradscope.diagnostics.rank.formulations.heldout_file import HeldoutAnswers
from gradscope.diagnostics.rank.formulations.heldout_question import HeldoutQuestion
from gradscope.gradients.engine_options import EngineOptions
from gradscope.gradients.plan.prepared_step import prepare_step
from gradscope.gradients.step.heldout import HeldoutGram
from gradscope.gradients.step.measure import measure_step
from gradscope.reason import Reason
from tests.gradients.models import DAPO, tiny_groups, tiny_policy
from tests.gradients.step.test_heldout import SHARES, heldout_groups


def question(engine: str = "auto", *, groups: object = None) -> HeldoutQuestion:
    answers = HeldoutAnswers(prompts=tuple(groups or heldout_groups()), shares=SHARES, notes=())
    return HeldoutQuestion(answers=answers, engine=EngineOptions(engine=engine))


@pytest.mark.parametrize("engine", ["auto", "stream"])
def test_it_is_asked_of_the_engine_that_was_chosen(engine: str) -> None:
    prepared = prepare_step(tiny_policy("llama_untied_biases"), tiny_groups(), DAPO)
    (found,) = question(engine).measure(prepared, measure_step(prepared))
    assert isinstance(found, HeldoutGram)
    assert found.cross.shape == (6, 3)


def test_a_step_that_has_none_keeps_its_reason() -> None:
    prepared = prepare_step(tiny_policy("llama_untied_biases"), tiny_groups(), DAPO)
    own = tiny_groups(3)  # the first two are the step's
    asked = HeldoutAnswers(prompts=tuple(own[:2]), shares=((0.5, 0.25, 0.25),) * 2, notes=())
    (found,) = HeldoutQuestion(answers=asked, engine=EngineOptions()).measure(prepared, measure_step(prepared))
    assert isinstance(found, Reason)
    assert found.text == "Every held-out prompt is trained on in this very step"
    assert found.advice == "Give samples of prompts that the step was not trained on."
    (refused,) = question("nothing").measure(prepared, measure_step(prepared))
    assert refused.text == "There is no engine 'nothing'"
