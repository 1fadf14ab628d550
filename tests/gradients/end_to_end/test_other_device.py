"""Everything that computes gradients, on a device that is not the CPU: the same numbers, and where the program waits.

Nothing may stay behind on the CPU, and an engine may wait for its device once a batch, whatever the number of layers
and rollouts. ``tests/gradients/other_device.py`` is such a device for machines that have none.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from gradscope.gradients.model.batches import TrainerPadding
from gradscope.gradients.model.budget import TokenBudget
from gradscope.gradients.model.policy import _longest_sequence
from gradscope.gradients.plan.objective import Objective
from gradscope.gradients.plan.prepared_step import PreparedStep, prepare_step, step_logprobs
from gradscope.gradients.step import directions
from gradscope.gradients.step.measure import measure_step
from gradscope.gradients.tokens.measure import measure_rollout_tokens, measure_signals, measure_tokens
from gradscope.gradients.tokens.sums import CORRECTIONS, corrected, counted_tokens, measure_token_sums
from gradscope.gradients.trained.norms import TrainerArithmetic, is_own_output, is_random, tensor_squares, trained_norms
from tests.gradients.models import DAPO, changed, policy_of, relative, tiny_experts, tiny_groups, tiny_model
from tests.gradients.other_device import REMOTE, Elsewhere, moved, other_device

pytestmark = pytest.mark.slow  # each operation of PyTorch goes through Python

CHECKS = {"asked: gradients/step/verify._error": 1, "down: gradients/step/measure.gram": 1}
"""What any engine waits for: the self-check's norm, and the matrix."""
ONCE = {**CHECKS, "down: gradients/step/step_gram.on_cpu": 1}  # and all log-probabilities at once
STORE = {f"{way}: gradients/layers/factors.<lambda>" for way in ("down", "up")}
"""Pairs of several batches go to the CPU and come back: there they may wait for hours of other batches, or on disk."""
EXPERTS = {
    *(f"{wait}: gradients/engines/loop._add_routed" for wait in ("asked", "down")),  # once a parameter
    *("asked: gradients/layers/rules._pairs", "down: gradients/layers/rules._pairs"),
    *("asked: gradients/layers/factors.add_to", "down: gradients/layers/factors.add_to"),
}
"""Which experts a token goes to is a number, and how many tokens an expert has is the size of a tensor."""


def prepared(
    model: Any, objective: Objective = DAPO, *, reference: Any = None, tokens: int = 4096, num_groups: int = 2
) -> PreparedStep:
    policy = replace(policy_of(model, reference=reference), kind="adapter" if hasattr(model, "peft_config") else "full")
    return prepare_step(policy, logged_groups(num_groups), objective, TokenBudget(tokens, fixed=True))


def logged_groups(num_groups: int) -> list[Any]:
    rng = np.random.default_rng(0)
    return changed(tiny_groups(num_groups, 2), logprobs=lambda rollout: tuple(-rng.random(len(rollout.completion_ids))))


def on_both(make: Callable[[], Any], run: Callable[[Any], Any]) -> tuple[np.ndarray, np.ndarray, Counter[str]]:
    """What is measured on the CPU and on the other device, and the waits of the latter that are not the model's own."""
    expected = run(make())
    model = make()
    with other_device() as device:
        elsewhere = run(moved(model))
    return (
        np.asarray(elsewhere),
        np.asarray(expected),
        Counter({w: n for w, n in device.waits.items() if "gradients/" in w}),
    )


@pytest.mark.parametrize(
    ("name", "lora", "engine"),
    [
        *(("qwen3_gqa_norms", False, engine) for engine in ("loop", "prompt", "stream")),
        ("qwen3_gqa_norms", True, "stream"),
        ("gpt2_tied_conv1d", False, "stream"),
    ],
)
def test_an_engine_waits_once_a_batch(name: str, lora: bool, engine: str) -> None:
    elsewhere, expected, waits = on_both(
        lambda: tiny_model(name, lora=lora), lambda model: measure_step(prepared(model), engine=engine).gram
    )
    assert relative(elsewhere, expected) < 1e-5
    if engine == "prompt":  # two groups, so two batches: their pairs wait for each other
        waits = Counter({wait: number for wait, number in waits.items() if wait not in STORE})
        assert waits.pop("up: gradients/engines/prompt.__init__") == 2
    settled = waits.pop("down: gradients/layers/trace.settle", 0)
    assert settled == (0 if lora or engine == "loop" else 1 if engine == "stream" else settled)
    assert settled <= 5  # a batch of prompt has a prefix of its own, and one more in each group
    waits.pop("asked: gradients/layers/factors.looked_up_ids", None)  # a table's ids, once a table
    assert dict(waits) == ONCE


