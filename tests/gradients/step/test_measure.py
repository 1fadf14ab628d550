import re

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from torch import nn

from gradscope.errors import InputError, UsageError, VerificationError
from gradscope.gradients.engines import stream as stream_module
from gradscope.gradients.engines.loop import GramAccumulator
from gradscope.gradients.layers import trace
from gradscope.gradients.plan.prepared_step import PreparedStep, prepare_step
from gradscope.gradients.step import measure
from tests.gradients.models import (
    ARCHITECTURES,
    DAPO,
    FULL_AND_LORA,
    changed,
    flat_gradient,
    long_prompts,
    measured_step,
    naive_rows,
    plain_logprobs,
    plain_model,
    policy_of,
    relative,
    rollouts_of,
    score_error,
    tiny_experts,
    tiny_groups,
    tiny_model,
    tiny_policy,
    waiting_gradients,
    weight_of,
)
from tests.gradients.other_device import REMOTE


@pytest.mark.parametrize("engine", ["loop", "stream"])
@pytest.mark.parametrize(("name", "lora"), FULL_AND_LORA)
def test_gram_equals_one_float64_backward_per_rollout(name, lora, engine):
    policy, groups = tiny_policy(name, lora=lora), tiny_groups()
    with waiting_gradients(policy):
        result = measured_step(policy, groups, DAPO, batch_tokens=24, engine=engine, verify="all")
    assert score_error(result, policy, groups) < 1e-5
    assert (result.engine, result.coverage, result.slow_parameters) == (engine, 1.0, ())
    assert result.num_parameters == policy.num_parameters
    model, _ = plain_model(policy)
    for logprobs, rollout in zip(result.logprobs, rollouts_of(groups), strict=True):
        np.testing.assert_allclose(logprobs, plain_logprobs(model, rollout).detach(), rtol=1e-4)


@pytest.mark.parametrize("engine", ["stream", "prompt"])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_gram_in_float64_is_exact_to_rounding(name, engine):
    policy, groups = tiny_policy(name, dtype=torch.float64), long_prompts(tiny_groups())
    assert score_error(measured_step(policy, groups, DAPO, engine=engine), policy, groups) < 1e-12


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "lora", "engine"),
    [
        *((name, False, "stream") for name in ("qwen3_gqa_norms", "qwen3_moe")),
        ("qwen3_gqa_norms", True, "stream"),
        ("gpt2_tied_conv1d", False, "prompt"),
    ],
)
def test_rounds_for_want_of_room_add_up_to_one_float64_backward_per_rollout(name, lora, engine, monkeypatch):
    is_mixture = name == "qwen3_moe"
    policy = policy_of(tiny_experts(name, implementation="eager")) if is_mixture else tiny_policy(name, lora=lora)
    groups, notices, progress = tiny_groups(3, 2), [], []
    monkeypatch.setattr(stream_module, "free_bytes", lambda: 15_000 if lora else 60_000)
    listeners = {"notice": notices.append, "progress": lambda *event: progress.append(event)}
    step = measured_step(policy, groups, DAPO, batch_tokens=12, engine=engine, pending_bytes=0, **listeners)
    assert score_error(step, policy, groups) < 1e-5
    (note,) = notices
    rounds = int(re.search(r"run (\d+) times", note)[1])
    assert rounds > 1
    assert note in step.notes
    assert progress[-1][:2] == (6 * rounds, 6 * rounds)
    assert [done for done, *_ in progress] == list(range(1, 6 * rounds + 1))


@pytest.mark.parametrize(("engine", "module", "name"), [("stream", "", "lm_head"), ("prompt", "model.layers.0", "mlp")])
def test_a_parameter_without_a_rule_is_computed_the_slow_way_and_named(engine, module, name):
    class Scaled(nn.Module):
        """Multiplies what a module returns by a learned number of its own: no rule knows it."""

        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner
            self.gain = nn.Parameter(torch.full((1,), 1.3))

        def forward(self, hidden: torch.Tensor) -> torch.Tensor:
            return self.inner(hidden) * self.gain

    model = tiny_model("llama_untied_biases")
    parent = model.get_submodule(module)
    setattr(parent, name, Scaled(getattr(parent, name)))
    policy, groups = policy_of(model), long_prompts(tiny_groups())
    step = measured_step(policy, groups, DAPO, engine=engine)
    (slow,) = step.slow_parameters
    assert slow == f"{module}.{name}.gain".lstrip(".")
    assert any(f"1 parameters have no layer rule and took one backward pass a row: {slow}." in n for n in step.notes)
    assert score_error(step, policy, groups) < 1e-5


