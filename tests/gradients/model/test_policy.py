import json
import math
import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from msgspec.structs import replace
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from torch import nn

from gradscope.errors import InputError, UsageError
from gradscope.gradients.model.batches import TrainerPadding
from gradscope.gradients.model.policy import (
    TrainedDtypes,
    _built_for,
    _longest_sequence,
    _other_padding,
    load_measured_policy,
    padding_row,
    token_embedding,
    token_sequences,
)
from gradscope.rollouts.groups import Rollout, RolloutGroup
from gradscope.rollouts.run import WeightsRef
from tests.gradients.adapters import adapted
from tests.gradients.models import DAPO, VOCAB, measured_step, tiny_groups, tiny_model, tiny_policy, write_tokenizer


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    tiny_model("llama_untied_biases").save_pretrained(folder)
    return folder


@pytest.fixture
def model(saved, tmp_path) -> Path:
    """A copy that a test may break."""
    return shutil.copytree(saved, tmp_path, dirs_exist_ok=True)


@pytest.fixture(scope="module")
def adapter(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("adapter")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tiny_model("llama_untied_biases", lora=True).save_pretrained(folder)
    return folder


def full(path: Path) -> WeightsRef:
    return WeightsRef(num_updates=0, path=path, kind="full")


def lora(path: Path, base: str | None) -> WeightsRef:
    return WeightsRef(num_updates=0, path=path, kind="adapter", base=base)


def rewrite(path: Path, change) -> None:
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, metadata={"format": "pt"})


@pytest.mark.parametrize("name", ["qwen3_gqa_norms", "llama_untied_biases"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_output_layer_in_float32_keeps_its_digits_among_coarser_weights(tmp_path, name, dtype):
    tiny_model(name).save_pretrained(tmp_path)
    head = load_measured_policy(full(tmp_path)).model.lm_head.weight
    trained = TrainedDtypes(weights="bfloat16", float32_head=True)
    policy = load_measured_policy(full(tmp_path), dtype=dtype, trained=trained)
    assert torch.equal(policy.model.lm_head.weight, head)
    assert policy.model.model.embed_tokens.weight.dtype == (torch.float32 if name.startswith("qwen3") else policy.dtype)
    inner = policy.model.model.layers[0].mlp.up_proj.weight
    assert torch.equal(inner, inner.bfloat16().to(policy.dtype))
    assert policy.model(torch.tensor([[1, 2, 3]])).logits.dtype == torch.float32


def test_a_full_model_trains_every_parameter(saved):
    policy = load_measured_policy(full(saved), device="cpu")
    assert policy.num_parameters == sum(p.numel() for p in policy.model.parameters())
    assert (policy.kind, policy.dtype, policy.vocab_size) == ("full", torch.float32, VOCAB)
    assert policy.tokenizer is None
    assert not policy.model.training


def test_an_adapter_trains_only_itself_and_its_reference_is_its_base(saved, adapter):
    policy, ids = load_measured_policy(lora(adapter, str(saved)), device="cpu"), torch.tensor([[1, 2, 3]])
    assert all("lora_" in name for name in policy.trainable)
    with policy.as_reference() as reference:
        logits = reference(ids).logits
    assert torch.equal(logits, load_measured_policy(full(saved), device="cpu").model(ids).logits)


def test_the_reference_of_a_full_model_is_the_initial_one(saved, model):
    rewrite(model / "model.safetensors", lambda t: t["lm_head.weight"].mul_(2))
    policy = load_measured_policy(full(model), device="cpu", reference=[(full(saved), 1.0)])
    with policy.as_reference() as reference:
        assert torch.equal(reference.lm_head.weight * 2, policy.model.lm_head.weight)
        assert not any(p.requires_grad for p in reference.parameters())


def test_a_reference_that_would_be_mixed_from_two_models_is_refused(saved, tmp_path):
    tiny_model("qwen3_gqa_norms").save_pretrained(tmp_path)
    with pytest.raises(InputError, match="is another model than") as caught:
        load_measured_policy(full(saved), device="cpu", reference=[(full(tmp_path), 1.0), (full(saved), 0.5)])
    assert caught.value.cause == "reference_missing"


def test_the_reference_of_a_continued_adapter_is_the_adapter_it_started_from(saved, adapter, tmp_path):
    shutil.copytree(adapter, tmp_path, dirs_exist_ok=True)
    rewrite(tmp_path / "adapter_model.safetensors", lambda t: [t[name].zero_() for name in t if "lora_B" in name])
    fresh, trained = lora(tmp_path, str(saved)), lora(adapter, str(saved))
    assert load_measured_policy(trained, device="cpu", reference=[(fresh, 1.0)]).reference is None
    policy = load_measured_policy(fresh, device="cpu", reference=[(trained, 1.0)])
    ids = torch.tensor([[1, 2, 3]])
    with policy.as_reference() as reference:
        expected = load_measured_policy(trained, device="cpu").model(ids).logits
        assert torch.equal(reference(ids).logits, expected)
    assert not torch.equal(policy.model(ids).logits, expected)


def test_the_model_that_training_started_from_says_which_token_pads(saved, model):
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "pad_token_id": None}))
    saved_policy, policy = load_measured_policy(full(saved)), load_measured_policy(full(saved), first=full(model))
    assert saved_policy.model.get_input_embeddings().padding_idx == 0
    assert policy.model.get_input_embeddings().padding_idx is None
    assert (saved_policy.padding_rows, policy.padding_rows) == ((0, None), (None, 0))


