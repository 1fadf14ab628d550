"""One step recomputed as it was trained, as far as the folder and the logged norm determine that.

The Gram matrix is first measured as the folder states. If its norm differs from the logged one, other ways in which the
step may have been trained are tried, then the arithmetic of a trainer that computed in bfloat16 or float16 or added a
router's term. The assumption that fitted one step is the first that is tried at the next.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from gradscope.diagnostics.inputs.step_loss import StepLoss
from gradscope.errors import InputError, VerificationError
from gradscope.gradients.engine_options import EngineOptions
from gradscope.gradients.model.batches import TrainerPadding
from gradscope.gradients.model.budget import TokenBudget, first_batch_tokens
from gradscope.gradients.model.checkpoint import FloatName, stored_dtype, tensor_dtypes
from gradscope.gradients.model.policy import MeasuredPolicy, TrainedDtypes, load_measured_policy
from gradscope.gradients.plan.objective import Objective
from gradscope.gradients.plan.prepared_step import (
    PreparedStep,
    prepare_step,
    pretrained_length,
    see_batch,
    sequences_of,
    step_logprobs,
)
from gradscope.gradients.plan.untested import untested_arguments
from gradscope.gradients.processes import num_connected, shared_errors
from gradscope.gradients.step.measure import measure_step, notes_on
from gradscope.gradients.step.step_gram import StepGram, StepNorm, measure_norm
from gradscope.gradients.trained.norms import (
    Assumption,
    TrainedNorms,
    TrainerArithmetic,
    is_own_output,
    is_random,
    norm_under,
    other_assumptions,
    takes_random_numbers,
    trained_norms,
    trl_output,
    unchanged,
)
from gradscope.metrics.gram.geometry import EXACTLY, GRAD_NORM_TOLERANCE, NEAR, ROUNDING_FLOOR, batch_norm, meets_logged
from gradscope.progress import ProgressCallback, no_progress
from gradscope.reason import Reason
from gradscope.rollouts.groups import Rollout
from gradscope.rollouts.run import Run, WeightsRef

if TYPE_CHECKING:
    from gradscope.gradients.model.batches import TokenSequence


RowQuestion = Callable[..., Any]
"""What else is measured at a step while its weights are loaded, besides the Gram matrix of the rollouts: from the
prepared step, that matrix and a callback ``progress`` to the answer, ``MeasuredStep.answer``."""


def rounding_floor(score_gram: np.ndarray) -> float:
    """Up to where a norm of the step whose score vectors have this Gram matrix, [R, R], is rounding."""
    return ROUNDING_FLOOR * math.sqrt(max(float(np.trace(score_gram)), 0.0))


_NUM_TOKENS, _MEAN_LENGTH, _TOOLS = "num_tokens", "completions/mean_length", "tools/"


def _other_tokens(run: Run, step: int, sequences: Sequence[TokenSequence]) -> Reason | None:
    """Why some tokens are not those of the step, by the trainer's own counts."""
    logged = run.metrics.get(step, {})
    if run.source.format != "trl" or step in run.windows or step in run.repeats:
        return None
    completions = sum(sum(sequence.mask) for sequence in sequences)
    prompts = sum(len(sequence.prompt_ids) for sequence in sequences)
    if _MEAN_LENGTH in logged and (counted := round(logged[_MEAN_LENGTH] * len(sequences))) != completions:
        mismatch = f"the trainer counted {counted} sampled tokens, and the log has {completions}"
        if any(sequence.inferred for sequence in sequences):
            return Reason("ids_inferred", f"{mismatch}: completion ids were inferred from their text")
        if counted > completions:  # no mask adds tokens
            text = f"{mismatch}: these are not all tokens of the step, or not its own"
            return Reason("ids_misfit", text, hint="Log exact ids, the end-of-sequence token too, and in the same run.")
        return Reason(
            "mask_unknown", f"{mismatch}: a tool or an environment wrote the others, or these are another step's"
        )
    if any(name.startswith(_TOOLS) for name in logged) and not _logged_prompts(run, step):
        return Reason("prompt_unknown", "tools were offered, and their schemas, part of each prompt, are not on disk")
    before = 0.0 if step == 1 else run.metrics.get(step - 1, {}).get(_NUM_TOKENS)
    if _NUM_TOKENS not in logged or before is None or _logged_prompts(run, step):
        return None
    counted = round(logged[_NUM_TOKENS] - before)
    if counted == prompts + completions:
        return None
    return Reason(
        "prompt_unknown",
        f"the trainer counted {counted - completions} tokens of prompts, and their text gives {prompts}: another chat "
        "template, tools, a system prompt, or what a rollout function added were part of them",
    )


