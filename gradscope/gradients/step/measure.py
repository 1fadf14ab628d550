"""One step's Gram matrix: the entry point of every diagnostic that needs gradients.

:func:`measure_step` picks an engine, lets it add up the inner products of all rows, computes parameters that no layer
rule covers by one backward pass a row, and refuses a matrix that misses a parameter or disagrees with an ordinary
backward pass. Where memory runs out, the step is tried again in smaller batches.

Shapes: N rows.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from msgspec.structs import replace
from torch import nn

from gradscope.errors import InputError, UsageError, VerificationError
from gradscope.gradients.engine_options import Engine, Verify
from gradscope.gradients.engines.exchange import add_slowly, exchanged_gram
from gradscope.gradients.engines.loop import GramAccumulator, loop_gram, parameter_blocks, row_bytes
from gradscope.gradients.engines.prompt import can_share, is_worth_sharing, prompt_gram
from gradscope.gradients.engines.stream import stream_gram
from gradscope.gradients.model.batches import PaddedBatch, pad_batch
from gradscope.gradients.model.budget import names_out_of_memory, recomputed_tokens
from gradscope.gradients.model.calls import finer_products, removed_later, uses_tf32
from gradscope.gradients.model.checked import is_out_of_memory
from gradscope.gradients.model.passes import completion_logprobs, sum_of_squares
from gradscope.gradients.model.policy import MeasuredPolicy, token_embedding
from gradscope.gradients.plan.prepared_step import PreparedStep
from gradscope.gradients.plan.rows import RowPlan
from gradscope.gradients.processes import all_gather, all_reduce_sum, num_connected
from gradscope.gradients.step.step_gram import Chosen, StepGram, on_cpu
from gradscope.gradients.step.verify import verify_gram
from gradscope.metrics.gram.spectrum import Array
from gradscope.progress import ProgressCallback, no_progress
from gradscope.reason import CAUSES

# How far a gradient row is from its exact value: the floor below which singular values are arithmetic, not signal.
#
# float32 has a constant, measured (float64 has the same: Hugging Face norms compute in float32 inside); lower
# precisions are measured on the step's own rows, by recomputing a few in float32. Re-running with other padding would
# understate the error: rounding is deterministic.
FLOAT32_ROW_ERROR = 1e-5
"""Bound on |row in float32 - row in float64| / |row|, which a test holds.

