"""Models and tokenizers: what is made up for, what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gradscope.errors import InputError
from gradscope.training.grpo.policy import EMBEDDED_FOLDER, check_prompts, load_trained_policy
from gradscope.training.tasks.task import Problem
from tests.training.conftest import save_model

HELLO = Problem(prompt_id="hello", prompt="How many?", answer="5")


def test_embedded_model_is_small_and_loads() -> None:
    policy = load_trained_policy("embedded", dtype="float32", chat=True)
    assert sum(parameter.numel() for parameter in policy.model.parameters()) < 100_000
    assert (EMBEDDED_FOLDER / "model.safetensors").stat().st_size < 500_000
    problem = Problem(prompt_id="p", prompt="a7b5=", answer="12")
    assert policy.tokenizer.decode(policy.encode(problem)) == "a7b5="
    assert policy.eos_ids() == {policy.tokenizer.eos_token_id}
    assert not policy.chat


def test_embedded_tokenizer_has_one_token_a_character() -> None:
    tokenizer = load_trained_policy("embedded", dtype="float32", chat=False).tokenizer
    ids = tokenizer("a7b5c8=b12c20#20")["input_ids"]
    assert len(ids) == 16
    assert tokenizer.decode([*ids, tokenizer.eos_token_id], skip_special_tokens=True) == "a7b5c8=b12c20#20"


def test_chat_template_is_used_where_there_is_one(chat_model: Path) -> None:
    policy = load_trained_policy(str(chat_model), dtype="float32", chat=True)
    assert policy.messages(HELLO) == [{"role": "user", "content": "How many?"}]
    assert policy.tokenizer.decode(policy.encode(HELLO)) == "<|user|>How many?<eos><|assistant|>"
    assert policy.notes == ()


def test_missing_padding_and_template_are_made_up_for_and_said(gpt2_model: Path) -> None:
    policy = load_trained_policy(str(gpt2_model), dtype="float32", chat=True)
    assert policy.tokenizer.pad_token == "<eos>"
    assert policy.messages(HELLO) is None
    assert [note.partition(";")[0] for note in policy.notes] == [
        "The tokenizer has no padding token",
        "The tokenizer has no chat template",
    ]


def test_no_end_of_sequence(tmp_path: Path) -> None:
    save_model(tmp_path / "m", eos=False)
    with pytest.raises(InputError, match="has no end-of-sequence token"):
        load_trained_policy(str(tmp_path / "m"), dtype="float32", chat=True)


def test_tokenizer_of_another_model(tmp_path: Path) -> None:
    save_model(tmp_path / "m", vocab_size=40)
    with pytest.raises(InputError, match=r"has 2\d\d tokens and the model embeds 40"):
        load_trained_policy(str(tmp_path / "m"), dtype="float32", chat=True)


def test_missing_folder_and_weights(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        load_trained_policy(str(tmp_path / "none"), dtype="float32", chat=True)
    save_model(tmp_path / "m")
    (tmp_path / "m" / "model.safetensors").rename(tmp_path / "m" / "pytorch_model.bin")
    with pytest.raises(InputError, match="cannot be read"):
        load_trained_policy(str(tmp_path / "m"), dtype="float32", chat=True)


def test_damaged_weights(tmp_path: Path) -> None:
    weights = save_model(tmp_path / "m") / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(InputError, match="cannot be read"):
        load_trained_policy(str(tmp_path / "m"), dtype="float32", chat=True)


def test_weights_of_another_shape(tmp_path: Path) -> None:
    folder = save_model(tmp_path / "m")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"hidden_size": 32}))
    with pytest.raises(InputError, match="cannot be read"):
        load_trained_policy(str(folder), dtype="float32", chat=True)


def test_weights_that_do_not_cover_the_model(tmp_path: Path) -> None:
    folder = save_model(tmp_path / "m")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 2}))
    with pytest.raises(InputError, match="lacks 9 of the model's weights"):
        load_trained_policy(str(folder), dtype="float32", chat=True)


def test_adapter_is_refused(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(InputError, match="is an adapter; a run starts from a whole model"):
        load_trained_policy(str(tmp_path), dtype="float32", chat=True)


def test_long_prompts_are_refused(tmp_path: Path) -> None:
    policy = load_trained_policy(str(save_model(tmp_path / "m", positions=64)), dtype="float32", chat=True)
    check_prompts(policy, [HELLO], 32)
    with pytest.raises(InputError, match=r"hello has \d+ tokens; with 60 of a completion .* 64 positions"):
        check_prompts(policy, [HELLO], 60)


def test_prompts_in_unknown_characters_are_refused() -> None:
    policy = load_trained_policy("embedded", dtype="float32", chat=True)
    with pytest.raises(InputError, match="hello has characters that the model's tokenizer does not know"):
        check_prompts(policy, [HELLO], 8)
