from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from transformers import AutoModelForCausalLM, BloomConfig, GPTNeoConfig, LlamaConfig, OPTConfig

from gradscope.errors import InputError, UsageError
from gradscope.gradients.model.batches import TrainerPadding
from gradscope.gradients.model.budget import TokenBudget
from gradscope.gradients.model.head import plain_head
from gradscope.gradients.model.policy import MeasuredPolicy
from gradscope.gradients.plan.objective import Objective
from gradscope.gradients.plan.prepared_step import (
    _padding_id_of,
    _with_status,
    prepare_step,
    pretrained_length,
    scales_with_width,
    see_batch,
)
from gradscope.gradients.step.measure import measure_step
from gradscope.gradients.tokens.measure import measure_rollout_tokens, measure_signals, measure_tokens
from gradscope.reason import Reason
from gradscope.rollouts.groups import Rollout
from gradscope.rollouts.run import TrlVersion
from tests.diagnostics.inputs.test_recomputed import scaled_model
from tests.gradients.models import (
    DAPO,
    VOCAB,
    flat_gradient,
    perturbed,
    plain_logprobs,
    policy_of,
    prepared,
    rollouts_of,
    tiny_groups,
    tiny_model,
    tiny_policy,
    weight_of,
)

WITH_KL = replace(DAPO, beta=0.1)


@pytest.mark.slow
@pytest.mark.parametrize(
    "question", [measure_tokens, partial(measure_signals, signal="hidden", max_tokens=512, seed=0)]
)
def test_the_reference_runs_once_for_all_that_is_asked_of_a_step(question):
    reference, passes = tiny_model("gpt2_tied_conv1d"), []
    plain_head(reference)  # it runs the model, once and for all
    reference.register_forward_hook(lambda *_: passes.append(1))
    prepared = prepare_step(policy_of(tiny_model("gpt2_tied_conv1d"), reference=reference), tiny_groups(), WITH_KL)
    gram = measure_step(prepared)
    assert question(prepared, gram)
    assert measure_rollout_tokens(prepared, gram, [0])
    assert len(passes) == 1  # six short rollouts are one batch


def test_the_reference_holds_its_own_log_probabilities_where_there_is_a_kl_term():
    reference, groups = tiny_model("llama_untied_biases"), tiny_groups(1, 2)
    reference.lm_head.weight.data.mul_(0.5)
    policy = policy_of(tiny_model("llama_untied_biases"), reference=reference)
    plan = prepare_step(policy, groups, WITH_KL).plan
    for rollout, completion in zip(groups[0].rollouts, plan.completions, strict=True):
        np.testing.assert_allclose(completion.reference, plain_logprobs(reference, rollout).detach(), rtol=1e-5)
    plan = prepare_step(policy, groups, DAPO).plan
    assert all(completion.reference is None for completion in plan.completions)


def test_batches_hold_the_rows_that_are_asked_for_within_the_budget():
    prepared = prepare_step(tiny_policy("llama_untied_biases"), tiny_groups(2, 3), DAPO, TokenBudget(7))
    batches = prepared.batches([4, 1, 2], 16)
    assert sorted(row for batch in batches for row in batch.rows) == [1, 2, 4]
    assert all(len(batch.rows) == 1 or batch.input_ids.numel() <= 16 for batch in batches)
    assert prepared.budget.tokens == 7


def test_groups_of_several_steps_are_refused():
    policy = tiny_policy("llama_untied_biases")
    with pytest.raises(ValueError, match=r"expected the groups of one step, got steps \[1, 2\]"):
        prepare_step(policy, [*tiny_groups(), *tiny_groups(step=2)], DAPO)
    with pytest.raises(ValueError, match=r"got steps \[\]"):
        prepare_step(policy, [], DAPO)


def test_a_loss_that_cannot_be_formed_is_refused_with_its_reason():
    reason = Reason("loss_unknown", "why not")
    with pytest.raises(InputError, match="Step 1: the trainer's gradient cannot be formed: why not") as caught:
        prepare_step(tiny_policy("llama_untied_biases"), tiny_groups(), Objective(cannot=reason))
    assert caught.value.hint == reason.advice


