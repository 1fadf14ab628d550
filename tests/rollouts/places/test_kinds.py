from __future__ import annotations

from pathlib import Path

import pytest

from gradscope.rollouts.places.kinds import awaited_in, awaited_mark, is_awaited, is_of_use, when_copied


@pytest.mark.parametrize(
    ("name", "when"),
    [
        ("completions/completions_00001.parquet", "now"),
        ("step_1/train/all/traces.jsonl.zst", "now"),
        (".hydra/config.yaml", "now"),
        ("logs/events.out.tfevents.1.host", "now"),
        ("rollout_data/3.pt", "now"),
        ("README.md", "now"),
        ("checkpoint-5/trainer_state.json", "now"),
        ("checkpoint-5/tokenizer_config.json", "now"),
        ("checkpoint-5/model.safetensors.index.json", "now"),
        ("checkpoint-5/model-00001-of-00002.safetensors", "awaited"),
        ("checkpoint-5/tokenizer.json", "awaited"),
        ("checkpoint-5/chat_template.jinja", "awaited"),
        ("checkpoint-5/optimizer.pt", "never"),
        ("checkpoint-5/pytorch_model.bin", "never"),
        ("global_step_5/actor/__0_0.distcp", "never"),
        ("train_data/3.pt", "never"),
        ("wandb/run-1/run-1.wandb", "never"),
    ],
)
def test_logs_are_copied_at_once_and_weights_when_asked_for(name: str, when: str) -> None:
    assert when_copied(name) == when


@pytest.mark.parametrize(("name", "copied"), [("rollouts.log", True), ("3.pt", True), ("a.pkl", False)])
def test_what_was_named_by_itself_is_copied_unless_it_is_known_to_be_no_log(name: str, copied: bool) -> None:
    assert is_of_use(name) == copied


def test_a_file_that_can_be_had_is_not_there_yet(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    awaited_mark(file).touch()
    assert is_awaited(file)
    assert awaited_in(tmp_path) == (file,)
    assert not list(tmp_path.glob("*.safetensors"))