def test_pairs_of_several_batches_go_to_the_cpu_and_come_back() -> None:
    elsewhere, expected, waits = on_both(
        lambda: tiny_model("qwen3_gqa_norms"),
        lambda model: measure_step(prepared(model, tokens=24), engine="stream").gram,
    )
    assert relative(elsewhere, expected) < 1e-5
    assert waits.pop("down: gradients/layers/trace.settle") == 2  # once in each of two batches
    assert {wait for wait in waits if wait not in ONCE} == STORE


@pytest.mark.parametrize("name", ["qwen3_moe_normalized", "mixtral"])
def test_experts_are_where_their_tokens_are(name: str) -> None:
    elsewhere, expected, waits = on_both(
        lambda: tiny_experts(name), lambda model: measure_step(prepared(model), engine="stream").gram
    )
    assert relative(elsewhere, expected) < 1e-5
    assert set(waits) - set(ONCE) <= {
        *EXPERTS,
        "down: gradients/layers/trace.settle",
        "asked: gradients/layers/factors.looked_up_ids",
    }


OBJECTIVES = {
    "kl": Objective(loss_type="grpo", beta=0.4),
    "entropy bonus": Objective(loss_type="grpo", entropy_coef=0.3),
    "reused": Objective(loss_type="grpo", importance_ratio=True, epsilon_low=0.1, epsilon_high=0.1),
    "quantile": Objective(loss_type="grpo", top_entropy_quantile=0.5),
}


@pytest.mark.parametrize("case", OBJECTIVES)
def test_every_weight_of_a_loss_goes_to_the_device(case: str) -> None:
    references = [tiny_model("qwen3_gqa_norms").requires_grad_(False) for _ in range(2)]
    for reference in references:
        reference.lm_head.weight.data.mul_(1.3)

    def run(model: Any) -> Any:
        reference = references.pop()
        reference = moved(reference) if isinstance(next(model.parameters()), Elsewhere) else reference
        step = measure_step(prepared(model, OBJECTIVES[case], reference=reference), engine="stream")
        return np.concatenate([step.gram.ravel(), *step.logprobs])

    elsewhere, expected, waits = on_both(lambda: tiny_model("qwen3_gqa_norms"), run)
    assert relative(elsewhere, expected) < 1e-5
    assert set(waits) - set(ONCE) <= {"down: gradients/layers/trace.settle", "down: gradients/plan/rows.<listcomp>"}


def test_the_error_of_a_bfloat16_row_is_measured_where_the_row_is() -> None:
    def run(model: Any) -> Any:
        step = measure_step(prepared(model), engine="stream")
        return [step.relative_row_error, *step.gram.ravel()]

    elsewhere, expected, waits = on_both(lambda: tiny_model("qwen3_gqa_norms", dtype=torch.bfloat16), run)
    assert elsewhere[0] == pytest.approx(expected[0], rel=0.2)
    assert relative(elsewhere[1:], expected[1:]) < 3 * elsewhere[0]
    assert waits.pop("asked: gradients/step/measure.<genexpr>") == 4  # two numbers of each of two rows
    assert waits.pop("down: gradients/layers/trace.settle") == 1
    assert dict(waits) == ONCE


def tokens_of(**options: Any) -> Callable[[Any], Any]:
    def run(model: Any) -> Any:
        step = prepared(model, num_groups=1)
        grams = measure_tokens(step, measure_step(step), **options)
        return np.concatenate([gram.gram.ravel() for gram in grams])

    return run


def rollout_tokens(model: Any) -> Any:
    step = prepared(model)
    rows = measure_rollout_tokens(step, measure_step(step), [3, 0])
    return np.concatenate([part for row in rows for part in (row.norms, row.entropies)])


def weights(model: Any) -> Any:
    spectra = directions.measure_weight_spectra(prepared(model, num_groups=1))
    return np.concatenate([spectrum.singular_values for spectrum in spectra])


def group_weights(model: Any) -> Any:
    step = prepared(model, num_groups=1)
    factors = np.array([[1.0, -0.5], [1.0, 1.0]])
    null = np.array([True, False])
    group = directions.Combinations(group_id="a", rollouts=(0, 1), by_token=False, factors=factors, has_null=null)
    ranks = directions.measure_group_weights(step, measure_step(step), [group])
    return np.concatenate([tensor.counts.ravel() for tensor in ranks])