@pytest.mark.parametrize(
    ("name", "row", "candidates"),
    [
        ("gpt2_tied_conv1d", None, (None,)),  # a class that knows no padding row
        ("gemma3_scaled", 5, (5, None, 0)),  # 0 is the row of the architecture's defaults
    ],
)
def test_the_padding_rows_that_a_class_may_have_had(name, row, candidates, tmp_path):
    model = tiny_model(name)
    model.config.pad_token_id = 5  # as TRL names the tokenizer's, in every folder that is saved afterwards
    model.save_pretrained(tmp_path)
    policy = load_measured_policy(full(tmp_path), first=full(tmp_path))
    assert (policy.model.get_input_embeddings().padding_idx, policy.padding_rows) == (row, candidates)
    tied = model.get_output_embeddings().weight
    assert sum(parameter.shape == tied.shape for parameter in policy.trainable.values()) == 1  # it counts once


def test_a_token_beyond_the_vocabulary_is_no_row():
    model = tiny_model("gemma3_scaled")
    assert _other_padding(model, 5, [1, 900]) == [0, 0, 1]
    assert _other_padding(model, None, [1]) == []
    model.set_input_embeddings(nn.Embedding(0, 16))
    assert _other_padding(model, 5, [1]) == []


def test_weights_of_another_dtype_are_rounded_to_the_trainers_and_an_adapter_is_not(saved, adapter):
    exact = load_measured_policy(full(saved))
    rounded = load_measured_policy(full(saved), trained=TrainedDtypes(weights="bfloat16"))
    for name, parameter in exact.trainable.items():
        assert torch.equal(rounded.trainable[name], parameter.to(torch.bfloat16).float())
    adapted_model = load_measured_policy(lora(adapter, str(saved)), trained=TrainedDtypes(weights="bfloat16")).model
    for name, parameter in adapted_model.named_parameters():
        assert ("lora_" in name) != torch.equal(parameter, parameter.to(torch.bfloat16).float()), name


@pytest.mark.parametrize("engine", ["loop", "stream"])
def test_an_adapter_is_as_exact_as_the_base_under_it(adapter, saved, engine):
    """PEFT keeps it in float32; held to float32's tolerance, every such run was refused."""
    policy = load_measured_policy(lora(adapter, str(saved)), dtype="bfloat16")
    assert {parameter.dtype for parameter in policy.trainable.values()} == {torch.float32}
    measurement = measured_step(policy, tiny_groups(), DAPO, engine=engine)
    assert (measurement.dtype, measurement.precision) == ("bfloat16", "reduced")
    assert measurement.relative_row_error > 1e-4


@pytest.mark.parametrize("base", [None, "/nowhere/base", "../gone"])
def test_an_adapter_without_its_base_is_refused(adapter, base):
    with pytest.raises(InputError, match="is an adapter, and its base model") as caught:
        load_measured_policy(lora(adapter, base))
    assert "--model" in caught.value.hint


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"peft_type": "PROMPT_TUNING", "num_virtual_tokens": 4}, "kind PROMPT_TUNING, .* it puts prompts before"),
        ({"peft_type": "XLORA", "adapters": {"0": "elsewhere"}}, "kind XLORA, .* it mixes adapters from other folders"),
    ],
)
def test_an_adapter_outside_the_layers_is_refused_by_its_name(saved, tmp_path, config, reason):
    (tmp_path / "adapter_config.json").write_text(json.dumps({"task_type": "CAUSAL_LM", **config}))
    with pytest.raises(InputError, match=reason) as caught:
        load_measured_policy(lora(tmp_path, str(saved)))
    assert "inside the layers" in caught.value.hint
    assert caught.value.cause == "model_unsupported"


