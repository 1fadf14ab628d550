"""Logs with known damage, and what a reader of them should count: in a few lines that share nothing with ours."""

import json
import math
import random
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

BAD_REWARDS = ("null", "NaN", "Infinity", '"x"', "[]", "{}", "1e400", '"1_0"', '"nan"')
BAD_STEPS = ("-1", "2.9", '"x"', "null", "true", "[]", '"1_0"', "1e400")
BAD_LINES = ("garbage", "[1]", "null", "3", '{"step": 1, "prompt_id": "p0", "reward": 1', '{"a": 1, "a": 2}', "\x00")

TWICE = ('"step"', '"prompt_id"', '"sample"', '"reward"', '"note"', '"rew\\u0061rd"')
"""Keys that are put at the end of a row; a row that has no sample then has one."""


def write_log(path: Path, seed: int) -> None:
    """Write a log of a few steps: groups whose rewards are alike or not, and rows that are none in between."""
    chance = random.Random(seed)
    lines, levels = [], chance.choice(((0, 1), (-1, 1), (0.0, 0.25, 1.0)))
    for step in range(chance.randint(1, 5)):
        for prompt in range(chance.randint(1, 6)):
            alike = chance.choice(levels) if chance.random() < 0.4 else None
            for sample in range(chance.randint(2, 8)):
                reward = json.dumps(chance.choice(levels) if alike is None else alike)
                where, text = json.dumps(step), f"p{prompt}"
                if chance.random() < 0.04:
                    reward = chance.choice(BAD_REWARDS)
                elif chance.random() < 0.04:
                    where = chance.choice(BAD_STEPS)
                sample_cell = f'"sample": {sample}, ' if chance.random() < 0.9 else ""
                more = f", {chance.choice(TWICE)}: 0" if chance.random() < 0.03 else ""
                lines.append(
                    f'{{"step": {where}, "prompt_id": "{text}", {sample_cell}"reward": {reward}, "note": 1{more}}}'
                )
                if chance.random() < 0.03:
                    lines.append(chance.choice(BAD_LINES))
    path.write_text("\n".join(lines) + "\n")


def counted(path: Path) -> dict[str, Any]:
    """Rows in all and those that are usable, and the groups without a missing reward that are dead."""
    used, num_rows, groups = 0, 0, defaultdict[Any, list[Any]](list)
    for line in path.read_text().splitlines():
        num_rows += 1
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if not isinstance(row, dict) or type(row.get("step")) is not int or row["step"] < 0:
            continue
        reward = row["reward"]
        fine = type(reward) in (int, float) and math.isfinite(reward)
        groups[row["step"], row["prompt_id"]].append(reward if fine else None)
        used += fine
    whole = [rewards for rewards in groups.values() if None not in rewards and len(rewards) > 1]
    dead = sum(len(set(rewards)) == 1 for rewards in whole)
    return {"rows": num_rows, "used": used, "groups": len(whole), "dead": dead}


def difference(path: Path, result: Mapping[str, Any] | None) -> str:
    """What the result of `degeneracy --json` counts otherwise; None: it was refused, as a log without groups is."""
    expected = counted(path)
    if result is None:
        return f"refused, and there are {expected}" if expected["groups"] else ""
    if not expected["groups"]:
        return "read, and no group is whole"
    used, groups = result["source"]["num_rows"], result["num_groups"]
    counts = {"rows": used + result["quarantined"]["num_rows"], "used": used, "groups": groups}
    counts["dead"] = round(result["frac_reward_zero_std"]["value"] * groups)
    return "" if counts == expected else f"counts {counts}, and there are {expected}"