@pytest.mark.parametrize(("engine", "batch_tokens"), [("stream", 12), ("prompt", None)])
def test_a_layer_that_is_called_twice_adds_up(engine, batch_tokens):
    model = tiny_model("qwen3_gqa_norms")
    model.model.layers[1].mlp = model.model.layers[0].mlp
    policy, groups = policy_of(model), long_prompts(tiny_groups())
    step = measured_step(policy, groups, DAPO, batch_tokens=batch_tokens, engine=engine)
    assert step.slow_parameters == ()
    assert score_error(step, policy, groups) < 1e-5


def test_slow_parameters_are_taken_a_few_at_a_time(monkeypatch):
    monkeypatch.setattr(trace, "rule_for", lambda module: None)
    policy, groups = tiny_policy("llama_untied_biases"), tiny_groups(1, 2)
    step = measured_step(policy, groups, DAPO, engine="stream", row_bytes=8000)
    assert set(step.slow_parameters) == set(policy.trainable)
    assert score_error(step, policy, groups) < 1e-5


def test_a_gram_that_misses_parameters_is_refused(monkeypatch):
    full = GramAccumulator.add_parameter
    monkeypatch.setattr(
        GramAccumulator, "add_parameter", lambda self, shape, *rest: len(shape) == 2 and full(self, shape, *rest)
    )
    with pytest.raises(VerificationError, match=r"covers 9\d\.\d+% of the trainable parameters"):
        measured_step(tiny_policy("llama_untied_biases"), tiny_groups(), DAPO, engine="stream")


def test_a_layer_that_is_never_called_is_zero_and_still_covered():
    model = tiny_model("llama_untied_biases")
    model.unused = nn.Linear(2, 2)
    step = measured_step(policy_of(model), tiny_groups(), DAPO, engine="stream")
    assert step.slow_parameters == ("unused.bias", "unused.weight")
    expected = measured_step(tiny_policy("llama_untied_biases"), tiny_groups(), DAPO, engine="stream")
    assert relative(step.gram, expected.gram) < 1e-6


def test_a_weight_used_behind_its_modules_back_is_caught():
    class BorrowedHead(nn.Module):
        def __init__(self, embedding: nn.Embedding) -> None:
            super().__init__()
            self.embedding = embedding

        def forward(self, hidden: torch.Tensor) -> torch.Tensor:
            return nn.functional.linear(hidden, self.embedding.weight)

    model = tiny_model("llama_untied_biases")
    model.lm_head = BorrowedHead(model.model.embed_tokens)
    with pytest.raises(VerificationError, match="disagrees"):
        measured_step(policy_of(model), tiny_groups(), DAPO, engine="stream")


@pytest.mark.parametrize("batch_tokens", [None, 1])
@pytest.mark.parametrize("engine", ["loop", "stream", "prompt"])
def test_an_empty_completion_is_a_zero_row(engine, batch_tokens):
    groups = long_prompts(tiny_groups(1, 3))
    emptied = changed(groups, completion_ids=lambda rollout: rollout.completion_ids * (rollout.sample > 0))
    policy = tiny_policy("qwen3_gqa_norms")
    step = measured_step(policy, emptied, DAPO, batch_tokens=batch_tokens, engine=engine, verify="all")
    assert not step.gram[0].any()
    assert step.gram[1:, 1:].all()
    assert step.slow_parameters == ()


def test_auto_keeps_rows_while_they_fit():
    policy, groups = tiny_policy("llama_untied_biases"), tiny_groups()
    assert measured_step(policy, groups, DAPO).engine == "loop"
    assert measured_step(policy, groups, DAPO, row_bytes=1000).engine == "stream"
    on_gpu = replace(policy, device=torch.device("cuda"))
    assert measure._choose("auto", replace(prepare_step(policy, groups, DAPO), policy=on_gpu)) == "stream"