Measured on a trained small model: median 2e-6, at most 8e-6 on a CPU and 1e-5 on an H200."""


def measure_step(
    prepared: PreparedStep,
    *,
    engine: Engine = "auto",
    verify: Verify = "first",
    progress: ProgressCallback = no_progress,
) -> StepGram:
    """The Gram matrix of one step's gradient rows, checked against an ordinary backward pass.

    Args:
        engine: ``loop``, ``stream``, ``prompt``, or ``auto``: ``prompt`` where sharing prompts saves enough, else
            ``loop`` on a CPU while all rows fit the memory of the step's budget, else ``stream``.

    Raises:
        UsageError: There is no such engine.
        InputError: A log-probability or a gradient is not finite; the message names the first, and where it came from.
        VerificationError: Parameters are missing from the matrix, or it disagrees with the backward pass.
    """
    policy, plan, budget = prepared.policy, prepared.plan, prepared.budget
    chosen = _choose(engine, prepared)

    def batches(tokens: int) -> list[PaddedBatch]:
        return prepared.batches(range(len(plan.rows)), tokens)

    def attempt(tokens: int) -> _Attempt:
        started = _Attempt(prepared, progress)
        if num_connected() > 1:
            started.exchange(tokens)
        elif chosen == "loop":
            started.loop(policy.trainable)
        elif chosen == "stream":
            started.gather(stream_gram, batches(tokens))
        else:
            started.gather(prompt_gram, tokens)
        return started

    # the matrix; loop has one sequence at a time whatever the budget, so a smaller one is no help
    if chosen == "loop":
        finished = attempt(budget.tokens)
    else:  # layers in parts are put together twice already
        recomputed = None if num_connected() > 1 else recomputed_tokens(policy)
        finished = budget.fit(plan.lengths, attempt, recomputed=recomputed)
    rollouts = prepared.rollouts
    logprobs, gram = on_cpu([finished.logprobs[index] for index in range(len(rollouts))]), finished.gram()
    _require_finite(prepared, logprobs, gram)
    coverage = finished.coverage()
    # the checks, and the answer with all that explains it
    verification = budget.fit(plan.lengths, lambda tokens: verify_gram(prepared, gram, batches(tokens), verify))
    logged = [rollout.advantage for rollout in rollouts if rollout.advantage is not None]
    return StepGram(
        step=prepared.step,
        gram=gram,
        rows=plan.rows,
        group_ids=tuple(rollout.group_id for rollout in rollouts),
        samples=tuple(rollout.sample for rollout in rollouts),
        rewards=np.array([math.nan if r.reward is None else r.reward for r in rollouts]),
        advantages=np.array(logged, dtype=np.float64) if len(logged) == len(rollouts) else None,
        logprobs=logprobs,
        num_inferred_ids=sum(sequence.inferred for sequence in plan.sequences),
        engine=chosen,
        dtype=str(policy.dtype).removeprefix("torch."),
        device=str(policy.device),
        batch_tokens=budget.tokens,
        num_parameters=policy.num_parameters,
        coverage=coverage,
        slow_parameters=tuple(sorted(finished.slow)),
        verification=verification,
        tf32=uses_tf32(policy.device),
        relative_row_error=relative_row_error(prepared, np.sqrt(np.clip(np.diag(gram), 0, None)).tolist()),
        notes=(*notes_on(plan, finished.slow), *budget.notes),
    )


class _Attempt:
    """One attempt at a step: the accumulator, and each sequence's log-probabilities as they come."""

    def __init__(self, prepared: PreparedStep, progress: ProgressCallback) -> None:
        self._prepared, self._policy, self._plan = prepared, prepared.policy, prepared.plan
        self._progress, self._budget = progress, prepared.budget
        device, is_half = self._policy.device, self._policy.dtype.itemsize < torch.float32.itemsize
        is_coarse = device.type == "cuda" and is_half
        self._accumulator = GramAccumulator(len(self._plan.rows), device, is_coarse=is_coarse)
        self.logprobs: dict[int, torch.Tensor] = {}
        self._num_done, self._num_tokens, self._rounds = 0, 0, 1
        self.slow: frozenset[str] = frozenset()

    def loop(self, parameters: Mapping[str, nn.Parameter]) -> None:
        plan = self._plan
        with names_out_of_memory(f"one rollout of at most {max(plan.lengths)} tokens, with {len(plan.rows)} rows kept"):
            loop_gram(self._prepared, parameters, self._accumulator, self._done)

    def gather(self, run: Callable[..., frozenset[str]], batches: Sequence[PaddedBatch] | int) -> None:
        """``stream`` over batches, or ``prompt`` over batches of this many tokens."""
        self.slow = run(self._prepared, batches, self._accumulator, self._done, self._say_rounds)
        parameters = {name: self._policy.trainable[name] for name in sorted(self.slow)}
        for block in parameter_blocks(parameters, len(self._plan.rows), self._budget.row_bytes):
            self.loop(block)

    def exchange(self, batch_tokens: int) -> None:
        """``stream`` by several processes, of which each has some of the rows and adds up some of each parameter."""
        prepared, total = self._prepared, self._accumulator
        self.slow = exchanged_gram(prepared, batch_tokens, total, self._done)
        add_slowly(prepared, self.slow, total)
        local = {sequence: logprobs.cpu() for sequence, logprobs in self.logprobs.items()}
        self.logprobs = {sequence: row for part in all_gather(local) for sequence, row in part.items()}

    def _say_rounds(self, num_rounds: int) -> None:
        if num_rounds > self._rounds:
            self._rounds = num_rounds
            self._budget.say(
                f"What waits for other batches is too much for half of the free space in {tempfile.gettempdir()}: all "
                f"rollouts run {num_rounds} times, each time for some of the layers. A TMPDIR with more room is faster."
            )

    def coverage(self) -> float:
        """Share of the trainable parameters that were added; anything but 1.0 is an error."""
        added = int(all_reduce_sum(torch.tensor(self._accumulator.num_parameters)))
        share = added / self._policy.num_parameters
        if share != 1.0:
            raise VerificationError(f"The Gram matrix covers {share:.4%} of the trainable parameters.")
        return share

    def gram(self) -> Array:
        return np.asarray(all_reduce_sum(self._accumulator.gram).cpu().numpy())

    def _done(self, sequence: int, logprobs: torch.Tensor) -> None:
        self.logprobs[sequence] = logprobs.double()  # still on the device: copying would wait for it
        self._num_done, self._num_tokens = self._num_done + 1, self._num_tokens + len(logprobs)
        total = self._rounds * len(self._plan.sequences)
        self._progress(min(self._num_done, total), total, f"rollouts, {self._num_tokens:,} tokens")