def test_the_check_batch_has_another_order_and_length_than_any_of_an_engine():
    step = prepared(tiny_policy("qwen3_gqa_norms"), tiny_groups(), DAPO)
    lengths = step.plan.lengths
    (full,) = step.batches(range(6), 4096)
    check = step.check_batch(full.rows)
    assert (check.rows, check.length) == (full.rows[::-1], max(lengths) + 1)
    shortest = int(np.argmin(lengths))
    assert step.check_batch([shortest]).length not in lengths
    assert step.check_batch([shortest]).spans == ((0, lengths[shortest]),)
    framed = prepared(replace(tiny_policy("gpt2_tied_conv1d"), padding=TrainerPadding()), tiny_groups(), DAPO).framed()
    assert framed.check_batch([0, 1]).length == framed.batch([0, 1]).length  # it stays in the trainer's frame
    assert framed.check_batch([0, 1]).rows == (1, 0)


SHAPE = {"vocab_size": VOCAB, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
NEO = {
    **{"vocab_size": VOCAB, "hidden_size": 16, "num_layers": 2, "num_heads": 2},
    "attention_types": [[["global", "local"], 1]],
}


def built(config) -> MeasuredPolicy:
    torch.default_generator.manual_seed(0)
    model = perturbed(AutoModelForCausalLM.from_config(config))
    return replace(policy_of(model), padding=TrainerPadding())


def rope(kind: str) -> LlamaConfig:
    parameters = {"rope_type": kind, "rope_theta": 10000.0, "factor": 2.0}
    return LlamaConfig(**SHAPE, intermediate_size=24, max_position_embeddings=8, rope_parameters=parameters)


CASES = {
    "learned positions": (lambda: replace(tiny_policy("gpt2_tied_conv1d"), padding=TrainerPadding()), True),
    "learned, local attention": (lambda: built(GPTNeoConfig(**NEO)), True),
    "positions by the mask": (lambda: built(OPTConfig(**SHAPE, ffn_dim=24, word_embed_proj_dim=16)), False),
    "slopes": (lambda: built(BloomConfig(vocab_size=VOCAB, hidden_size=16, n_layer=2, n_head=2)), False),
    "rotary, sliding": (lambda: replace(tiny_policy("gemma3_scaled"), padding=TrainerPadding()), False),
    "rotary, linear": (lambda: built(rope("linear")), False),
    "rotary, dynamic": (lambda: built(rope("dynamic")), True),
}


@pytest.mark.parametrize("name", CASES)
def test_the_model_itself_says_whether_it_sees_the_padding(name: str) -> None:
    make, framed = CASES[name]
    policy = make()
    prepared = prepare_step(policy, tiny_groups(), DAPO)
    assert all((sequence.frame is not None) == framed for sequence in prepared.plan.sequences)
    assert scales_with_width(policy.model) == (name == "rotary, dynamic")


@pytest.mark.parametrize("engine", ["loop", "stream"])
@pytest.mark.parametrize("name", ["learned positions", "learned, local attention", "rotary, dynamic"])
def test_rows_are_those_of_the_padded_batch(name: str, engine: str) -> None:
    """The oracle: TRL's padded rows through the model, one plain backward pass a rollout."""
    policy, groups = CASES[name][0](), tiny_groups()
    gram = measure_step(prepare_step(policy, groups, DAPO), engine=engine)
    rows = rollouts_of(groups)
    prompts, completions = max(len(r.prompt_ids) for r in rows), max(len(r.completion_ids) for r in rows)
    gradients = []
    for row in rows:
        left, right = prompts - len(row.prompt_ids), completions - len(row.completion_ids)
        ids = torch.tensor([[0] * left + [*row.prompt_ids, *row.completion_ids] + [0] * right])
        mask = torch.tensor([[0] * left + [1] * (ids.shape[1] - left - right) + [0] * right])
        logprobs = policy.model(input_ids=ids, attention_mask=mask).logits[0, prompts - 1 : -1].log_softmax(-1)
        chosen = logprobs[range(len(row.completion_ids)), list(row.completion_ids)]
        gradient = flat_gradient(weight_of(groups) * chosen.sum(), list(policy.trainable.values()))
        gradients.append(gradient.astype(np.float64))
    expected = np.array(gradients) @ np.array(gradients).T
    np.testing.assert_allclose(gram.score_gram, expected, rtol=2e-5, atol=2e-5 * np.abs(expected).max())


def test_rounding_depends_on_the_frame_even_where_the_output_does_not() -> None:
    policy = replace(tiny_policy("qwen3_gqa_norms"), padding=TrainerPadding())
    prepared = prepare_step(policy, tiny_groups(), DAPO)
    framed = prepared.framed()
    assert all(sequence.frame is not None for sequence in framed.plan.sequences)
    assert framed.framed() is framed
    unpadded = replace(prepared, policy=replace(policy, padding=None))
    assert unpadded.framed() is unpadded
    single = prepare_step(replace(tiny_policy("gpt2_tied_conv1d"), padding=TrainerPadding()), tiny_groups(1, 1), DAPO)
    assert single.plan.sequences[0].frame is None  # a sequence without padding has none to see


def test_a_shared_prompt_cannot_stand_in_a_frame() -> None:
    policy = replace(tiny_policy("gpt2_tied_conv1d"), padding=TrainerPadding())
    with pytest.raises(UsageError, match="sees the padding before it"):
        measure_step(prepare_step(policy, tiny_groups(), DAPO), engine="prompt")


def test_the_padding_token_is_the_tokenizers_else_that_of_the_end_else_the_models() -> None:
    class Tokenizer:
        pad_token_id, eos_token_id = 7, 3

    policy = policy_of(tiny_model("llama_untied_biases"))
    assert _padding_id_of(replace(policy, tokenizer=Tokenizer())) == 7
    Tokenizer.pad_token_id = None
    assert _padding_id_of(replace(policy, tokenizer=Tokenizer())) == 3
    assert _padding_id_of(policy) == policy.model.config.pad_token_id
    Tokenizer.eos_token_id = VOCAB + 1  # a tokenizer may know tokens that the model does not
    policy.model.config.pad_token_id = None
    assert _padding_id_of(replace(policy, tokenizer=Tokenizer())) == 0


def test_a_model_keeps_the_frequencies_of_the_longest_batch() -> None:
    ids, fresh, model = torch.arange(12)[None] % 16, scaled_model(), scaled_model()
    assert (pretrained_length(fresh), pretrained_length(scaled_model("linear"))) == (8, None)
    see_batch(model, 20)
    with torch.no_grad():
        assert not torch.allclose(fresh(input_ids=ids).logits, model(input_ids=ids).logits, atol=1e-5)


ROLLOUT = Rollout(group_id="g", sample=0, row=0, prompt="p", completion="c", reward=1.0, completion_ids=(7, 5))
MASKING = Objective(mask_truncated=True)
NEW, OLD = (replace(MASKING, trl=TrlVersion(numbers)) for numbers in ((1, 15), (1, 14)))


def policy(eos=3, pad=0, declared=None):
    tokenizer = SimpleNamespace(eos_token_id=eos, pad_token_id=pad)
    return SimpleNamespace(
        tokenizer=tokenizer, model=SimpleNamespace(generation_config=SimpleNamespace(eos_token_id=declared))
    )


def status(last, objective=MASKING, **ends):
    return _with_status(replace(ROLLOUT, completion_ids=(7, last)), policy(**ends), objective).status


def test_a_completion_ends_with_the_end_of_a_sequence_or_padding():
    assert [status(last) for last in (3, 0, 5)] == ["completed", "completed", "truncated"]
    assert status(3, pad=None) == "completed"
    with pytest.raises(InputError, match="no tokenizer with an end-of-sequence token"):
        status(3, eos=None)


def test_what_the_generation_configuration_declares_ends_since_a_version():
    assert status(9, NEW, declared=[3, 9]) == "completed"
    assert status(9, NEW, declared=9) == "completed"
    assert status(9, OLD, declared=[3, 9]) == "truncated"
    assert status(3, declared=[3, 9]) == "completed"  # of any version, as it is the tokenizer's, too
    with pytest.raises(InputError, match="whether token 9 ends a completion depends on TRL's version") as caught:
        status(9, declared=[3, 9])
    assert "trl_version" in caught.value.hint
    assert caught.value.cause == "settings_unknown"


def test_nothing_is_changed_that_is_known_or_not_asked_for():
    reported = replace(ROLLOUT, status="completed")
    text = replace(ROLLOUT, completion_ids=None)
    assert _with_status(reported, policy(), MASKING) is reported
    assert _with_status(text, policy(), MASKING) is text
    assert _with_status(ROLLOUT, policy(), Objective()) is ROLLOUT
