"""What `gradscope check` says of each kind of damage, and week after week of runs that do not change.

`python -m tests.hostile.gate` prints the one as a table and the other as shares.
"""

import gzip
import json
import math
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import chdir
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from gradscope.diagnostics.check import baseline
from gradscope.estimate import Estimate
from gradscope.metrics.outcomes.passk import pass_at_k
from gradscope.metrics.uncertainty.intervals import difference_of
from gradscope.metrics.uncertainty.paired import holm
from gradscope.metrics.uncertainty.steps import mean_of_steps
from gradscope.results.verdicts import BaselineMetric
from tests.hostile.cases import LOGS, called

_HOLDS = ("--require", "frac_reward_zero_std <= 0.9")
_NORM = ("--require", "grad_norm@max <= 100")
Damage = Callable[[Path], Sequence[str]]


def _rows(num_rows: int = 32, **fields: Any) -> list[str]:
    """Groups of four with rewards of both kinds: no group is dead."""
    return [
        json.dumps({"step": 1, "prompt_id": f"p{row // 4}", "reward": float(row % 2)} | fields)
        for row in range(num_rows)
    ]


def _log(*more: str, rows: Sequence[str] | None = None, require: Sequence[str] = _HOLDS) -> Damage:
    def make(folder: Path) -> Sequence[str]:
        (folder / "log.jsonl").write_text("\n".join([*(_rows() if rows is None else rows), *more, ""]))
        return ("log.jsonl", *require)

    return make


def _trl(text: str | None, require: Sequence[str]) -> Damage:
    """TRL's folder, with every logged norm replaced, or with a state that is none."""

    def make(folder: Path) -> Sequence[str]:
        shutil.copytree(LOGS / "trl", folder / "run")
        state = json.loads((folder / "run" / "trainer_state.json").read_text())
        for entry in state["log_history"]:
            entry["grad_norm"] = "@"
        damaged = "{" if text is None else json.dumps(state).replace('"@"', text)
        (folder / "run" / "trainer_state.json").write_text(damaged)
        return ("run", *require)

    return make


def _verl(line: str, end: str = "\n") -> Damage:
    """verl's folder, whose file of metrics ends in a line."""

    def make(folder: Path) -> Sequence[str]:
        shutil.copytree(LOGS / "verl_metrics", folder / "run")
        with (folder / "run" / "experiment.jsonl").open("a") as stream:
            stream.write(line + end)
        return ("run", *_NORM)

    return make


def _eight(
    norms: Mapping[int, float] = dict.fromkeys(range(1, 9), 1.0),
    *,
    rollouts: Sequence[int] = range(1, 9),
    metrics: Sequence[int] = range(1, 9),
    require: Sequence[str] = _NORM,
) -> Damage:
    """verl's folder of a run of eight steps: some have rollouts, some metrics, some of these a norm."""

    def make(folder: Path) -> Sequence[str]:
        (folder / "run").mkdir()
        for step in rollouts:
            rows = [{"input": "q", "output": "a", "score": sample % 2, "step": step} for sample in range(8)]
            (folder / "run" / f"{step}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        lines = [
            {"actor/kl_loss": 0.1} | ({"actor/grad_norm": norms[step]} if step in norms else {}) for step in metrics
        ]
        text = "".join(
            json.dumps({"step": step, "data": values}) + "\n" for step, values in zip(metrics, lines, strict=True)
        )
        (folder / "run" / "experiment.jsonl").write_text(text)
        return ("run", *require)

    return make


def _batches(lost: int, name: str, **keys: str) -> Damage:
    """Ten lines of 64 rollouts in one trainer's format, of which so many are garbage; ``keys`` are its own."""

    def make(folder: Path) -> Sequence[str]:
        lines = [
            {
                keys["step"]: [step] * 64,
                "prompt": [f"p{row // 8}" for row in range(64)],
                keys["completion"]: [f"{step}"] * 64,
                keys["reward"]: [float(row % 2) for row in range(64)],
                "advantages": [0.5] * 64,
            }
            for step in range(10)
        ]
        texts = ["garbage" if number < lost else json.dumps(line) for number, line in enumerate(lines)]
        (folder / name).write_text("\n".join([*texts, ""]))
        return (name, *_HOLDS)

    return make


_SWIFT = {"name": "completions.jsonl", "step": "step", "completion": "completion", "reward": "right"}
_ROLL = {"name": "rollout_dump_data.step_0.jsonl", "step": "global_step", "completion": "responses", "reward": "scores"}


