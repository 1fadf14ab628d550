from dataclasses import replace

import pytest
import torch
from transformers import (
    BertConfig,
    BertLMHeadModel,
    CohereConfig,
    CohereForCausalLM,
    GraniteConfig,
    GraniteForCausalLM,
    HyperCLOVAXConfig,
    HyperCLOVAXForCausalLM,
)

from gradscope.gradients.model.batches import Frame, TokenSequence
from gradscope.gradients.model.head import plain_head
from gradscope.gradients.plan.prepared_step import prepare_step
from gradscope.gradients.step.measure import measure_step
from gradscope.gradients.trained.assumptions import (
    Assumption,
    is_own_output,
    is_random,
    norm_under,
    other_assumptions,
    takes_random_numbers,
    trl_output,
    unchanged,
)
from gradscope.metrics.gram.geometry import batch_norm
from tests.gradients.adapters import adapted
from tests.gradients.models import DAPO, VOCAB, policy_of, tiny_experts, tiny_groups, tiny_model, tiny_policy

FROZEN = frozenset({"model.embed_tokens.weight", "model.norm.weight"})
TOLD = Assumption(padding_row=0)


def prepared_with(*rows: int | None):
    policy = replace(tiny_policy("llama_untied_biases"), padding_rows=rows)
    policy.model.get_input_embeddings().padding_idx = 0
    return prepare_step(policy, tiny_groups(), DAPO)


def test_every_other_way_is_tried_the_fewest_changes_first() -> None:
    assert other_assumptions(prepared_with(0, None), frozenset(), TOLD) == [Assumption(padding_row=None)]
    assert other_assumptions(prepared_with(0, None), FROZEN, TOLD) == [
        Assumption(padding_row=None),
        Assumption(padding_row=0, frozen=FROZEN),
        Assumption(padding_row=None, frozen=FROZEN),
    ]
    assert other_assumptions(prepared_with(), frozenset(), TOLD) == []


def test_a_token_that_no_rollout_reads_changes_nothing() -> None:
    prepared = prepared_with(0, None)
    rows = tuple(
        replace(
            of,
            prompt_ids=tuple(token or 1 for token in of.prompt_ids),
            completion_ids=tuple(token or 1 for token in of.completion_ids),
        )
        for of in prepared.plan.sequences
    )
    unread = replace(prepared, plan=replace(prepared.plan, sequences=rows))
    assert other_assumptions(unread, frozenset(), TOLD) == []


def test_each_assumption_has_the_norm_of_its_own_gram_matrix() -> None:
    prepared = prepared_with(0, None)
    every = [TOLD, *other_assumptions(prepared, FROZEN, TOLD)]
    found = dict(norm_under(prepared, every))
    norms = set()
    for assumption in every:
        policy = assumption.holds_for(prepared.policy)
        assert set(policy.trainable) == set(prepared.policy.trainable) - assumption.frozen
        gram = measure_step(replace(prepared, policy=policy), engine="loop")
        assert found[assumption] == pytest.approx(batch_norm(gram.logged_gram), rel=1e-5)
        norms.add(round(found[assumption], 6))
    assert len(norms) == 3  # a frozen embedding has no padding row to speak of
    whole = TOLD.holds_for(prepared.policy)
    assert all(parameter.requires_grad for parameter in whole.trainable.values())


def test_what_two_checkpoints_share_may_have_been_frozen() -> None:
    first, second = tiny_policy("llama_untied_biases"), tiny_policy("llama_untied_biases")
    assert unchanged(first, second) == frozenset()  # all of it: nothing was learned
    with torch.no_grad():
        for name, parameter in second.trainable.items():
            if name not in FROZEN:
                parameter.add_(1e-6)
    assert unchanged(first, second) == FROZEN


def test_what_is_assumed_is_said() -> None:
    assert list(TOLD.describe(TOLD)) == []
    (gradient,) = Assumption(padding_row=None).describe(TOLD)
    assert gradient.startswith("The embedding of the padding token 0 had a gradient: the folder does not tell")
    (none,) = Assumption(padding_row=4).describe(Assumption(padding_row=None))
    assert "token 4 had no gradient" in none
    (one,) = Assumption(padding_row=0, frozen=frozenset({"a.weight"})).describe(TOLD)
    assert one.startswith("a.weight was frozen: the same in two checkpoints")
    (two,) = Assumption(padding_row=0, frozen=FROZEN).describe(TOLD)
    assert two.startswith("model.embed_tokens.weight and 1 more parameters were frozen")


def test_an_adapters_padding_row_is_left_alone() -> None:
    policy = tiny_policy("llama_untied_biases", lora=True)
    row = policy.model.get_input_embeddings().padding_idx
    Assumption(padding_row=5).holds_for(policy)
    assert policy.model.get_input_embeddings().padding_idx == row


