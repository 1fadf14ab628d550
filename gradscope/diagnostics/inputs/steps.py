"""Steps that can be recomputed: their rollouts, the weights before their update, and the Gram matrix of both.

`rank`, `replay` and `report` walk over the same steps in the same way: :func:`measure_steps` loads the weights before
each, and measures the Gram matrix of its rollouts and what else was asked. A step that cannot be computed comes back
with its reason instead of a number.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache, partial
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from gradscope.diagnostics.inputs.step_loss import StepLoss, losses_at
from gradscope.errors import InputError
from gradscope.gradients.engine_options import EngineOptions, require_libraries
from gradscope.metrics.gram.geometry import batch_norm, meets_logged
from gradscope.progress import NoticeCallback, ProgressCallback, no_progress, part
from gradscope.reason import Reason
from gradscope.results.envelope import sha256_of
from gradscope.results.source import Source
from gradscope.rollouts.fetch import fetch_weights
from gradscope.rollouts.groups import Rollout, RolloutGroup
from gradscope.rollouts.run import Run, WeightsRef
from gradscope.say import steps_beside
from gradscope.version import __version__

if TYPE_CHECKING:
    from gradscope.diagnostics.inputs.recomputed import Recomputer, RowQuestion
    from gradscope.gradients.plan.objective import Objective
    from gradscope.gradients.step.step_gram import StepGram, StepNorm


_SUFFIXES = {".safetensors", ".json", ".jinja", ".model", ".txt"}
"""The files of a model folder that a gradient depends on: weights, configurations, the tokenizer's."""
_PACKAGES = ("torch", "transformers", "peft")


class StepCache:
    """The cache of one measured step: its file and the key of its inputs.

    Args:
        folder: The folder of cached steps; made when the first is written.
        choices: Everything else that the numbers depend on.
        notice: Called when a cached step is used, or cannot be.
        also: Other weights that the step depends on.
    """

    def __init__(
        self,
        folder: Path,
        run: Run,
        step: int,
        objective: Objective,
        choices: object,
        notice: NoticeCallback,
        also: Sequence[WeightsRef] = (),
    ) -> None:
        self._path = folder / f"step_{step:05d}.safetensors"
        self._step, self._notice = step, notice
        code = (__version__, *map(version, _PACKAGES))
        inputs = (step, run.groups_at(step), objective, tuple(_digests(run, step, also)))
        self._key = hashlib.sha256(repr((code, inputs, choices)).encode()).hexdigest()

    def read(self) -> StepGram | StepNorm | None:
        """The cached step; None where it must be computed."""
        from gradscope.gradients.step.step_gram import read_step

        gram = read_step(self._path, self._key)
        if gram is not None:
            self._notice(f"step {self._step} was finished before and is used again")
        elif self._path.exists():
            self._notice(f"step {self._step} is computed again: what was kept is of other inputs or options")
        return gram

    def write(self, gram: StepGram | StepNorm) -> None:
        """Cache the step for the next call."""
        from gradscope.gradients.step.step_gram import write_step

        write_step(self._path, gram, self._key)


def _digests(run: Run, step: int, also: Sequence[WeightsRef]) -> Iterator[tuple[str, str]]:
    """Each file and its digest of the model folders that a step's gradients depend on; a hub id by name alone."""
    sources = filter(None, (run.weights_before(step), run.weights_before(1), *also))
    folders = [folder for weights in sources for folder in (weights.path, weights.base)]
    for folder in dict.fromkeys(str(folder) for folder in (*folders, run.tokenizer) if folder):
        fetch_weights(Path(folder))
        yield folder, ""
        for file in sorted(Path(folder).glob("*")) if Path(folder).is_dir() else ():
            if file.suffix in _SUFFIXES and file.is_file():
                status = file.stat()
                yield str(file), _digest(file, status.st_size, status.st_mtime_ns)


@lru_cache
def _digest(file: Path, size: int, changed: int) -> str:
    """A file's digest; the first weights are asked for at every step."""
    return sha256_of(file)


_NO_IDS: Mapping[str, tuple[str, str]] = {
    "verl": (
        "verl's dump holds text that lost the chat template's markers, and no ids",
        "Log prompts, responses, response_mask, rollout_log_probs and advantages with the dump; see the docs on logs.",
    ),
    "prime-rl": (
        "some traces have no ids that fit together",
        "Replay another step, or (before September 2026) the export of tokens, trainer.enable_token_export, which has "
        "each sequence that was trained on.",
    ),
    "nemo-rl": (
        "the training data holds text and no ids",
        "Use NeMo-RL 0.4 or newer, whose train_data_step*.jsonl has token_ids, in the next run.",
    ),
}