@pytest.mark.parametrize(
    ("name", "size", "reason"),
    [
        ("", 0, r"no readable adapter_config\.json"),
        ("adapter_model.bin", 0, "a pickle"),
        ("weights.safetensors", 0, "has no adapter_model"),
        ("adapter_model.safetensors", 100, "not a readable safetensors file"),
    ],
)
def test_an_adapter_in_another_or_a_truncated_file_is_refused(saved, adapter, tmp_path, name, size, reason):
    if name:
        (tmp_path / "adapter_config.json").write_bytes((adapter / "adapter_config.json").read_bytes())
        (tmp_path / name).write_bytes((adapter / "adapter_model.safetensors").read_bytes()[:size])
    with pytest.raises(InputError, match=reason):
        load_measured_policy(lora(tmp_path, str(saved)))


def test_an_adapter_of_another_architecture_or_for_other_modules_is_refused(saved, adapter, tmp_path):
    tiny_model("qwen3_gqa_norms").save_pretrained(tmp_path / "base")
    with pytest.raises(InputError, match="the adapter does not fit the base model"):
        load_measured_policy(lora(adapter, str(tmp_path / "base")), device="cpu")
    shutil.copytree(adapter, tmp_path, dirs_exist_ok=True)
    rewrite(tmp_path / "adapter_model.safetensors", lambda t: t.pop(next(iter(t))))
    with pytest.raises(InputError, match="has no counterpart"):
        load_measured_policy(lora(tmp_path, str(saved)), device="cpu")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("pytorch_model.bin", "a pickle, which is never loaded"),
        ("x.txt", "no weights"),
        (None, "does not load as a causal language model"),
    ],
)
def test_weights_outside_safetensors_are_refused(model, name, reason):
    (model / "model.safetensors").unlink()
    if name:
        (model / name).write_bytes(b"")
    with pytest.raises(InputError, match=reason):
        load_measured_policy(full(model if name else model / "absent"))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            lambda tensors: tensors.update({"lm_head.weight": torch.zeros(VOCAB, 5)}),
            r"lm_head\.weight has the shape \(23, 5\) and the model wants \(23, 16\)",
        ),
        (lambda tensors: tensors.pop("model.norm.weight"), r"the tensor model\.norm\.weight is missing"),
        *(
            (lambda tensors, value=value: tensors["model.norm.weight"][3].fill_(value), "values that are not finite")
            for value in (math.nan, math.inf, -math.inf)
        ),
    ],
)
def test_a_tensor_that_cannot_be_is_named(model, change, reason):
    rewrite(model / "model.safetensors", change)
    with pytest.raises(InputError, match=reason):
        load_measured_policy(full(model))


@pytest.mark.parametrize("num_tokens", [VOCAB, VOCAB + 1])
def test_a_tokenizer_may_have_tokens_that_the_model_has_no_row_for(model, num_tokens):
    write_tokenizer(model, num_tokens)
    tokenizer = load_measured_policy(full(model), device="cpu").tokenizer
    assert (len(tokenizer), tokenizer.eos_token_id) == (num_tokens, 1)