def other_texts(rollouts: Sequence[Rollout], tokenizer: Any) -> tuple[int, ...]:
    """Rows whose text differs from their logged ids, by a tokenizer that reproduces most of the other rows."""
    comparable = [
        rollout for rollout in rollouts if rollout.completion_ids and rollout.completion and all(rollout.mask or ())
    ]
    if tokenizer is None or not comparable:
        return ()
    other = tuple(rollout.row for rollout in comparable if not _reads_back(rollout, tokenizer))
    return other if 2 * len(other) <= len(comparable) else ()


def _reads_back(rollout: Rollout, tokenizer: Any) -> bool:
    texts = (tokenizer.decode(rollout.completion_ids, skip_special_tokens=skip) for skip in (True, False))
    return any(text.split() == rollout.completion.split() for text in texts)


def _logged_prompts(run: Run, step: int) -> bool:
    return all(rollout.prompt_ids is not None for group in run.groups_at(step) for rollout in group.rollouts)


class Longest(Struct, frozen=True, kw_only=True):
    """The state that a model carries over from the batches before a step."""

    length: int = 0  # of the longest batch since frequencies went back; 0 where they are those of the step's own
    unlogged: int = 0  # an earlier step whose length is not known; 0: all are


def _remember_longest(run: Run, step: int, policy: MeasuredPolicy, objective: Objective) -> None:
    """Give a policy and its reference the frequencies that they had when they came to a step."""
    if pretrained_length(policy.model) is None or not run.trained_by_trl:
        return
    for model, generates in ((policy.model, True), (policy.reference, False)):
        seen = _longest_before(run, step, policy, objective, generates=generates) if model is not None else Longest()
        if seen.length:
            see_batch(model, seen.length)


def _longest_before(
    run: Run, step: int, policy: MeasuredPolicy, objective: Objective, *, generates: bool = True
) -> Longest:
    start, longest = pretrained_length(policy.model), 0
    for number in range(step, 0, -1) if start is not None else ():
        if not run.groups_at(number):
            return Longest(length=longest, unlogged=number)
        prompts, completions = _widths(run, number, policy, objective)
        if number < step:
            longest = max(longest, prompts + completions)
        if (prompts if generates else prompts + completions) < (start or 0):
            break  # frequencies went back
    return Longest(length=longest)


def _widths(run: Run, step: int, policy: MeasuredPolicy, objective: Objective) -> tuple[int, int]:
    """The padded lengths of a step's prompts and completions, in its first process."""
    sequences = sequences_of(policy, run.groups_at(step), objective)
    frames: Sequence[Any] = [sequence.frame for sequence in sequences if sequence.frame is not None]
    return (frames[0].prompt_width, frames[0].completion_width) if frames else (0, 0)


_SWITCH_OFF = "Set attention dropout and jitter in the model's configuration to 0: disable_dropout leaves them on."
_ROUNDED = (
    "The trainer computed in less than float32, this is float32: the norms differ by its rounding, and `gradscope "
    "replay` says how closely the logged one can be told."
)


_EVALUATED = "The model was in evaluation mode, without its dropout, as the norm shows."
_SAFETY_FACTOR = 10.0  # a difference of weights this many times below the norm's tolerance leaves the norm as it is
_HALF_ROUNDING = 2.0**-9  # of bfloat16, relative: by as much entropies may differ where a batch is another one