def _missing_ids(run: Run, rollouts: Sequence[Rollout]) -> Reason | None:
    if not any(rollout.completion or rollout.completion_ids is not None for rollout in rollouts):
        return Reason("ids_missing", "the log has neither ids nor texts of the completions")
    trainer = str(run.settings.get("trainer"))
    if trainer in _NO_IDS and any(None in (rollout.prompt_ids, rollout.completion_ids) for rollout in rollouts):
        text, hint = _NO_IDS[trainer]
        return Reason("ids_missing", text, hint=hint)
    return None


class MeasuredStep(Struct, frozen=True, kw_only=True):
    """One step and its Gram matrix, or the reason why there is none."""

    step: int
    groups: tuple[RolloutGroup, ...]  # the rollouts of the step
    weights: WeightsRef | None  # the weights before the update, where they are on disk
    gram: StepGram | None  # Gram matrix of the step's score vectors
    reason: Reason | None  # why there is no Gram matrix
    loss: StepLoss | None = None  # the loss that its update minimized; None for a step that is not in the log
    answer: Any = None  # what the row question returned; None without a question
    norm: StepNorm | None = None
    """The norm of its gradient, where nothing else was asked for and it matches the logged one; else see ``gram``."""

    @property
    def recomputed(self) -> StepNorm | None:
        """What is known of the norm of its gradient; None where ``reason`` says why nothing is."""
        if self.gram is None:
            return self.norm
        from gradscope.diagnostics.inputs.recomputed import rounding_floor
        from gradscope.gradients.step.step_gram import StepNorm

        gram, matrix = self.gram, self.gram.logged_gram
        return StepNorm(
            norm=None if matrix is None else batch_norm(matrix),
            floor=rounding_floor(gram.score_gram),
            parts=gram.parts,
            logprobs=gram.logprobs,
            num_inferred_ids=gram.num_inferred_ids,
            described=gram.describe(),
            trained=gram.trained,
            other_texts=gram.other_texts,
            untested=gram.untested,
        )


def select_steps(run: Run, steps: Sequence[int] | None) -> tuple[int, ...]:
    """The steps that were asked for, ascending, each once; None: every step of the log."""
    if steps is None:
        return run.steps
    absent = sorted(set(steps) - {*run.updates, *run.notes})
    if absent:
        raise InputError(
            f"{run.source.path} has no rollouts of step {', '.join(map(str, absent))}.",
            hint=steps_beside(run.updates, absent[0]) if run.steps else None,
        )
    return tuple(sorted(set(steps)))


def missing_weights(run: Run, step: int) -> Reason:
    """Why the weights of a step cannot be used, and what would help."""
    if step < 1:
        return Reason("step_unknown", f"which weights made step {step} is not known: steps are counted from 1")
    if step - 1 in run.unmerged_weights:
        return run.unmerged_weights[step - 1]
    if damaged := run.damaged_weights.get(step - 1):
        return Reason("weights_unreadable", damaged)
    saved = ", ".join(str(weights.num_updates) for weights in run.weights if weights.num_updates >= 0)
    have = f"on disk are the weights after {saved} updates" if saved else "no weights are on disk"
    updates = "1 update" if step == 2 else f"{step - 1} updates"
    text = f"the weights after {updates}, which made step {step}, are not on disk ({have})"
    cause = "first_weights_missing" if step == 1 else "weights_missing"
    return Reason(cause, f"{text}; pass them with --initial" if step == 1 else text)


def with_damage(run: Run, reasons: Mapping[int, Reason], steps: Iterable[int]) -> Source:
    """The source of a run, with steps whose weights are damaged listed among what could not be read.

    Commands show the damage, also in their exit code. ``reasons`` is step -> why it was left out; ``steps`` count if
    their weights were found damaged before any was loaded.
    """
    damaged = {step: reason.text for step, reason in reasons.items() if reason.cause == "weights_unreadable"}
    damaged |= {step: run.damaged_weights[step - 1] for step in steps if step - 1 in run.damaged_weights}
    sentences = (f"Step {step} was left out: {text.rstrip('.')}." for step, text in sorted(damaged.items()))
    quarantined = replace(run.source.quarantined, lost=(*run.source.quarantined.lost, *sentences))
    return replace(run.source, quarantined=quarantined)