def _lists(lost: int) -> Damage:
    """Ten prompts with a list of 64 samples each, of which so many lines are garbage, and 40 rewards that are text."""

    def make(folder: Path) -> Sequence[str]:
        rows = [{"task_id": f"p{task}", "responses": ["a"] * 64, "passed": [True, False] * 32} for task in range(10)]
        rows[-1]["passed"] = ["text"] * 40 + [True, False] * 12
        texts = ["garbage" if task < lost else json.dumps(row) for task, row in enumerate(rows)]
        (folder / "samples.jsonl").write_text("\n".join([*texts, ""]))
        return ("samples.jsonl", *_HOLDS)

    return make


def _norms(*steps: int, **more: float) -> dict[int, float]:
    """A norm of 1 at some steps, and others at the last one."""
    return dict.fromkeys(steps, 1.0) | ({8: more["last"]} if more else {})


def _files(cut: int) -> Damage:
    """Ten files of which so many are cut off."""

    def make(folder: Path) -> Sequence[str]:
        (folder / "logs").mkdir()
        for step in range(10):
            file = folder / "logs" / f"{step}.parquet"
            pq.write_table(pa.Table.from_pylist([json.loads(row) for row in _rows(step=step)]), file)
            if step < cut:
                file.write_bytes(file.read_bytes()[:-40])
        return ("logs", *_HOLDS)

    return make


def _packed(folder: Path) -> Sequence[str]:
    (folder / "log.jsonl.gz").write_bytes(gzip.compress("\n".join(_rows()).encode())[:-12])
    return ("log.jsonl.gz", *_HOLDS)


def _pipe(folder: Path) -> Sequence[str]:
    os.mkfifo(folder / "log.jsonl")
    return ("log.jsonl", *_HOLDS)


def _baseline(text: str | None) -> Damage:
    def make(folder: Path) -> Sequence[str]:
        if text is not None:
            (folder / "base.json").write_text(text)
        return (*_log()(folder), "--baseline", "base.json")

    return make


KINDS: dict[str, Damage] = {
    "none, and the requirement holds": _log(),
    "none, and the requirement fails": _log(rows=_rows(reward=1.0)),
    "1 line of 33 is garbage": _log("garbage"),
    "4 lines of 36 are garbage": _log(*["garbage"] * 4),
    "4 rewards of 36 are NaN": _log(*_rows(4, prompt_id="q", reward=float("nan"))),
    "4 lines of 36 name a key twice": _log(*['{"step": 1, "prompt_id": "q", "reward": 1, "reward": 0}'] * 4),
    "4 steps of 36 are -1": _log(*_rows(4, step=-1)),
    "every reward is text": _log(rows=_rows(reward="good")),
    "the log is empty": _log(rows=[]),
    "the log is not there": lambda folder: ("log.jsonl", *_HOLDS),
    "the log is a pipe": _pipe,
    "the only file is cut off": _packed,
    "1 file of 10 is cut off": _files(1),
    "10 files of 10 are cut off": _files(10),
    "the required value was logged as NaN": _trl('"NaN"', _NORM),
    "the required value was logged as 1e400": _trl("1e400", _NORM),
    "the required value was never logged": _trl("null", _NORM),
    "a required share was logged as -0.5 once": _log(
        rows=[json.dumps({"step": step, "solve_none": 0.4 if step else -0.5, "solve_all": 0.1}) for step in range(9)]
    ),
    "the file of the required value is damaged": _trl(None, _NORM),
    "a file of values that nothing requires is damaged": _trl(None, _HOLDS),
    "a line of the file of the required value is damaged": _verl("garbage"),
    "the last line of that file is being written": _verl('{"step": 3, "da', end=""),
    "the last value is NaN, at a step without rollouts": _eight(
        _norms(*range(1, 8), last=math.nan), rollouts=range(1, 8), require=("--require", "grad_norm@last <= 100")
    ),
    "the largest value is 1e9, at a step without rollouts": _eight(
        _norms(*range(1, 8), last=1e9), rollouts=range(1, 8)
    ),
    "the last of 8 steps has a value, and no rollouts": _eight(rollouts=range(1, 8)),
    "the required value ends at step 2 of 8": _eight(_norms(1, 2), require=("--require", "grad_norm@last <= 100")),
    "all logged values end at step 2 of 8": _eight(metrics=(1, 2)),
    "the required value is not logged at steps 3 to 6 of 8": _eight(_norms(1, 2, 7, 8)),
    "the required value begins at step 5 of 8": _eight(_norms(5, 6, 7, 8)),
    "the required value is logged at steps 3 and 6 of 8": _eight(_norms(3, 6)),
    "the rollouts end at step 2 of 8": _eight(rollouts=(1, 2), require=_HOLDS),
    "the last of 8 steps has no rollouts, and is required": _eight(
        rollouts=range(1, 8), require=("--require", "frac_reward_zero_std@last <= 0.9")
    ),
    "6 of 10 lines of ms-swift, of 64 rollouts each, are garbage": _batches(6, **_SWIFT),
    "6 of 10 lines of ROLL, of 64 rollouts each, are garbage": _batches(6, **_ROLL),
    "1 of 10 lines of ROLL, of 64 rollouts each, is garbage": _batches(1, **_ROLL),
    "1 of 10 lists of 64 samples is garbage, and 40 samples are text": _lists(1),
    "40 samples of 640 in lists are text": _lists(0),
    "the baseline is not there": _baseline(None),
    "the baseline is cut off": _baseline('{"schema": "gradscope/baseline", "schema'),
    "the baseline holds NaN": _baseline(
        '{"schema": "gradscope/baseline", "schema_version": 1, "run": "x", "metrics": {"frac_reward_zero_std": '
        '{"value": NaN, "low": null, "high": null, "num_units": 1, "undefined": null, "prompts": {}}}}'
    ),
}
"""Damage -> what makes it in a folder and gives the arguments of `check`."""