class Recomputer:
    """Measures the steps of a run, one after the other.

    Args:
        options: Device, engine and precision.
        bound_rounding: Whether to state how precisely a norm in reduced precision can be reproduced.
        norms_alone: Whether a norm that matches the logged one is enough of a step: it takes one pass.
    """

    def __init__(self, run: Run, options: EngineOptions, *, bound_rounding: bool, norm_only: bool = False) -> None:
        self._run, self._options, self.bound_rounding, self.norm_only = run, options, bound_rounding, norm_only
        self.progress: ProgressCallback = no_progress
        self._fitted: Assumption | None = None
        self._by_trls_output = self._pads_left = False
        self._exact: set[int] = set()  # steps whose norm was met as less than float32 meets it by chance alone
        self._reduced: set[int] = set()  # steps whose norm was met by less

    def measure(
        self, step: int, weights: WeightsRef, loss: StepLoss, question: RowQuestion | None, *, pads_left: bool = False
    ) -> tuple[StepGram | StepNorm, Any]:
        """The step's Gram matrix, or its norm alone, and the answer to the question, from weights loaded once.

        Raises:
            InputError: The step cannot be recomputed, or its prompts are padded and the model does not see that.
        """
        self._run, self._pads_left = _with_head(self._run), pads_left
        with ExitStack() as altered:
            output = altered if self._by_trls_output else None
            prepared = prepared_of(self._run, step, weights, loss, self._options, altered=output, pads_left=pads_left)
            if pads_left and prepared.plan.sequences[0].frame is None:
                raise InputError("Where the padding is makes no difference to this model.")
            measured = self._measure(step, weights, loss, question, prepared)
        if measured is None:
            self._by_trls_output = True
            measured = self.measure(step, weights, loss, question, pads_left=pads_left)
        return measured

    def _measure(
        self, step: int, weights: WeightsRef, loss: StepLoss, question: RowQuestion | None, base: PreparedStep
    ) -> tuple[StepGram | StepNorm, Any] | None:
        """The same from a prepared step; None where TRL's output layer has to be tried."""
        is_drawn = is_random(base.policy, base.shortest, without_dropout=self._switched_off)
        randomness = self._randomness_error() if is_drawn else None
        if randomness is not None and (self._run.trained_by_trl or self._logged(step) is None):
            raise randomness
        evaluated = [] if randomness is None else [_EVALUATED]
        stated = Assumption.from_policy(base.policy)
        start = self._fitted or stated
        norm = self._step_norm(under(base, start))
        if norm is not None:
            notes = [*notes_on(base.plan), *base.budget.notes, *start.describe(stated)]
            notes += [*self._undecided_assumptions(base, stated), *self._alterations(), *evaluated]
            described = {**norm.described, "notes": notes}
            texts = other_texts(base.rollouts, base.policy.tokenizer)
            return replace(norm, described=described, other_texts=texts, untested=self._untested(base, norm)), None
        prepared, gram = self._by_rows(under(base, start))
        trained = None
        logged = self._unmet(step, gram)
        if randomness is not None and logged is not None:
            raise randomness
        if logged is not None or self._logged(step) is None:
            self._require_trainers_tokens(base)
        limits = []
        if logged is not None and _are_rounded(self._run, weights):
            text = (
                f"{weights.path.name} is stored in {stored_dtype(weights)}, and by the digits of the norms or the "
                "arguments the trainer had float32: what was rounded when the weights were saved limits the comparison."
            )
            if self.bound_rounding:
                hint = "Replay with the checkpoints as the trainer saved them."
                raise InputError(text, hint=hint, cause="precision")
            logged, limits = None, [text]
        if logged is not None:
            fitted, trained = self._try_alternatives(base, weights, loss, logged, start)
            prepared = under(base, fitted)
            gram = self._gram(prepared) if fitted != start else gram
            start = self._fitted = fitted
            meets_reduced = trained is not None and trained.meets(logged)
            if self._is_reduced and trained is not None and not meets_reduced:
                self._require_no_draws(prepared.policy, base.shortest)
            elif not (self._is_reduced or meets_reduced) and self._unmet(step, gram) is not None:
                prepared = prepared.framed()
                gram = self._gram(prepared)
                unknown = self._unmet(step, gram) is not None and not self._by_trls_output
                seen = _longest_before(self._run, step, base.policy, loss.objective)
                if unknown and seen.unlogged:
                    raise InputError(
                        f"The rotary frequencies are those of the longest batch so far (dynamic scaling), and step "
                        f"{seen.unlogged} is not in the log.",
                        cause="lengths_unknown",
                    )
                if unknown:
                    self._require_no_draws(prepared.policy, base.shortest)
                    if not is_own_output(base.policy.model, base.shortest):  # TRL's is to be tried
                        return None
                rounding = self._rounding_norms(prepared, gram, logged)
                if rounding and (self._names_precision or rounding.num_ties or rounding.meets(logged)):
                    trained = rounding
        rounded = self._is_reduced and trained is None and self._unmet(step, gram) is not None
        notes = [*gram.notes, *start.describe(stated), *self._undecided_assumptions(base, stated)]
        notes += [*self._alterations(), *evaluated, *[_ROUNDED] * rounded, *limits]
        gram = replace(gram, notes=tuple(notes), trained=trained, assumption=start)
        if self.bound_rounding:
            texts = other_texts(base.rollouts, base.policy.tokenizer)
            gram = replace(gram, other_texts=texts, untested=self._untested(prepared, gram))
        return gram, question(prepared, gram, progress=self.progress) if question else None

    def _untested(self, prepared: PreparedStep, measured: StepGram | StepNorm) -> tuple[str, ...]:
        tolerance = GRAD_NORM_TOLERANCE if measured.trained is None else measured.trained.told_within
        if any(advantages is None for advantages in prepared.plan.advantages):
            return ()
        tolerance /= _SAFETY_FACTOR
        return tuple(untested_arguments(prepared.plan, self._run.settings, measured.logprobs, tolerance))

    def _step_norm(self, prepared: PreparedStep) -> StepNorm | None:
        has_advantages = all(advantages is not None for advantages in prepared.plan.advantages)
        if not (self.norm_only and has_advantages and num_connected() == 1) or self._is_reduced:
            return None
        logged = self._logged(prepared.step)
        if logged is None:
            self._require_trainers_tokens(prepared)
        measured = measure_norm(prepared, self.progress)
        for norm in (measured.norm, measured.as_clipped):
            is_finite = norm is not None and math.isfinite(norm)
            if norm is not None and is_finite and (logged is None or self._meets(prepared.step, norm, logged)):
                return replace(measured, norm=norm)
        return None

    def _randomness_error(self) -> InputError:
        origin = " beside the dropout modules, which were off" if self._switched_off else ", such as dropout"
        return InputError(
            f"The model draws random numbers in training{origin}, and what it drew is not logged.",
            hint=_SWITCH_OFF if self._switched_off else None,
            cause="dropout",
        )

    def _require_no_draws(self, policy: MeasuredPolicy, sequence: TokenSequence) -> None:
        if takes_random_numbers(policy, sequence, without_dropout=self._switched_off):
            raise self._randomness_error()

    def _alterations(self) -> Iterator[str]:
        if self._pads_left:
            yield "Prompts were padded on the left, and the model counted the padding, as the norm shows."
        if self._by_trls_output:
            yield (
                "The output layer is TRL's, as in training: it leaves out what this model does between the last hidden "
                "state and the output embedding, or after it."
            )

    def _require_trainers_tokens(self, prepared: PreparedStep) -> None:
        reason = _other_tokens(self._run, prepared.step, prepared.plan.sequences)
        if reason is not None:
            raise InputError(f"{reason}.", hint=reason.advice, cause=reason.cause)

    def _by_rows(self, prepared: PreparedStep) -> tuple[PreparedStep, StepGram]:
        """The Gram matrix, in the trainer's padding if a row depends on it."""
        try:
            with shared_errors():
                return prepared, self._gram(prepared)
        except (InputError, VerificationError):
            framed = prepared.framed()
            if framed.plan.sequences == prepared.plan.sequences:
                raise
            return framed, self._gram(framed)

    def _gram(self, prepared: PreparedStep) -> StepGram:
        return measure_step(prepared, engine=self._options.engine, verify=self._options.verify, progress=self.progress)

    def _unmet(self, step: int, gram: StepGram) -> float | None:
        logged, matrix = self._logged(step), gram.logged_gram
        if logged is None or not math.isfinite(logged) or matrix is None:
            return None
        return None if self._meets(step, batch_norm(matrix), logged, rounding_floor(gram.score_gram)) else logged

    def _meets(self, step: int, norm: float, logged: float, floor: float = 0.0) -> bool:
        """:func:`meets_logged`, or to the digits that were logged."""
        if abs(norm - logged) <= EXACTLY * abs(logged) and logged > 0:
            self._exact.add(step)
        return meets_logged(norm, logged, max(floor, self._run.half_unit(step, "grad_norm")))

    def _rounding_norms(self, prepared: PreparedStep, gram: StepGram, logged: float) -> TrainedNorms | None:
        """How precisely a norm in float32 can be reproduced, where its error may be rounding."""
        if not self.bound_rounding or gram.logged_gram is None or self._unmet(prepared.step, gram) is None:
            return None
        error = abs(batch_norm(gram.logged_gram) - logged)
        if not prepared.plan.num_ties and error > NEAR * GRAD_NORM_TOLERANCE * abs(logged):
            return None
        arithmetic = TrainerArithmetic.from_settings(self._run.settings, prepared.policy.model)
        return trained_norms(prepared, replace(arithmetic, autocast=None))

    def _try_alternatives(
        self, prepared: PreparedStep, weights: WeightsRef, loss: StepLoss, logged: float, start: Assumption
    ) -> tuple[Assumption, TrainedNorms | None]:
        """The assumption that fits, else the first, and the norms in the trainer's arithmetic where needed."""
        arithmetic = TrainerArithmetic.from_settings(self._run.settings, prepared.policy.model)
        arithmetic = replace(arithmetic, autocast=None) if self._met_exactly else arithmetic
        alternatives = other_assumptions(prepared, self._frozen, start, routes=bool(arithmetic.router_coefficient))
        if not arithmetic.router_coefficient:
            exact_norms = dict(norm_under(prepared, alternatives))
            for assumption in alternatives:
                if self._meets(prepared.step, exact_norms[assumption], logged):
                    return assumption, None
        if not (arithmetic.router_coefficient or self.bound_rounding or alternatives):
            return start, None
        # the trainer's own arithmetic, in which only an interval can be met
        first: TrainedNorms | None = None
        for computed, sampler, candidate in self._computations(prepared, weights, loss, arithmetic):
            for assumption in [start, *alternatives]:
                norms = trained_norms(under(computed, assumption), candidate, sampler)
                if norms.meets(logged):
                    self._reduced.update([prepared.step] * (norms.dtype != "float32"))
                    return assumption, norms
                if first is None and computed.plan.objective.top_entropy_quantile < 1.0 and norms.dtype != "float32":
                    step = under(computed, assumption)
                    first = trained_norms(step, candidate, sampler, entropy_rounding=_HALF_ROUNDING)
                first = first or norms
        return start, first

    def _computations(
        self, prepared: PreparedStep, weights: WeightsRef, loss: StepLoss, arithmetic: TrainerArithmetic
    ) -> Iterator[tuple[PreparedStep, MeasuredPolicy | None, TrainerArithmetic]]:
        """The step, what sampled it and the output layer as the trainer may have had them; none in float32."""
        heads = [replace(arithmetic, fused_head=fused) for fused in (True, False)]
        stored = _trained_dtype(self._run)
        computed = "bfloat16" if self._run.settings.get("casts_weights", False) else stored
        if computed != "float32":
            options = replace(self._options, dtype=computed, precision="auto")
            step = prepared_of(self._run, prepared.step, weights, loss, options)
            sampler = self._sampler(loss, options)
            yield from ((step, sampler, head) for head in heads)
        is_guess = arithmetic.autocast is not None and not self._names_precision
        if arithmetic.router_coefficient and (is_guess or arithmetic.autocast is None):
            yield prepared, None, replace(arithmetic, autocast=None)
        if arithmetic.autocast is not None:
            sampler = self._sampler(loss, self._options)
            yield from ((prepared, sampler, head) for head in heads)

    def _sampler(self, loss: StepLoss, options: EngineOptions) -> MeasuredPolicy | None:
        return None if loss.sampled_with is None else policy_of(self._run, loss.sampled_with, options)

    @property
    def _switched_off(self) -> bool:
        return bool(self._run.settings.get("disable_dropout", False))

    def _logged(self, step: int) -> float | None:
        return self._run.metrics.get(step, {}).get("grad_norm")

    @property
    def _met_exactly(self) -> bool:
        return len(self._exact) > len(self._reduced)

    @property
    def _names_precision(self) -> bool:
        """Whether the arguments, or norms that were met in float32, tell the trainer's precision."""
        return self._met_exactly or self._run.settings.name_precision

    @property
    def _is_reduced(self) -> bool:
        """Whether the trainer is known to have computed in less than float32."""
        by_arguments = self._run.settings.get("bf16") or self._run.settings.get("fp16")
        return bool(by_arguments) or _trained_dtype(self._run) != "float32"

    @cached_property
    def _frozen(self) -> frozenset[str]:
        """Parameters that two checkpoints, as far apart as there are, share to the last bit."""
        saved = self._run.weights
        if len(saved) < 2 or saved[0].kind != saved[-1].kind:
            return frozenset()
        return unchanged(*(policy_of(self._run, weights, self._options) for weights in (saved[0], saved[-1])))

    def _undecided_assumptions(self, prepared: PreparedStep, stated: Assumption) -> Iterator[str]:
        """Notes on assumptions that the logged norm did not decide, where they matter."""
        is_base = prepared.policy.kind == "adapter" and prepared.policy.reference is None
        unknown = self._run.weights_before(1) is None and self._run.source.format != "trl"  # TRL's checkpoints tell
        if prepared.plan.objective.has_reference and is_base and unknown:
            yield (
                "The KL reference is the base model alone; where training went on from an adapter, its reference was "
                "that adapter: --initial."
            )
        if self._logged(prepared.step) is None and len(other_assumptions(prepared, frozenset(), stated)) > 0:
            yield (
                f"Whether the embedding of the padding token {stated.padding_row} had a gradient is not known, and no "
                "grad_norm was logged that would tell."
            )