def computable_steps(run: Run) -> tuple[int, ...]:
    """The steps of the log whose weights are on disk."""
    return tuple(step for step in run.updates if run.weights_before(step))


def usable_steps(run: Run, steps: Sequence[int]) -> tuple[int, ...]:
    """Those of some steps whose weights are on disk, and whose rollouts are those of one update."""
    return tuple(step for step in steps if run.weights_before(step) and step not in run.notes)


def measure_steps(
    run: Run,
    steps: Sequence[int],
    options: EngineOptions,
    progress: ProgressCallback,
    question: RowQuestion | None = None,
    *,
    bound_rounding: bool = False,
    norm_only: bool = False,
) -> Iterator[MeasuredStep]:
    """The Gram matrix of each step, or the reason why there is none, as soon as it is computed, in the given order.

    Args:
        question: What else to measure at each step while its weights are loaded; None: nothing.
        bound_rounding: Whether to state how precisely a norm in reduced precision can be reproduced.
        norm_only: Whether a norm that matches the logged one is enough of a step.

    Raises:
        MissingDependencyError: PyTorch, transformers or peft are not installed.
    """
    require_libraries()
    measure = partial(
        _measure_steps, options=options, question=question, bound_rounding=bound_rounding, norm_only=norm_only
    )
    with _precision_context(options):
        for measured in measure(run, steps, progress=progress):
            logged = "grad_norm" in run.metrics.get(measured.step, {})
            if logged and counts_from_0(run) and (measured.recomputed is None or _misses_logged(run, measured)):
                shifted = tuple(replace(weights, num_updates=weights.num_updates - 1) for weights in run.weights)
                other = next(measure(replace(run, weights=shifted), [measured.step], progress=no_progress))
                measured = other if other.recomputed and not _misses_logged(run, other) else measured
            yield measured


def _measure_steps(
    run: Run,
    steps: Sequence[int],
    options: EngineOptions,
    progress: ProgressCallback,
    question: RowQuestion | None,
    *,
    bound_rounding: bool,
    norm_only: bool,
) -> Iterator[MeasuredStep]:
    """The same with the steps and checkpoints as they are numbered."""
    from gradscope.gradients.plan.trainers import objective_of

    objective = objective_of(run.settings)
    recomputer: Recomputer | None = None
    for done, step in enumerate(steps):
        label = f"steps, now step {step}"
        progress(done, len(steps), label)
        groups, weights, possible = run.groups_at(step), run.weights_before(step), losses_at(run, objective, step)
        loss = next(possible)
        reason = _reason_against(run, step, loss)
        measured = MeasuredStep(step=step, groups=groups, weights=weights, gram=None, reason=reason, loss=loss)
        if reason is None and weights is not None:
            from gradscope.diagnostics.inputs.recomputed import Recomputer  # seconds that a log alone need not wait

            recomputer = recomputer or Recomputer(run, options, bound_rounding=bound_rounding, norm_only=norm_only)
            recomputer.progress = part(progress, done, len(steps), label)
            measure = partial(_measure, run, measured, recomputer, options, question)
            measured = measure(loss, weights)
            if _misses_logged(run, measured) or (measured.reason is not None and measured.reason.cause == "dropout"):
                losses = [loss, *(other for other in possible if _reason_against(run, step, other) is None)]
                alternatives = chain(
                    (measure(other, weights) for other in losses[1:]),
                    (measure(loss, weights, pads_left=True) for _ in range(run.source.format == "generic")),
                    (measure(*resumed) for other in losses for resumed in _as_resumed(run, other, weights)),
                )
                met = (other for other in alternatives if other.recomputed and not _misses_logged(run, other))
                measured = next(met, measured)
        yield measured
    progress(len(steps), len(steps), "steps")


def counts_from_0(run: Run) -> bool:
    """Whether a script counts its steps from 0: its checkpoints may be those before the step of their number."""
    return run.source.format == "generic" and 0 in run.steps


def _precision_context(options: EngineOptions) -> AbstractContextManager[None]:
    if options.precision != "high":
        return nullcontext()
    from gradscope.gradients.model.calls import without_tf32

    return without_tf32()