def codes() -> dict[str, int]:
    """Damage -> the exit code of `check`."""
    results = {}
    for name, make in KINDS.items():
        with tempfile.TemporaryDirectory() as folder, chdir(folder):
            results[name] = called(["check", *make(Path(folder))])[0]
    return results


def table_of(results: Mapping[str, int]) -> str:
    """The codes as they stand in docs/research/security.md."""
    meaning = {0: "pass", 1: "fail or unknown", 2: "unusable"}
    rows = "".join(f"| {name} | {code} | {meaning[code]} |\n" for name, code in results.items())
    return f"| damage | exit code | |\n|---|---|---|\n{rows}"


_SAMPLES, _STEPS, _LAST = 8, 200, 40
_LOGGED = ("grad_norm", "kl", "entropy", "clip_ratio", "mean_length", "loss")
_SCREEN = 1.5
"""Standard errors below which a change cannot fail in a family of ten, so that its flips need not be drawn."""


def _week(rates: NDArray[np.float64], rng: np.random.Generator, fallen: float) -> dict[str, Any]:
    """Ten numbers of one run: four by prompt, six with the interval of a course of steps."""
    passed = rng.binomial(_SAMPLES, np.clip(rates - fallen, 0.0, 1.0))
    failed, solved = passed == 0, passed == _SAMPLES
    at_four = pass_at_k(np.full(len(rates), _SAMPLES), passed, 4)
    results: dict[str, Any] = {"pass_rate": passed / _SAMPLES, "pass@4": at_four}
    results |= {"frac_reward_zero_std": (failed | solved).astype(float), "frac_all_fail": failed.astype(float)}
    for name in _LOGGED:
        noise = rng.normal(size=_STEPS + 1)
        course = rng.lognormal(0, 0.5, _STEPS) if name == "grad_norm" else noise[1:] + 0.6 * noise[:-1]
        results[f"{name}@last20%"] = mean_of_steps(course[-_LAST:])
    return results


def _p_value(name: str, before: Any, after: Any) -> float:
    is_paired, change = isinstance(before, np.ndarray), Estimate.exact(0.0)
    paired = after - before if is_paired else np.zeros(0)
    if is_paired and abs(paired.sum()) < _SCREEN * np.sqrt((paired**2).sum()):
        return 1.0
    if not is_paired:
        change = difference_of(before, after)
    sides = {
        "after": BaselineMetric(estimate=change),
        "before": None,
        "change": change,
        "paired": paired,
        "by_steps": Estimate.exact(0.0),
    }
    p_value = baseline._p_value(baseline._Compared(name=name, margin=0.0, advice="", **sides))
    assert p_value is not None
    return p_value


def months(seed: int, *, populations: int = 40, weeks: int = 52, prompts: int = 256, fallen: float = 0.0) -> Any:
    """Which weekly checks of ten requirements fail, [populations, weeks], as `check` decides by interval.

    Populations are recipes that do not change, each with pass rates of its own, or ``fallen`` below the baseline;
    a team renews its baseline each quarter, by a run that passed.
    """
    failed = np.zeros((populations, weeks), bool)
    for population in range(populations):
        rng = np.random.default_rng([seed, population])
        rates = rng.beta(0.5, 0.5, prompts)
        before = _week(rates, rng, 0.0)
        for week in range(weeks):
            after = _week(rates, rng, fallen)
            p_values = holm([_p_value(name, before[name], after[name]) for name in before])
            failed[population, week] = any(p is not None and p <= baseline.FAMILY_RATE for p in p_values)
            if week % 13 == 12 and not fallen and not failed[population, week]:
                before = after
    return failed


if __name__ == "__main__":
    sys.stdout.write(table_of(codes()))
    for fallen in (0.0, 0.05):
        failed = months(0, fallen=fallen, weeks=8 if fallen else 52)
        sys.stdout.write(f"pass rates {fallen:.2f} lower: {failed.mean():.2%} of {failed.size:,} checks fail\n")