def prepared_of(
    run: Run,
    step: int,
    weights: WeightsRef,
    loss: StepLoss,
    options: EngineOptions,
    batch_tokens: int | None = None,
    altered: ExitStack | None = None,
    *,
    pads_left: bool = False,
) -> PreparedStep:
    """A step made ready to measure, with all weights that its loss needs.

    With ``pads_left`` a script's prompts have one width, the padding first, and the model gets no position ids.
    """
    # While ``altered`` is open, models end in TRL's output layer instead of their own.
    groups = run.groups_at(step)
    with _default_cause("weights_unreadable"):
        policy = policy_of(run, weights, options, loss.reference)
    policy = replace(policy, padding=TrainerPadding()) if pads_left else policy
    _remember_longest(run, step, policy, loss.objective)
    if altered is not None:
        for model in filter(None, (policy.model, policy.reference)):
            altered.enter_context(trl_output(model))
    budget = TokenBudget(
        batch_tokens or options.batch_tokens or first_batch_tokens(policy),
        fixed=options.batch_tokens is not None or num_connected() > 1,
        notice=options.notice,
    )
    old = None
    if loss.sampled_with is not None:
        sampler = replace(policy_of(run, loss.sampled_with, options), padding=policy.padding)
        _remember_longest(run, loss.sampled_with.num_updates + 1, sampler, loss.objective)
        old = step_logprobs(sampler, groups, loss.objective, budget)
    with _default_cause("ids_misfit"):
        return prepare_step(policy, groups, loss.objective, budget, old)