SEQUENCE = TokenSequence(
    group_id="g", sample=0, prompt_ids=(1, 5), completion_ids=(2, 3), mask=(True, True), inferred=False
)
SHAPE = {
    "vocab_size": VOCAB,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "pad_token_id": 0,
}


@pytest.mark.parametrize(
    "make",
    [
        lambda: tiny_model("llama_untied_biases"),
        lambda: tiny_model("gpt2_tied_conv1d"),
        lambda: tiny_model("gemma3_scaled"),
        lambda: adapted("rslora"),
        lambda: CohereForCausalLM(CohereConfig(**SHAPE, logit_scale=0.25, eos_token_id=1, bos_token_id=2)),
        lambda: GraniteForCausalLM(GraniteConfig(**SHAPE, logits_scaling=4.0)),
        lambda: HyperCLOVAXForCausalLM(HyperCLOVAXConfig(**SHAPE, logits_scaling=4.0)),
    ],
    ids=["llama", "gpt2", "gemma3", "an adapter", "a scale", "a divisor", "a factor of a divisor's name"],
)
def test_a_linear_head_with_its_scale_is_the_models_own(make):
    assert is_own_output(make().eval(), SEQUENCE)


def test_a_soft_cap_is_applied_as_the_configuration_says():
    model = tiny_model("gemma3_scaled")
    model.config.final_logit_softcapping = 0.5
    assert is_own_output(model, SEQUENCE)


def test_a_prediction_head_is_left_out():
    model = BertLMHeadModel(BertConfig(**SHAPE, is_decoder=True)).eval()
    assert not is_own_output(model, SEQUENCE)
    ids = torch.tensor([[1, 5, 2, 3]])
    own, hidden = model(input_ids=ids).logits, model.bert(input_ids=ids).last_hidden_state
    with trl_output(model):
        made, last = model(input_ids=ids).logits, model(input_ids=ids, logits_to_keep=2).logits
    torch.testing.assert_close(made, model.get_output_embeddings()(hidden))
    torch.testing.assert_close(last, made[:, -2:])
    assert torch.equal(model(input_ids=ids).logits, own)


def asked(model, *, without_dropout: bool = False, lora: bool = False) -> bool:
    prepared = prepare_step(policy_of(model, lora=lora), tiny_groups(), DAPO)
    before = torch.get_rng_state()
    found = is_random(prepared.policy, prepared.plan.sequences[0], without_dropout=without_dropout)
    assert torch.equal(torch.get_rng_state(), before)
    assert not any(module.training for module in model.modules())
    return found


@pytest.mark.parametrize("name", ["llama_untied_biases", "qwen3_gqa_norms", "gemma3_scaled"])
def test_nothing_is_drawn_without_dropout(name: str) -> None:
    assert not asked(tiny_model(name))


def test_dropout_of_modules_can_be_switched_off() -> None:
    """GPT-2 has a tenth of it by default."""
    assert asked(tiny_model("gpt2_tied_conv1d"))
    assert not asked(tiny_model("gpt2_tied_conv1d"), without_dropout=True)
    assert asked(adapted("dropout"), lora=True)
    assert not asked(adapted("dropout"), without_dropout=True, lora=True)


def test_dropout_that_a_layer_hands_to_a_function_stays_on() -> None:
    model = tiny_model("qwen3_gqa_norms")
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = 0.5
    assert asked(model, without_dropout=True)


def test_noise_of_a_router_is_drawn_in_training() -> None:
    model = tiny_experts("mixtral")
    assert not asked(model)
    for layer in model.model.layers:
        layer.mlp.jitter_noise = 0.5
    assert asked(model, without_dropout=True)


def test_the_shares_of_dropout_come_back() -> None:
    model = tiny_model("gpt2_tied_conv1d")
    asked(model, without_dropout=True)
    assert {module.p for module in model.modules() if isinstance(module, torch.nn.Dropout)} == {0.1}


def test_a_few_tokens_are_enough() -> None:
    model = tiny_model("gpt2_tied_conv1d")
    plain_head(model)  # it runs the model, once and for all
    widths: list[int] = []
    model.transformer.wte.register_forward_pre_hook(lambda module, given: widths.append(given[0].shape[1]))
    policy = policy_of(model)
    sequence = prepare_step(policy, tiny_groups(), DAPO).plan.sequences[0]
    long = replace(sequence, prompt_ids=(1,) * 15, completion_ids=(2,) * 17, mask=(True,) * 17)
    framed = replace(long, frame=Frame(prompt_width=15, completion_width=17, padding_id=0))
    for asked_about, width in ((long, 31), (framed, 32)):
        widths.clear()
        assert is_random(policy, asked_about, without_dropout=False)
        assert takes_random_numbers(policy, asked_about, without_dropout=False)
        assert set(widths) == {width}