def _require_finite(prepared: PreparedStep, logprobs: Sequence[Array], gram: Array) -> None:
    """Refuse numbers that arithmetic on the rows would turn into NaN."""
    if all(np.isfinite(row).all() for row in logprobs) and np.isfinite(gram).all():
        return
    first = _first_non_finite(prepared) if num_connected() == 1 else None  # a part of a model cannot run alone
    finite = np.isfinite(np.diag(gram))
    broken = [row.sequence for row, is_finite in zip(prepared.plan.rows, finite, strict=True) if not is_finite]
    if first is not None or not broken:
        problem = first or "a log-probability is not finite"
    else:
        sequence = prepared.plan.sequences[min(broken)]
        problem = f"the gradient of rollout {sequence.sample} of group {sequence.group_id} is not finite"
    raise InputError(f"Step {prepared.step}: {problem}.", hint=CAUSES["overflow"].advice, cause="overflow")


def _choose(engine: Engine, prepared: PreparedStep) -> Chosen:
    policy, plan = prepared.policy, prepared.plan
    if engine not in ("auto", "loop", "stream", "prompt"):
        raise UsageError(f"There is no engine {engine!r}.", hint="Use auto, loop, stream or prompt.")
    if num_connected() > 1:
        if engine in ("loop", "prompt"):
            raise UsageError(
                f"The engine `{engine}` needs the whole model, and {num_connected()} processes share this one.",
                hint="Use --engine stream, or call gradscope without torchrun.",
            )
        return "stream"
    if engine != "auto":
        return engine
    if policy.device.type == "cuda":  # it waits for Python between rollouts, and between parts of a prompt
        return "stream"
    if can_share(policy.model) and is_worth_sharing(plan, weight_gradients=policy.kind == "full"):
        return "prompt"
    return "loop" if row_bytes(len(plan.rows), policy.trainable) <= prepared.budget.row_bytes else "stream"


def notes_on(plan: RowPlan, slow: frozenset[str] = frozenset()) -> list[str]:
    """Caveats of a step's numbers, in sentences."""
    notes = []
    inferred = sum(sequence.inferred for sequence in plan.sequences)
    if inferred:
        notes.append(f"{inferred} of {len(plan.sequences)} rollouts were re-tokenized from text; ids may differ.")
    if plan.objective.assumed:
        notes.append(f"Not known and taken at the trainer's default: {', '.join(plan.objective.assumed)}.")
    if plan.objective.entropy_coef:
        notes.append("The entropy bonus is part of the logged gradient and of no score vector.")
    if plan.objective.importance_ratio:
        notes.append(
            "Score vectors carry the importance ratio; the clip depends on the advantage's sign and enters "
            "only the logged gradient."
        )
    if slow:
        notes.append(
            f"{len(slow)} parameters have no layer rule and took one backward pass a row: {sorted(slow)[0]}"
            f"{', ...' if len(slow) > 1 else ''}."
        )
    return notes


def relative_row_error(prepared: PreparedStep, norms: Sequence[float]) -> float:
    """Largest relative error of a row that the model's arithmetic explains.

    The two largest rows by their norms, [N], are recomputed in float32, on a GPU against bfloat16 with TF32 products,
    whose own error, an eighth of it, adds under 1 % to the distance. The error multiplied by the matrix's Frobenius
    norm is the floor of its singular values.

    Raises:
        InputError: Memory ran out, also with the row in its own precision on the CPU.
        RuntimeError: Another error of PyTorch's.
    """
    policy = prepared.policy
    if policy.dtype in (torch.float32, torch.float64) and not uses_tf32(policy.device):
        return FLOAT32_ROW_ERROR
    largest = sorted(range(len(norms)), key=lambda row: -norms[row])[:2]
    with names_out_of_memory("one rollout in float32, by which the error of its arithmetic is measured"):
        try:
            return max(_row_difference(prepared, row, policy.device) for row in largest)
        except RuntimeError as error:
            if policy.device.type == "cpu" or not is_out_of_memory(error):
                raise
        torch.cuda.empty_cache()  # outside, where the frames that the error held are gone
        return max(_row_difference(prepared, row, torch.device("cpu")) for row in largest)