def test_progress_is_reported_per_rollout():
    seen = []
    measured_step(tiny_policy("llama_untied_biases"), tiny_groups(), DAPO, progress=lambda *event: seen.append(event))
    assert [(done, total) for done, total, _ in seen] == [(done, 6) for done in range(1, 7)]
    tokens = [int(label.removeprefix("rollouts, ").removesuffix(" tokens")) for _, _, label in seen]
    assert tokens == sorted(set(tokens))
    assert tokens[-1] == sum(len(rollout.completion_ids) for rollout in rollouts_of(tiny_groups()))


def test_a_kl_term_without_its_reference_and_an_unknown_engine_are_refused():
    with pytest.raises(InputError, match="weights before the first update") as caught:
        measured_step(tiny_policy("llama_untied_biases"), tiny_groups(), replace(DAPO, beta=0.1))
    assert "--initial" in caught.value.hint
    with pytest.raises(UsageError, match="no engine 'fast'"):
        measured_step(tiny_policy("llama_untied_biases"), tiny_groups(), DAPO, engine="fast")


@pytest.mark.parametrize("engine", ["loop", "prompt"])
def test_an_engine_that_needs_the_whole_model_is_refused_where_processes_share_it(engine, monkeypatch):
    monkeypatch.setattr("gradscope.gradients.step.measure.num_connected", lambda: 2)
    with pytest.raises(UsageError, match=f"`{engine}` needs the whole model, and 2 processes share this one"):
        measured_step(tiny_policy("llama_untied_biases"), tiny_groups(), DAPO, engine=engine)


@pytest.fixture
def llama() -> PreparedStep:
    return prepare_step(tiny_policy("llama_untied_biases"), tiny_groups(), DAPO)


def test_a_token_that_overflows_is_named_with_its_rollout_and_the_first_module(llama: PreparedStep) -> None:
    assert measure._first_non_finite(llama) is None
    token = llama.plan.sequences[2].completion_ids[0]
    rows = [[*sequence.prompt_ids, *sequence.completion_ids] for sequence in llama.plan.sequences]
    first = next(index for index, row in enumerate(rows) if token in row)
    with torch.no_grad():
        llama.policy.model.get_input_embeddings().weight[token] = float("inf")
    sequence, position = llama.plan.sequences[first], rows[first].index(token)
    assert measure._first_non_finite(llama) == (
        f"the output of model.embed_tokens is not finite in rollout {sequence.sample} of group {sequence.group_id}, "
        f"at token {position}"
    )


def test_a_layer_that_overflows_is_named_before_what_follows_from_it(llama: PreparedStep) -> None:
    with torch.no_grad():
        llama.policy.model.model.layers[1].mlp.up_proj.weight.mul_(1e38).mul_(1e3)
    assert "the output of model.layers.1.mlp.up_proj is not finite" in str(measure._first_non_finite(llama))


def test_a_low_temperature_may_overflow_log_probabilities(llama: PreparedStep) -> None:
    objective = replace(llama.plan.objective, temperature=1e-42)
    cold = replace(llama, plan=replace(llama.plan, objective=objective))
    sentence = "the output of the log-probabilities is not finite in rollout 0 of group "
    assert str(measure._first_non_finite(cold)).startswith(sentence)


@pytest.mark.parametrize("engine", ["loop", "stream", "prompt"])
def test_no_gradient_is_made_of_numbers_that_are_none(llama: PreparedStep, engine: str) -> None:
    with torch.no_grad():
        llama.policy.model.lm_head.weight.mul_(1e38).mul_(1e3)
    with pytest.raises(InputError, match="Step 1: the output of lm_head is not finite in rollout 0 of") as error:
        measure.measure_step(llama, engine=engine)
    assert error.value.cause == "overflow"


def test_a_gradient_that_overflows_where_the_loss_does_not_is_named_by_its_rollout(llama: PreparedStep) -> None:
    llama.policy.model.lm_head.weight.register_hook(lambda grad: grad * float("inf"))
    with pytest.raises(InputError, match="the gradient of rollout 0 of group g0 is not finite"):
        measure.measure_step(llama, engine="loop")