def signal(kind: Any) -> Callable[[Any], Any]:
    def run(model: Any) -> Any:
        step = prepared(model, num_groups=1)
        return measure_signals(step, measure_step(step), kind, max_tokens=None, seed=0).logged_gram

    return run


def token_sums(max_bytes: int) -> Callable[[Any], Any]:
    def run(model: Any) -> Any:
        step = prepared(model, Objective(loss_type="grpo", beta=0.1), reference=model, num_groups=1)
        tokens = counted_tokens(step, measure_step(step))
        assert tokens is not None
        rows = np.stack([tokens.weights, corrected(tokens, tokens.sampler, CORRECTIONS["tis"]), tokens.reference])
        step.budget.row_bytes = max_bytes
        return measure_token_sums(step, tokens, rows, np.array([False, False, True]))

    return run


def optimizers(model: Any) -> Any:
    step = prepared(model, num_groups=1)
    steps = directions.measure_optimizer_steps(step.policy.trainable, directions.step_gradient(step), 1e-3)
    assert all(np.isfinite(tensor.products).all() and tensor.num_moved for tensor in steps)
    return np.concatenate([tensor.products[:2, :2].ravel() for tensor in steps])  # Muon computes in bfloat16


def norms(model: Any) -> Any:
    arithmetic = TrainerArithmetic(micro_batch=2, fused_head=False)
    step = prepared(model, num_groups=1)
    return [*trained_norms(step, arithmetic, num_orders=2).norms, *tensor_squares(step).values()]


def answers(model: Any) -> Any:
    """Questions that are asked of a model before anything is measured."""
    step = prepared(model)
    policy = replace(step.policy, padding=TrainerPadding(multiple=4))
    sampled = step_logprobs(policy, step.groups, DAPO, TokenBudget(4096))
    random = is_random(policy, step.shortest, without_dropout=False)
    numbers = [_longest_sequence(model), is_own_output(model, step.shortest), random]
    return [*map(float, numbers), *torch.cat(sampled).tolist()]


CASES = {
    "token rows of a sketch": ("qwen3_gqa_norms", tokens_of(num_buckets=16, max_tokens=3)),
    "token rows of a sample, tied": ("gpt2_tied_conv1d", tokens_of(max_tokens=3)),
    "token rows of a sample, experts": ("mixtral", tokens_of(max_tokens=3)),
    "tokens of rollouts": ("qwen3_gqa_norms", rollout_tokens),
    "weights": ("qwen3_gqa_norms", weights),
    "weights of groups": ("qwen3_gqa_norms", group_weights),
    "hidden": ("gemma3_scaled", signal("hidden")),
    "logits": ("gemma3_scaled", signal("logit")),
    "sums of tokens": ("qwen3_gqa_norms", token_sums(2**30)),
    "sums of tokens by layer": ("qwen3_gqa_norms", token_sums(0)),
    "optimizers": ("qwen3_gqa_norms", optimizers),
    "norms": ("qwen3_gqa_norms", norms),
    "answers": ("gpt2_tied_conv1d", answers),
}


@pytest.mark.parametrize("case", CASES)
def test_nothing_stays_behind_on_the_cpu(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # of autocast PyTorch knows only devices of its own
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda _: False)
    name, run = CASES[case]
    elsewhere, expected, _ = on_both(lambda: tiny_experts(name) if name == "mixtral" else tiny_model(name), run)
    assert np.isfinite(expected).all()
    assert expected.any()
    assert relative(elsewhere, expected) < 1e-5


@pytest.fixture
def device() -> Iterator[Any]:
    with other_device() as mode:
        yield mode


def test_the_device_refuses_a_tensor_of_the_cpu(device: Any) -> None:
    remote = torch.ones(3, device=REMOTE)
    for local in (torch.ones(3), torch.tensor([1.0])):
        with pytest.raises(RuntimeError, match="expected all tensors to be on the same device"):
            _ = remote + local
    assert (remote + torch.tensor(2.0)).device == REMOTE  # one number alone may come from anywhere, as on CUDA
    assert device.waits == {}


def test_the_device_says_what_is_waited_for(device: Any) -> None:
    remote = torch.arange(3.0).to(REMOTE, non_blocking=True)
    assert device.waits == {}
    assert remote.tolist() == [0.0, 1.0, 2.0]
    assert float(remote.sum()) == 3.0
    assert remote[remote > 0].shape == (2,)
    remote.to("cpu")
    torch.arange(3.0).to(REMOTE)
    assert sum(device.waits.values()) == 5
    with pytest.raises(RuntimeError, match="goes on before the numbers have come"):
        remote.to("cpu", non_blocking=True)
