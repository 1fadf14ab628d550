import weakref
from types import SimpleNamespace

import pytest
import torch

from gradscope.errors import InputError
from gradscope.gradients.engines import stream
from gradscope.gradients.model.budget import (
    TokenBudget,
    _tokens_that_fit,
    first_batch_tokens,
    is_out_of_memory,
    names_out_of_memory,
    recomputed_tokens,
)
from gradscope.gradients.plan.objective import Objective
from gradscope.gradients.plan.prepared_step import prepare_step
from gradscope.gradients.step.directions import measure_weight_spectra
from tests.gradients.models import DAPO, measured_step, relative, tiny_groups, tiny_policy

CPU_MESSAGE = "[enforce fail at alloc_cpu.cpp:124] . DefaultCPUAllocator: can't allocate memory: you tried to allocate"
ERRORS = [torch.OutOfMemoryError("CUDA out of memory."), RuntimeError(CPU_MESSAGE), MemoryError()]


def limit_memory(model, most_tokens: int) -> list[int]:
    """Let forward passes of more tokens fail as PyTorch does; returns the sizes that were tried."""
    tried: list[int] = []

    def refuse(module, arguments, keywords):
        size = keywords["input_ids"].numel()
        tried.append(size)
        if size > most_tokens:
            raise ERRORS[0]

    model.register_forward_pre_hook(refuse, with_kwargs=True)
    return tried


@pytest.mark.slow
def test_batches_are_halved_until_they_fit_and_that_is_noted():
    assert all(map(is_out_of_memory, ERRORS))
    policy, groups, output = tiny_policy("qwen3_gqa_norms"), tiny_groups(2, 4), []
    full = measured_step(policy, groups, DAPO, engine="stream")
    tried = limit_memory(policy.model, 24)
    step = measured_step(policy, groups, DAPO, notice=output.append, engine="stream", verify="all")
    assert tried[0] > 24
    assert step.batch_tokens <= 24
    assert step.verification.num_batches > 1
    assert relative(step.gram, full.gram) < 1e-5
    assert step.coverage == 1.0
    assert output[0].startswith("Memory ran out at 4096 tokens a batch; went on with ")
    assert (step.notes, full.notes) == (tuple(output), ())


def test_memory_that_runs_out_in_a_later_batch_leaves_nothing_of_the_first(monkeypatch):
    policy, groups = tiny_policy("llama_untied_biases"), tiny_groups(2, 4)
    full = measured_step(policy, groups, DAPO, engine="stream")
    passes: list[int] = []

    def refuse_the_second(module, arguments, keywords):
        passes.append(keywords["input_ids"].numel())
        if len(passes) == 2:
            raise ERRORS[0]

    policy.model.register_forward_pre_hook(refuse_the_second, with_kwargs=True)
    monkeypatch.setattr("tests.gradients.models.first_batch_tokens", lambda policy: 40)
    step = measured_step(policy, groups, DAPO, engine="stream")
    assert step.notes == ("Memory ran out at 40 tokens a batch; went on with 20.",)
    assert step.coverage == 1.0
    assert relative(step.gram, full.gram) < 1e-5


def test_one_rollout_that_does_not_fit_is_an_error():
    policy, groups = tiny_policy("qwen3_gqa_norms"), tiny_groups(2, 4)
    longest = max(len(r.prompt_ids) + len(r.completion_ids) for group in groups for r in group.rollouts)
    limit_memory(policy.model, longest - 1)
    with pytest.raises(InputError, match=f"Memory ran out on one rollout of {longest} tokens alone") as caught:
        measured_step(policy, groups, DAPO, engine="stream")
    assert "--device cpu" in (caught.value.hint or "")
    with pytest.raises(InputError, match=f"one rollout of at most {longest} tokens, with 8 rows kept"):
        measured_step(policy, groups, DAPO, engine="loop")
    assert all(parameter.requires_grad for parameter in policy.trainable.values())
    assert not any(module._forward_hooks for module in policy.model.modules())


def test_a_number_of_tokens_that_was_asked_for_is_not_halved():
    policy, groups = tiny_policy("qwen3_gqa_norms"), tiny_groups(2, 4)
    limit_memory(policy.model, 24)
    with pytest.raises(InputError, match="Memory ran out at 40 tokens a batch") as caught:
        measured_step(policy, groups, DAPO, batch_tokens=40, engine="stream")
    assert caught.value.hint == "Use --batch-tokens auto, or a number below 40."


@pytest.mark.slow
def test_the_reference_and_the_self_check_of_loop_are_halved_too():
    objective = Objective(loss_type="dapo", beta=0.1)
    policy, groups, output = tiny_policy("qwen3_gqa_norms", lora=True), tiny_groups(2, 4), []
    full = measured_step(policy, groups, objective)
    tried = limit_memory(policy.model.get_base_model(), 24)
    step = measured_step(policy, groups, objective, notice=output.append)
    assert max(tried) > 24
    assert step.engine == "loop"
    assert relative(step.gram, full.gram) < 1e-5
    assert output


