"""Logs that grow, turn back, are rotated, cut, renamed or dated anew between two looks: a look reads what is there."""

import json
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from gradscope.rollouts.groups import RewardTable, reward_table
from gradscope.rollouts.readers.detect import read_run
from gradscope.rollouts.readers.reduction.log import ReadSoFar
from tests.hostile.cases import options_of, summarize
from tests.hostile.oracle import counted

CHANGES = ("rows", "rows", "rows", "half", "cut", "rotated", "emptied", "replaced", "rewritten", "dated", "gone")


def _rows(chance: random.Random) -> str:
    """Some rows, whose steps may go back, of which a few have no reward."""
    return "".join(
        json.dumps({"step": chance.randint(1, 6), "prompt_id": f"p{chance.randint(0, 3)}", "reward": reward}) + "\n"
        for reward in chance.choices((0, 1, None), (5, 5, 1), k=chance.randint(1, 9))
    )


def change(folder: Path, chance: random.Random) -> str:
    """Do to a log what trainers, rotation and people do to one that is being written."""
    log, kind = folder / "log.jsonl", chance.choice(CHANGES)
    other = folder / f"log.{chance.randint(1, 3)}.jsonl"
    text = log.read_text() if log.exists() else ""
    match kind:
        case "rows" | "half":
            rows = _rows(chance)
            with log.open("a") as stream:
                stream.write(rows[: len(rows) // 2] if kind == "half" else rows)
        case "cut" if text:
            os.truncate(log, chance.randrange(len(text)))
        case "rotated" if text:
            log.rename(other)
            log.write_text(_rows(chance))
        case "emptied" if text:  # as logrotate's copytruncate does
            shutil.copy2(log, other)
            log.write_text(_rows(chance))
        case "replaced":
            (folder / "next").write_text(text + _rows(chance))
            (folder / "next").replace(log)
        case "rewritten":
            log.write_text(_rows(chance) + text)
        case "dated" if text:
            os.utime(log, (when := chance.choice((0, 1e9, 4e9)), when))
        case "gone":
            other.unlink(missing_ok=True)
    return kind


def _usable(folder: Path) -> int:
    return sum(counted(path)["used"] for path in folder.glob("*.jsonl"))


def _different(followed: RewardTable, fresh: RewardTable, folder: Path) -> str:
    if followed.ids() != fresh.ids() or not np.array_equal(followed.size, fresh.size):
        return "groups that a fresh look does not have"
    if not np.array_equal(followed.reward, fresh.reward, equal_nan=True):
        return "rewards that a fresh look does not have"
    used, rows = int(np.isfinite(followed.reward).sum()), _usable(folder)
    return "" if used == rows else f"{used} rewards of {rows}"


def campaign(folder: Path, logs: int, looks: int, seed: int) -> Iterator[tuple[str, str]]:
    """Logs that are changed before each of some looks; what was done last, and why the look did not hold."""
    for number in range(logs):
        chance, so_far, place = random.Random(f"{seed}/{number}"), ReadSoFar(), folder / str(number)
        place.mkdir()
        (place / "log.jsonl").write_text('{"step": 1, "prompt_id": "p", "reward": 1}\n')
        for _ in range(looks):
            done = change(place, chance)
            if not _usable(place):
                (place / "log.jsonl").write_text('{"step": 1, "prompt_id": "p", "reward": 1}\n')
            followed = read_run(place, rewards_only=True, so_far=so_far)
            fresh = read_run(place, rewards_only=True)
            yield done, _different(reward_table(followed.groups), reward_table(fresh.groups), place)


if __name__ == "__main__":
    options = options_of("grown", __doc__, logs=1000, looks=20, seed=0)
    with tempfile.TemporaryDirectory() as folder:
        outcomes = campaign(Path(folder), options.logs, options.looks, options.seed)
        sys.exit(summarize(outcomes, f"seed {options.seed}: "))