@contextmanager
def _default_cause(cause: str) -> Iterator[None]:
    """Name the cause of errors that do not name their own."""
    try:
        yield
    except InputError as error:
        error.cause = error.cause or cause
        raise


def under(prepared: PreparedStep, assumption: Assumption) -> PreparedStep:
    """A step with the policy as an assumption has it."""
    return replace(prepared, policy=assumption.holds_for(prepared.policy))


def policy_of(
    run: Run, weights: WeightsRef, options: EngineOptions, reference: Sequence[tuple[WeightsRef, float]] = ()
) -> MeasuredPolicy:
    """A set of a run's weights as the trainer had it, with the reference of its KL term where it is asked for."""
    return load_measured_policy(
        weights,
        device=options.device,
        dtype="float32" if options.precision == "high" else options.dtype,
        tokenizer=run.tokenizer,
        reference=reference,
        first=run.weights_before(1) or next((start for start, _ in reference), None),
        # other trainers give the model each token's own position
        padding=TrainerPadding.from_settings(run.settings) if run.trained_by_trl else None,
        trained=TrainedDtypes(
            weights=_trained_dtype(run),  # what training started from may have been converted on loading
            float32_head=bool(run.settings.get("cast_lm_head_to_fp32", False)),
        ),
    )


def _trained_dtype(run: Run) -> FloatName:
    """The dtype that the trainer had its weights in: that of unrounded checkpoints; of an adapter's base as loaded."""
    weights, loaded, stored = run.weights[-1], _loaded_dtype(run), stored_dtype(run.weights[-1])
    if weights.kind == "full" and loaded is None and _has_more_digits(run, stored):
        return "float32"
    is_converted = weights.kind == "full" and (loaded != "float32" or run.settings.get("deepspeed"))
    return stored if is_converted or loaded is None else loaded