def test_spectra_of_weights_are_halved_too():
    policy, groups = tiny_policy("gpt2_tied_conv1d"), tiny_groups()
    expected = measure_weight_spectra(prepare_step(policy, groups, DAPO))
    limit_memory(policy.model, 20)
    budget = TokenBudget(4096)
    for first, other in zip(measure_weight_spectra(prepare_step(policy, groups, DAPO, budget)), expected, strict=True):
        assert relative(first.singular_values, other.singular_values) < 1e-5
    assert budget.tokens <= 20


def test_other_errors_pass_through():
    budget = TokenBudget(100)
    for error in (RuntimeError("shapes do not match"), KeyError("x")):
        with pytest.raises(type(error)):
            budget.fit([5, 5], lambda tokens, error=error: (_ for _ in ()).throw(error))
        assert not is_out_of_memory(error)
    with pytest.raises(RuntimeError, match="shapes"), names_out_of_memory("step 1"):
        raise RuntimeError("shapes do not match")
    assert budget.tokens == 100


def test_what_a_failed_attempt_held_is_free_before_the_next():
    held: list[weakref.ref[torch.Tensor]] = []

    def attempt(tokens: int) -> int:
        assert all(reference() is None for reference in held)
        large = torch.zeros(tokens)
        held.append(weakref.ref(large))
        if tokens > 10:
            raise torch.OutOfMemoryError(f"{large.shape}")
        return tokens

    assert TokenBudget(64).fit([4] * 20, attempt) == 8
    assert len(held) == 4


def test_the_guess_on_cuda_follows_from_what_is_free(monkeypatch):
    policy = tiny_policy("llama_untied_biases")
    shape = {"vocab_size": 0, "num_layers": 2, "width": 16, "itemsize": 4}
    assert first_batch_tokens(policy) == 4096
    remote = SimpleNamespace(
        device=torch.device("cuda"), model=policy.model, vocab_size=policy.vocab_size, dtype=torch.float32
    )
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (3_000_000, 9_000_000))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 2_000_000)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 1_000_000)
    assert first_batch_tokens(remote) == _tokens_that_fit(4_000_000, **shape)
    assert _tokens_that_fit(8_000_000, **shape) == pytest.approx(2 * _tokens_that_fit(4_000_000, **shape), abs=1)
    assert _tokens_that_fit(1, **shape) == 1
    assert recomputed_tokens(policy) == 0  # a CPU stores what a GPU would rather compute again
    wide = {"vocab_size": 0, "num_layers": 36, "width": 4096, "itemsize": 2}
    stored, recomputed = (_tokens_that_fit(20 * 2**30, **wide, recompute=recompute) for recompute in (False, True))
    assert recomputed > 10 * stored


def limit_kept(monkeypatch, max_tokens: int) -> None:
    """Let passes fail that keep the activations of more tokens than this."""
    full = stream.capture_batch

    def refuse(prepared, batch, capture, *arguments):
        if not capture.recompute and batch.input_ids.numel() > max_tokens:
            raise ERRORS[0]
        return full(prepared, batch, capture, *arguments)

    monkeypatch.setattr(stream, "capture_batch", refuse)


@pytest.mark.slow
def test_one_rollout_that_does_not_fit_has_its_layers_run_again(monkeypatch):
    policy, groups, output = tiny_policy("qwen3_gqa_norms"), tiny_groups(2, 4), []
    full = measured_step(policy, groups, DAPO, engine="stream")
    limit_kept(monkeypatch, 3)
    step = measured_step(policy, groups, DAPO, engine="stream", notice=output.append)
    assert relative(step.gram, full.gram) < 1e-6
    assert output[-1].endswith("went on with layers that run again in the backward pass.")
    fixed = measured_step(policy, groups, DAPO, engine="stream", batch_tokens=1)
    assert relative(fixed.gram, full.gram) < 1e-6


def test_one_batch_of_layers_that_run_again_is_better_than_several_where_that_is_said():
    tried = []
    budget = TokenBudget(20)
    budget.fit([5] * 8, lambda tokens: tried.append((tokens, budget.recompute)), recomputed=40)
    assert tried == [(40, True)]
    for limit, fixed in ((39, False), (40, True)):
        other = TokenBudget(20, fixed=fixed)
        other.fit([5] * 8, lambda tokens, budget=other: tried.append((tokens, budget.recompute)), recomputed=limit)
    assert tried[1:] == [(20, False), (20, False)]


def test_whole_logits_bound_a_batch_and_so_do_activations(monkeypatch):
    policy = tiny_policy("llama_untied_biases")
    monkeypatch.setattr("gradscope.gradients.model.budget.CPU_BYTES", 100 * 34 * 2 * 16 * 4)
    assert first_batch_tokens(policy) == 100
    monkeypatch.setattr("gradscope.gradients.model.budget.plain_head", lambda model: None)
    monkeypatch.setattr("gradscope.gradients.model.batches.LOGIT_BYTES", 30 * 4 * policy.vocab_size)
    assert first_batch_tokens(policy) == 30