def _row_difference(prepared: PreparedStep, row: int, device: torch.device) -> float:
    """Of one row, which is stored in its own precision alone; float32 tensors are compared and dropped as they come."""
    coarse: dict[str, torch.Tensor] = {}
    errors, sizes = [], []

    def keep(name: str, grad: torch.Tensor) -> None:
        coarse[name] = grad.detach().to(device)

    def compare(name: str, grad: torch.Tensor) -> None:
        errors.append(sum_of_squares(coarse.pop(name).to(grad).sub_(grad)))
        sizes.append(sum_of_squares(grad))

    batch, plan = prepared.batch([row]), prepared.plan
    prepared.backward(batch, lambda _, outputs: plan.cotangent(plan.rows[row], outputs), keep)
    with _in_float32(prepared.policy) as fine, finer_products(prepared.policy.dtype):
        step = replace(prepared, policy=fine)
        step.backward(batch, lambda _, outputs: plan.cotangent(plan.rows[row], outputs), compare)
    error, size = (float(torch.stack(parts).sum()) if parts else 0.0 for parts in (errors, sizes))
    return (error / size) ** 0.5 if size > 0 else 0.0


@contextmanager
def _in_float32(policy: MeasuredPolicy) -> Iterator[MeasuredPolicy]:
    """Only parameters change: buffers such as rotary frequencies are float32 already and must stay so."""
    # Weights that several processes hold parts of keep the dtype of their first pass, so they are loaded again.
    if num_connected() > 1 and policy.in_float32 is not None:
        fine = policy.in_float32()
        token_embedding(fine.model).padding_idx = token_embedding(policy.model).padding_idx
        yield replace(fine, trainable={name: fine.trainable[name] for name in policy.trainable})
        return
    originals = {parameter: parameter.data for parameter in policy.model.parameters()}
    try:
        for parameter in originals:
            parameter.data = parameter.data.float()
        yield policy
    finally:
        for parameter, data in originals.items():
            parameter.data = data


# Where a forward pass first leaves the finite numbers: which rollout, which token, which module.
#
# Looked for only where a gradient could not be had, one rollout at a time: hooks on every module would slow the rest.
def _first_non_finite(prepared: PreparedStep) -> str | None:
    """The first output of a module that is not finite, rollout by rollout in the order of the log, if any; in words."""
    policy, plan = prepared.policy, prepared.plan
    seen: list[tuple[str, str]] = []

    def inspect(name: str, output: Any) -> None:
        tensor = output[0] if isinstance(output, (tuple, list)) and output else output
        if not seen and isinstance(tensor, torch.Tensor) and tensor.is_floating_point():
            is_bad = ~torch.isfinite(tensor)
            if bool(is_bad.any()):
                # of outputs [1, S, ...] the first of S, prompt included; unsaid where an output is not by token
                is_by_token = is_bad.dim() > 1 and is_bad.shape[0] == 1
                token = int(is_bad.reshape(is_bad.shape[1], -1).any(dim=1).nonzero()[0]) if is_by_token else None
                seen.append((name, "" if token is None else f", at token {token}"))

    handles = [
        module.register_forward_hook(lambda _, __, output, name=name: inspect(name, output))
        for name, module in policy.model.named_modules()
        if name and not any(True for _ in module.children())
    ]
    with removed_later(handles), torch.no_grad():
        for index, sequence in enumerate(plan.sequences):
            batch = pad_batch([index], [sequence], policy.device)
            logprobs = completion_logprobs(policy.model, batch, plan.objective.temperature)[0]
            if seen or not bool(torch.isfinite(logprobs).all()):
                module, position = seen[0] if seen else ("the log-probabilities", "")
                rollout = f"rollout {sequence.sample} of group {sequence.group_id}"
                return f"the output of {module} is not finite in {rollout}{position}"
    return None