def _are_rounded(run: Run, weights: WeightsRef) -> bool:
    """Whether a model is stored in less than the float32 that the trainer had."""
    last, stored = run.weights[-1], stored_dtype(weights)
    is_saved = weights.num_updates > 0 or (last.num_updates > 0 and stored_dtype(last) == stored)  # or loaded so
    return is_saved and weights.kind == "full" and stored != "float32" == _trained_dtype(run)


def _with_head(run: Run) -> Run:
    """A run whose arguments say whether the output layer was in float32, as checkpoints have it alone in float32."""
    weights, name = run.weights[-1], "cast_lm_head_to_fp32"
    if run.settings.get(name) is not None or weights.kind != "full":
        return run
    dtypes = tensor_dtypes(weights)
    in_float32 = {tensor.rpartition(".")[0].rpartition(".")[2] for tensor, dtype in dtypes.items() if dtype == "F32"}
    has_float32_head = bool(in_float32) and in_float32 <= {"lm_head", "embed_tokens"} and {*dtypes.values()} != {"F32"}
    return replace(run, settings=run.settings.with_values({name: has_float32_head}))


def _loaded_dtype(run: Run) -> FloatName | None:
    init_kwargs = run.settings.get("model_init_kwargs")
    if not isinstance(init_kwargs, Mapping):
        return None
    named = str(init_kwargs.get("dtype", init_kwargs.get("torch_dtype"))).removeprefix("torch.")
    return next((name for name in get_args(FloatName) if name == named), None)


_BINARY_DIGITS = {"bfloat16": 8, "float16": 11}


def _has_more_digits(run: Run, stored: FloatName) -> bool:
    """Whether logged norms have digits that those of gradients in a checkpoint's dtype, of that dtype, have not."""
    in_float32 = any(run.settings.get(name) for name in ("casts_weights", "deepspeed"))
    if stored == "float32" or in_float32 or len(set(tensor_dtypes(run.weights[-1]).values())) > 1:
        return False
    for step, metrics in run.metrics.items():
        norm = metrics.get("grad_norm", math.nan)
        digits = math.frexp(norm)[0] * 2 ** _BINARY_DIGITS[stored]
        error = abs(digits - round(digits)) / digits * norm if math.isfinite(norm) and norm else 0.0
        if error > EXACTLY * norm + run.half_unit(step, "grad_norm"):
            return True
    return False