def _measure(
    run: Run,
    measured: MeasuredStep,
    recomputer: Recomputer,
    options: EngineOptions,
    question: RowQuestion | None,
    loss: StepLoss,
    weights: WeightsRef,
    *,
    pads_left: bool = False,
) -> MeasuredStep:
    """One step by a loss, computed or cached by an earlier call; refused where its weights or rollouts are unfit."""
    from gradscope.gradients.model.budget import names_out_of_memory
    from gradscope.gradients.processes import broadcast_from_main, connected_index, shared_errors
    from gradscope.gradients.step.step_gram import StepNorm

    step = measured.step
    # a question needs the weights again; of several processes the main one looks and writes
    is_as_saved = not any(saved.kept_from for saved in (weights, *loss.weights))
    uses_cache = question is None and connected_index() == 0 and not pads_left and is_as_saved
    cache = _step_cache(run, step, loss, options, recomputer) if uses_cache else None
    result = broadcast_from_main(lambda: cache.read() if cache else None)
    answer = None
    try:
        if result is None:
            with shared_errors(), names_out_of_memory(f"step {step}"):
                result, answer = recomputer.measure(step, weights, loss, question, pads_left=pads_left)
            if cache:
                cache.write(result)
    except InputError as error:  # of this step; the others have weights and rollouts of their own
        return replace(measured, reason=Reason(error.cause or "unusable", error.message.rstrip("."), error.hint or ""))
    if isinstance(result, StepNorm):
        return replace(measured, loss=loss, weights=weights, norm=result)
    return replace(measured, loss=loss, weights=weights, gram=result, answer=answer)


def _as_resumed(run: Run, loss: StepLoss, weights: WeightsRef) -> Iterator[tuple[StepLoss, WeightsRef]]:
    """A step whose weights, or those that sampled its batch, are as Transformers reads them where TRL resumes."""
    first = run.weights_before(1)
    if run.trained_by_trl and weights.kind == "full" and weights.num_updates and first and first.kind == "full":
        yield loss, replace(weights, kept_from=first.path)
        if loss.sampled_with is not None:
            yield replace(loss, sampled_with=replace(loss.sampled_with, kept_from=first.path)), weights


def _misses_logged(run: Run, measured: MeasuredStep) -> bool:
    logged = run.metrics.get(measured.step, {}).get("grad_norm")
    if logged is None or (norm := measured.recomputed) is None or norm.norm is None:
        return False
    meets_reduced = norm.trained is not None and norm.trained.meets(logged)
    floor = max(norm.floor, run.half_unit(measured.step, "grad_norm"))
    return not meets_reduced and not meets_logged(norm.norm, logged, floor)


def _reason_against(run: Run, step: int, loss: StepLoss) -> Reason | None:
    """Why the gradient of a step cannot be formed, the most useful reason first."""
    if step in run.notes:
        return run.notes[step]
    rollouts = [rollout for group in run.groups_at(step) for rollout in group.rollouts]
    if (reason := _missing_ids(run, rollouts)) is not None:
        return reason
    from gradscope.gradients.plan.objective import several_sequences

    if (reason := several_sequences(rollouts)) is not None:
        return reason
    objective = loss.objective
    if objective.cannot is not None:
        return objective.cannot
    weights = run.weights_before(step)
    if weights is None:
        return missing_weights(run, step)
    if objective.has_reference and weights.kind == "full" and run.weights_before(1) is None:
        return Reason("reference_missing", "the KL term needs the weights before the first update")
    if loss.reason is not None:
        return loss.reason
    return objective.reason_against(rollouts, has_old=loss.sampled_with is not None)


def _step_cache(
    run: Run, step: int, loss: StepLoss, options: EngineOptions, recomputer: Recomputer
) -> StepCache | None:
    if options.unfinished is None:
        return None
    arithmetic = (options.device, options.dtype, options.precision, recomputer.bound_rounding, recomputer.norm_only)
    choices = (options.engine, options.verify, options.batch_tokens, *arithmetic)
    return StepCache(options.unfinished, run, step, loss.objective, choices, options.notice, loss.weights)


def describe_engine(described: Mapping[str, Any], before: Mapping[str, Any]) -> dict[str, Any]:
    """How a run's steps were computed: the latest step's facts, with the notes of all."""
    notes = chain.from_iterable(engine["notes"] for engine in (before, described) if "notes" in engine)
    return {**described, "notes": list(dict.fromkeys(notes))}
