from __future__ import annotations

from pathlib import Path

import pytest

from gradscope.errors import InputError
from gradscope.rollouts.read_options import ReadOptions
from gradscope.rollouts.readers.detect import read_run
from gradscope.rollouts.readers.trl.model_card import trainer_of, trl_version, with_card
from gradscope.rollouts.run import TrainerSettings
from tests.rollouts.trl_folder import entry, write_state

CARD = "# A model\n\n### Framework versions\n\n- TRL: {}\n- Transformers: 5.23.0\n"


def test_the_card_of_the_run_comes_before_those_of_its_checkpoints(tmp_path: Path) -> None:
    assert trl_version(tmp_path) is None
    (tmp_path / "checkpoint-2").mkdir()
    (tmp_path / "checkpoint-2" / "README.md").write_text(CARD.format("1.9.0"))
    assert trl_version(tmp_path) == "1.9.0"
    (tmp_path / "README.md").write_text("It was trained with TRL: see there.\n")
    assert trl_version(tmp_path) == "1.9.0"
    (tmp_path / "README.md").write_text(CARD.format("1.16.0"))
    assert trl_version(tmp_path) == "1.16.0"


def test_what_was_given_comes_before_the_card(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text(CARD.format("1.16.0"))
    assert with_card(TrainerSettings(), tmp_path) == TrainerSettings(values={"trl_version": "1.16.0"})
    given = TrainerSettings(values={"trl_version": "1.8.0"}, origin="args.json")
    assert with_card(given, tmp_path) is given
    assert with_card(TrainerSettings(), tmp_path / "elsewhere") == TrainerSettings()


@pytest.mark.parametrize(
    ("sentence", "trainer"),
    [
        ("This model was trained with RLOO, a method introduced in [Back to Basics](https://x).", "RLOO"),
        ("This model was trained with Server Distillation.", "Server Distillation"),
        ("This model was trained with GRPO, a method", "GRPO"),
        ("It was trained with love.", None),
    ],
)
def test_the_card_names_the_trainer(tmp_path: Path, sentence: str, trainer: str | None) -> None:
    (tmp_path / "README.md").write_text(f"# A model\n\n{sentence}\n")
    assert trainer_of(tmp_path) == trainer
    assert with_card(TrainerSettings(), tmp_path).get("trl_trainer") == trainer


@pytest.mark.parametrize(
    ("tags", "trainer"), [(("trl", "grpo"), "GRPO"), (("gmpo", "trl"), "GMPO"), (("trl",), "GRPO"), ((), "GRPO")]
)
def test_a_subclass_is_known_by_its_tag(tmp_path: Path, tags: tuple[str, ...], trainer: str) -> None:
    head = "".join(f"- {tag}\n" for tag in ("generated_from_trainer", *tags))
    (tmp_path / "README.md").write_text(f"---\ntags:\n{head}---\n\nThis model was trained with GRPO, a method\n")
    assert trainer_of(tmp_path) == trainer


def test_a_run_of_another_trainer_is_named_and_not_asked_for_what_it_cannot_do(tmp_path: Path) -> None:
    write_state(tmp_path / "checkpoint-1", entry(1))
    for trainer, words in (("RLOO", "trained with RLOO, as its README.md says"), ("GRPO", "holds no completions/")):
        (tmp_path / "README.md").write_text(f"This model was trained with {trainer}, a method.\n")
        with pytest.raises(InputError, match=words) as caught:
            read_run(tmp_path, ReadOptions(reader="trl"))
        assert ("log_completions" in str(caught.value.hint)) == (trainer == "GRPO")
