from __future__ import annotations

from pathlib import Path

from gradscope.rollouts.readers.trl.model_card import trl_version, with_trl_version
from gradscope.rollouts.run import TrainerSettings

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
    assert with_trl_version(TrainerSettings(), tmp_path) == TrainerSettings(values={"trl_version": "1.16.0"})
    given = TrainerSettings(values={"trl_version": "1.8.0"}, origin="args.json")
    assert with_trl_version(given, tmp_path) is given
    assert with_trl_version(TrainerSettings(), tmp_path / "elsewhere") == TrainerSettings()