def test_ids_that_were_inferred_are_counted_in_a_note(llama: PreparedStep) -> None:
    inferred = [replace(sequence, inferred=True) for sequence in llama.plan.sequences]
    result = measure.measure_step(replace(llama, plan=replace(llama.plan, sequences=inferred)))
    assert result.num_inferred_ids == 6
    assert any(note.startswith("6 of 6 rollouts were re-tokenized from text") for note in result.notes)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_float32_rows_stay_within_the_documented_bound(name):
    """Each row against float64, one by one: float32 rows by plain backwards of the float32 model."""
    policy, groups = tiny_policy(name), tiny_groups()
    exact = naive_rows(policy, groups, 1.0)
    for rollout, truth in zip(rollouts_of(groups), exact, strict=True):
        row = flat_gradient(plain_logprobs(policy.model, rollout).sum(), list(policy.trainable.values()))
        assert relative(row.astype(np.float64), truth) < measure.FLOAT32_ROW_ERROR
    assert measured_step(policy, groups, DAPO).relative_row_error == measure.FLOAT32_ROW_ERROR


def test_bfloat16_rows_are_measured_against_float32_and_the_model_is_left_as_it_was():
    policy = policy_of(tiny_model("llama_untied_biases", dtype=torch.bfloat16))
    before = {name: parameter.clone() for name, parameter in policy.trainable.items()}
    step = measured_step(policy, tiny_groups(), DAPO, engine="stream")
    assert 1e-4 < step.relative_row_error < 0.2
    assert step.dtype == "bfloat16"
    for name, parameter in policy.model.named_parameters():
        assert parameter.dtype == torch.bfloat16
        assert torch.equal(parameter, before[name])
        assert parameter.grad is None


@pytest.mark.parametrize(
    ("device", "failures", "tried"),
    [(REMOTE, 1, [REMOTE.type, "cpu"]), (REMOTE, 2, [REMOTE.type, "cpu"]), (torch.device("cpu"), 1, ["cpu"])],
)
def test_the_row_that_float32_leaves_no_room_for_waits_on_the_cpu(device, failures, tried, monkeypatch):
    devices = []

    def full(prepared, row, kept_on):
        devices.append(kept_on.type)
        if len(devices) <= failures:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return 0.01

    policy, groups = policy_of(tiny_model("qwen3_gqa_norms", dtype=torch.bfloat16)), tiny_groups()
    prepared = replace(prepare_step(policy, groups, DAPO), policy=replace(policy, device=device))
    monkeypatch.setattr("gradscope.gradients.step.measure._row_difference", full)
    if failures == len(tried):
        with pytest.raises(InputError, match="Memory ran out on one rollout in float32"):
            measure.relative_row_error(prepared, [1.0])
    else:
        assert measure.relative_row_error(prepared, [1.0]) == 0.01
    assert devices == tried


@pytest.mark.parametrize(("name", "engine"), list(zip(ARCHITECTURES, ("loop", "stream") * 2, strict=True)))
def test_bfloat16_singular_values_are_within_the_floor_of_float64_under_any_advantages(name, engine):
    """Weyl: no singular value moves by more than |E|; the floor must hold it, for the step and for each group."""
    policy, groups = policy_of(tiny_model(name, dtype=torch.bfloat16)), tiny_groups(2, 4)
    step, exact = measured_step(policy, groups, DAPO, engine=engine), naive_rows(policy, groups, weight_of(groups))
    rng = np.random.default_rng(0)
    for rows in (slice(None), slice(0, 4), slice(4, 8)):
        for advantages in rng.normal(size=(5, len(exact[rows]))):
            weighted = advantages[:, None] * exact[rows]
            gram = advantages[:, None] * step.score_gram[rows, rows] * advantages
            truth = np.linalg.svd(weighted, compute_uv=False)
            singular = np.sqrt(np.clip(np.linalg.eigvalsh(gram)[::-1], 0, None))
            assert np.abs(singular - truth).max() < step.relative_row_error * np.linalg.norm(weighted)