def test_unknown_device_and_dtype_are_refused(saved, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for options, reason in (
        ({"device": "tpu"}, "no device 'tpu'"),
        ({"dtype": "int8"}, "no dtype 'int8'"),
        ({"device": "cuda"}, "sees no CUDA device"),
    ):
        with pytest.raises(UsageError, match=reason):
            load_measured_policy(full(saved), **options)


def test_in_float32_a_policy_has_the_same_numbers(saved, adapter) -> None:
    for weights in (full(saved), lora(adapter, str(saved))):
        policy = load_measured_policy(weights, device="cpu", dtype="bfloat16")
        upcast = policy.in_float32()
        assert (policy.dtype, upcast.dtype) == (torch.bfloat16, torch.float32)
        assert upcast.trainable.keys() == policy.trainable.keys()
        for rough, exact in zip(policy.model.parameters(), upcast.model.parameters(), strict=True):
            assert torch.equal(rough.float(), exact)


SHAPE = {"vocab_size": VOCAB, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "pad_token_id": 0}


def with_trainable_tokens() -> Any:
    config = LoraConfig(r=2, target_modules=["q_proj"], trainable_token_indices=[3, 4], task_type="CAUSAL_LM")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return get_peft_model(tiny_model("llama_untied_biases"), config)


@pytest.mark.parametrize(
    ("make", "row"),
    [
        (lambda: adapted("embedding"), 0),
        (lambda: adapted("saved embedding and head"), 0),
        (with_trainable_tokens, 0),
        (lambda: tiny_model("gpt2_tied_conv1d"), None),
    ],
    ids=["adapter", "trained copy", "trained tokens", "plain"],
)
def test_the_embedding_is_found_under_what_peft_puts_around_it(make, row):
    model = make()
    assert type(token_embedding(model)) is nn.Embedding
    assert token_embedding(model).num_embeddings == VOCAB
    assert padding_row(model) == row


OPT = transformers.OPTConfig(**SHAPE, ffn_dim=8, max_position_embeddings=20, word_embed_proj_dim=8)
ROBERTA = transformers.RobertaConfig(
    **SHAPE, intermediate_size=8, max_position_embeddings=20, is_decoder=True, bos_token_id=1
)
GPTJ = transformers.GPTJConfig(vocab_size=VOCAB, n_embd=8, n_layer=1, n_head=2, rotary_dim=4, n_positions=20)
SIZES = {"vocab_size": VOCAB, "d_model": 8, "decoder_layers": 1, "decoder_attention_heads": 2, "decoder_ffn_dim": 8}
WHISPER = transformers.WhisperConfig(**SIZES, max_target_positions=20, pad_token_id=0)
POSITIONS: dict[str, tuple[Any, int | None]] = {
    "rotary": (lambda: tiny_model("llama_untied_biases"), None),
    "learned": (lambda: tiny_model("gpt2_tied_conv1d"), 32),
    "learned, in an adapter": (lambda: adapted("dora, conv1d"), 32),
    "two rows more, from the third on": (lambda: transformers.OPTForCausalLM(OPT), 20),
    "after that of the padding token": (lambda: transformers.RobertaForCausalLM(ROBERTA), 19),
    "sines in a buffer": (lambda: transformers.GPTJForCausalLM(GPTJ), 20),
    "a parameter, of a length with a name of its own": (lambda: transformers.WhisperForCausalLM(WHISPER), 20),
}


@pytest.mark.parametrize("name", POSITIONS)
def test_a_table_of_positions_says_how_long_a_sequence_can_be(name):
    make, longest = POSITIONS[name]
    model = make().eval()
    assert _longest_sequence(model) == longest
    with torch.no_grad():
        model(input_ids=torch.full((1, longest or 1), 5))
        if longest is not None:
            with pytest.raises((IndexError, RuntimeError)):
                model(input_ids=torch.full((1, longest + 1), 5))


def test_what_a_configuration_names_is_the_length_it_was_built_for():
    model = tiny_model("llama_untied_biases")
    assert _built_for(model) == 32
    model.config = transformers.XLNetConfig()  # any length, as it says with -1
    assert _built_for(model) is None


class LetterTokenizer:
    """a = 1, b = 2, ...; 20 begins a prompt, 21 ends a completion, chat turns are wrapped in 22."""

    eos_token_id = 21

    def __call__(self, text, add_special_tokens=True):
        ids = [ord(letter) - 96 for letter in text]
        return {"input_ids": [20, *ids] if add_special_tokens else ids}

    def apply_chat_template(self, messages, *, add_generation_prompt, tokenize, end=22):
        assert add_generation_prompt
        assert not tokenize
        assert all(set(message) == {"role", "content"} for message in messages)
        return "v" + "".join(message["content"] for message in messages) + chr(96 + end)


POLICY = replace(tiny_policy("llama_untied_biases"), tokenizer=LetterTokenizer())


def tokenized(policy=POLICY, limit=None, template=None, **values):
    defaults = {"group_id": "g", "sample": 0, "row": 0, "prompt": "ab", "completion": "cd", "reward": 1.0}
    group = RolloutGroup(step=3, group_id="g", prompt_id="p", rollouts=(Rollout(**{**defaults, **values}),))
    return token_sequences(policy, [group], max_completion_length=limit, chat_template_kwargs=template)[0]


def test_logged_ids_are_used_as_they_are_and_text_is_tokenized_as_trl_does():
    logged = tokenized(prompt_ids=(5, 6), completion_ids=(7,), mask=(False,))
    assert (logged.prompt_ids, logged.completion_ids, logged.mask, logged.inferred) == ((5, 6), (7,), (False,), False)
    inferred = tokenized()
    assert (inferred.prompt_ids, inferred.completion_ids, inferred.inferred) == ((20, 1, 2), (3, 4, 21), True)
    assert inferred.mask == (True, True, True)
    by_trl = replace(POLICY, padding=TrainerPadding())
    assert [tokenized(policy, completion_ids=(7,)).inferred for policy in (POLICY, by_trl)] == [True, False]


@pytest.mark.parametrize(("arguments", "end"), [(None, 22), ({"end": 19}, 19)])
def test_a_conversation_goes_through_the_template_without_null_keys(arguments, end):
    messages = ({"role": "user", "content": "ab", "tool_calls": None},)
    assert tokenized(messages=messages, template=arguments).prompt_ids == (22, 1, 2, end)


def test_a_completion_at_the_limit_or_of_a_tokenizer_without_one_has_no_end_token():
    assert [tokenized(limit=limit).completion_ids for limit in (1, 2, 3)] == [(3,), (3, 4), (3, 4, 21)]
    tokenizer = LetterTokenizer()
    tokenizer.eos_token_id = None
    assert tokenized(replace(POLICY, tokenizer=tokenizer)).completion_ids == (3, 4)
    with pytest.raises(InputError, match="no token ids, and no tokenizer was found"):
        tokenized(replace(POLICY, tokenizer=None))


def test_a_tokenizer_that_makes_a_text_much_longer_is_refused():
    class Doubling(LetterTokenizer):
        def __call__(self, text, **options):
            return {"input_ids": [1] * 1000}

    with pytest.raises(InputError, match="makes 1,000 tokens of a text of 2 bytes"):
        tokenized(replace(POLICY, tokenizer=Doubling()))


@pytest.mark.parametrize(
    ("prompt", "completion", "mask", "message"),
    [
        ((1,), (1, 2), (True,), "loss mask of 1 tokens and a completion of 2"),
        ((), (1,), None, "empty prompt"),
        ((1,), (2, VOCAB), None, f"Step 3, group g, sample 0: token id {VOCAB} is outside .* {VOCAB}"),
        ((1,), (2, -1), None, f"token id -1 is outside .* {VOCAB}"),
    ],
)
def test_ids_that_no_rollout_can_have_are_refused(prompt, completion, mask, message):
    with pytest.raises(InputError, match=message):
        tokenized(prompt_ids=prompt, completion_ids=completion, mask=mask)


def test_ids_that_the_reference_cannot_read_are_refused():
    fewer = tiny_model("llama_untied_biases")
    fewer.resize_token_embeddings(8)
    with pytest.raises(InputError, match="token id 9 is outside the model's vocabulary of 8"):
        tokenized(replace(POLICY, reference=fewer), prompt_ids=(1,), completion_ids=(9,))


def test_more_tokens_than_a_table_of_positions_has_are_refused():
    policy = replace(tiny_policy("gpt2_tied_conv1d"), tokenizer=LetterTokenizer())
    assert tokenized(policy, prompt_ids=(1,), completion_ids=(2,) * 31).length == 32
    with pytest.raises(InputError, match="sample 0 has 33 tokens; the model's table of positions ends at 32"):
        tokenized(policy, prompt_ids=(1,), completion_ids=(2,) * 32)
    assert tokenized(prompt_ids=(1,), completion_ids=(2,) * 32).length == 33  # rotary positions go on


def test_a_template_that_does_not_end_is_refused(monkeypatch):
    class Endless(LetterTokenizer):
        def apply_chat_template(self, messages, **_):
            while True:
                pass

    monkeypatch.setattr("gradscope.outside.limits._MAX_CPU_SECONDS", 0.1)
    policy = replace(POLICY, tokenizer=Endless())
    with pytest.raises(InputError, match=r"chat template of the tokenizer takes more than 0\.1 s"):
        tokenized(policy, messages=({"role": "user", "content": "a"},), completion="b")
