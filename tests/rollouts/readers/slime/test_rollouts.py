"""slime's dumps are files of torch.save: their plain data is read, and nothing in them runs."""

from __future__ import annotations

import pickle
import zipfile
from pathlib import Path
from typing import Any

import pytest

from gradscope.errors import InputError
from gradscope.rollouts.read_options import ColumnNames, ReadOptions
from gradscope.rollouts.readers.detect import read_run
from tests.conftest import REPOSITORY
from tests.rollouts.readers.lines import rewards_of, set_aside

SLIME = REPOSITORY / "fixtures" / "logs" / "slime"


def archive(path: Path, document: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("archive/data.pkl", pickle.dumps(document))
    return path


def sample(index: int, **cells: Any) -> dict[str, Any]:
    return {"group_index": 0, "index": index, "tokens": [5, 9, 2], "response_length": 2, "reward": 1.0, **cells}


@pytest.mark.parametrize("given", [SLIME, SLIME / "rollout_data"])
def test_groups_tokens_and_what_a_filter_hides(given: Path) -> None:
    run = read_run(given)
    assert run.source.format == "slime"
    assert rewards_of(run) == {"0": (1.0, 0.0), "1": (0.0, 0.0), "1:2": (1.0, 1.0)}
    assert "lower bound" in run.source.missing[0]
    first, masked = run.groups[0].rollouts[0], run.groups[1].rollouts[0]
    assert (first.prompt_ids, first.completion_ids, first.logprobs) == ((5, 9), (11, 2), (-0.1, -0.1))
    assert (masked.mask, masked.status) == ((True, False, True), "truncated")


def test_of_several_rewards_the_first_or_the_named_one_counts(tmp_path: Path) -> None:
    both = [sample(at, reward={"accuracy": float(at), "format": 1.0}) for at in range(2)]
    folder = archive(tmp_path / "rollout_data" / "3.pt", {"rollout_id": 3, "samples": both}).parent.parent
    assert rewards_of(read_run(folder)) == {"3:0": (0.0, 1.0)}
    assert rewards_of(read_run(folder, ReadOptions(columns=ColumnNames(reward="format")))) == {"3:0": (1.0, 1.0)}
    with pytest.raises(InputError, match="has no reward 'length'"):
        read_run(folder, ReadOptions(columns=ColumnNames(reward="length")))


def test_samples_that_cannot_be_used_are_set_aside(tmp_path: Path) -> None:
    samples = [
        sample(0),
        sample(1, group_index=None),
        sample(2, tokens=None),
        sample(3, response_length=9),
        sample(4, loss_mask=[1]),
        sample(5, reward=None),
        sample(0),
    ]
    run = read_run(archive(tmp_path / "0.pt", {"rollout_id": 0, "samples": samples}))
    assert rewards_of(run) == {"0": (1.0, None)}
    assert set_aside(run) == {
        "group_index is not a whole number": 1,
        "the token ids are not a list of whole numbers": 2,
        "the lists of tokens differ in length": 1,
        "the reward is null": 1,
        "the row repeats an earlier one of the same sample": 1,
    }
    with pytest.raises(InputError, match="the step is not a whole number"):
        read_run(archive(tmp_path / "1.pt", {"rollout_id": "x", "samples": [sample(0)]}))


@pytest.mark.parametrize("name", ["rollout_3.pt", "dump-rollout_3.pt", "3.pt"])
@pytest.mark.parametrize("folder", [".", "rollout_data"])
def test_a_name_may_have_anything_before_the_number(tmp_path: Path, folder: str, name: str) -> None:
    file = archive(tmp_path / folder / name, {"rollout_id": 3, "samples": [sample(0), sample(1, reward=0.0)]})
    archive(file.with_name(name.replace("3", "eval_3")), {"rollout_id": 3, "samples": [sample(7)]})
    assert rewards_of(read_run(tmp_path)) == rewards_of(read_run(file)) == {"3:0": (1.0, 0.0)}


def test_other_archives_of_that_name_are_no_rollouts(tmp_path: Path) -> None:
    archive(tmp_path / "model_rank_0.pt", {"weight": [1.0]})
    (tmp_path / "broken_1.pt").write_bytes(b"PK\x03\x04")
    with pytest.raises(InputError, match="is not a log that gradscope knows"):
        read_run(tmp_path)
