"""Screen, page, JSON and check of the same run never say two things of one metric."""

import html
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec import Struct

from gradscope.catalog.lookup import CATALOG
from gradscope.diagnostics.check.metric_values import MetricValues
from gradscope.diagnostics.degeneracy.measure import measure_degeneracy
from gradscope.diagnostics.passk.measure import measure_pass_at_k
from gradscope.diagnostics.replay.measure import replay_run
from gradscope.diagnostics.report.measure import report_run
from gradscope.errors import GradscopeError
from gradscope.estimate import Estimate
from gradscope.render.files import document_of
from gradscope.render.html.page import render_page
from gradscope.render.registry import render_table
from gradscope.render.words import Footnotes, Style, format_estimate
from gradscope.results.degeneracy import DegeneracyReport
from gradscope.results.report import RunReport
from gradscope.rollouts.readers.detect import read_run
from tests.render.printing import printed
from tests.rollouts.readers.lines import write_lines

ROWS: dict[str, tuple[str, Style]] = {
    "frac_reward_zero_std": ("no gradient", "share"),
    "frac_all_fail": ("all fail", "share"),
    "frac_all_pass": ("all pass", "share"),
    "frac_tied": ("tied, neither pass nor fail", "share"),
    "frac_reward_conflict": ("side rewards alone", "share"),
    "pass_rate": ("pass rate p", "share"),
    "iid_prediction": ("i.i.d. prediction", "share"),
    "jensen_gap": ("Jensen gap", "gap"),
    "relative_gap": ("over the prediction", "rank"),
    "gap_between_prompts": ("between prompts", "gap"),
    "gap_over_time": ("over time", "gap"),
    "starvation.frac_rollouts": ("rollouts without a gradient", "share"),
    "starvation.frac_tokens": ("completion tokens without a gradient", "share"),
    "starvation.batch_size": ("rollouts a step", "rank"),
    "starvation.effective_batch_size": ("that count", "rank"),
    "starvation.dilution": ("scale of a loss averaged over all rollouts", "share"),
    "starvation.resampling_factor": ("groups to sample for each live one", "rank"),
}
"""Metric -> its row on the screen of all tables, and how it reads there."""


class Outputs(Struct, frozen=True):
    """Everything that is said of a run."""

    path: Path
    values: MetricValues
    degeneracy: DegeneracyReport
    page: RunReport

    @property
    def screen(self) -> str:
        return " ".join(printed(render_table(self.degeneracy, ("all",))).split())

    @property
    def words_of_page(self) -> str:
        return " ".join(re.sub(r"<[^>]+>", " ", html.unescape(render_page(self.page))).split())


def in_conflict(folder: Path) -> Path:
    """A TRL run of four steps whose main reward is tied in most groups, with log-probabilities of both policies."""
    rng = np.random.default_rng(3)
    (folder / "completions").mkdir(parents=True)
    history = []
    for step in range(1, 5):
        rates = rng.choice([0.0, 1.0, 0.5], size=12, p=[0.4, 0.4, 0.2])
        correct = (rng.random((12, 4)) < rates[:, None]).astype(float)
        short = -0.01 * rng.integers(5, 60, (12, 4))
        total = correct + short
        deviation = total - total.mean(axis=1, keepdims=True)
        advantage = deviation / (total.std(axis=1, ddof=1, keepdims=True) + 1e-4)
        logps = -rng.random((48, 3))
        columns = {
            "step": [step] * 48,
            "prompt": [f"q{index}" for index in range(12) for _ in range(4)],
            "completion": ["abc"] * 48,
            "correct": correct.ravel(),
            "short": short.ravel(),
            "advantage": advantage.ravel(),
            "completion_ids": [[1, 2, 3]] * 48,
            "sampling_logprobs": logps.tolist(),
            "old_per_token_logps": (logps + 0.01).tolist(),
        }
        pq.write_table(pa.table(columns), folder / "completions" / f"completions_{step:05d}.parquet")
        history.append({"step": step, "reward": float(total.mean()), "grad_norm": 0.1, "frac_reward_zero_std": 0.0})
    (folder / "checkpoint-4").mkdir()
    state = {"log_history": history, "global_step": 4}
    (folder / "checkpoint-4" / "trainer_state.json").write_text(json.dumps(state))
    return folder


def of_rewards(file: Path, rewards: list[list[float]]) -> Path:
    rows = [
        {"prompt": f"q{index % 8}", "group_id": f"g{index}", "step": 1 + index // 8, "reward": reward}
        for index, group in enumerate(rewards)
        for reward in group
    ]
    return write_lines(file, *rows)


@pytest.fixture(scope="module", params=["conflict", "binary", "few", "dead"])
def outputs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Outputs:
    folder, rng = tmp_path_factory.mktemp("run"), np.random.default_rng(1)
    path = {
        "conflict": lambda: in_conflict(folder / "run"),
        "binary": lambda: of_rewards(folder / "log.jsonl", (rng.random((32, 4)) < 0.6).astype(float).tolist()),
        "few": lambda: of_rewards(folder / "log.jsonl", [[0.0, 1.0], [1.0, 0.0]]),
        "dead": lambda: of_rewards(folder / "log.jsonl", [[0.0] * 4] * 16),
    }[request.param]()
    return Outputs(
        path=path, values=MetricValues(run=read_run(path)), degeneracy=measure_degeneracy(path), page=report_run(path)
    )


def at(document: Any, path: str) -> Any:
    for name in path.split("."):
        document = document[name]
    return document


def as_json(estimate: Estimate) -> dict[str, Any]:
    return {name: getattr(estimate, name) for name in ("value", "low", "high", "num_units", "undefined")}


def of_command(command: str) -> Iterator[tuple[str, str]]:
    return ((name, entry.path) for name, entry in CATALOG.items() if entry.command == command and entry.path)


@pytest.mark.slow
def test_check_says_what_the_json_of_degeneracy_says(outputs: Outputs) -> None:
    document = document_of(outputs.degeneracy)["result"]
    for name, path in of_command("degeneracy"):
        assert as_json(outputs.values.value(name).estimate) == at(document, path), name


@pytest.mark.slow
def test_the_screen_says_what_check_says(outputs: Outputs) -> None:
    screen = outputs.screen
    for name, (row, style) in ROWS.items():
        estimate = outputs.values.value(name).estimate
        if estimate.is_defined:
            if name != "frac_reward_conflict" or estimate.value:
                assert f"{row} {format_estimate(estimate, Footnotes(), style)}" in screen, name
        else:
            assert not re.search(rf"{re.escape(row)} [+-]?\d", screen), name


def test_the_page_says_what_check_says(outputs: Outputs) -> None:
    signal = {section.name: section for section in outputs.page.sections}["signal"]
    for title, estimate, _ in signal.tables[0].rows:
        (name,) = [entry.name for entry in CATALOG.values() if entry.title == title and entry.command == "degeneracy"]
        assert estimate == outputs.values.value(name).estimate, name
    document = document_of(outputs.page)["result"]
    missing = {section["name"] for section in document["sections"] if section["missing"] is not None}
    sections = {"sampler": "agreement", "entropy": "entropy", "staleness": "staleness", "generation": "generation"}
    for name, path in of_command("report"):
        estimate, (_, part, _, quantity) = outputs.values.value(name).estimate, path.split(".")
        overall = document["logged"][part]["overall"]
        assert as_json(estimate) == overall[quantity] if overall else not estimate.is_defined, name
        assert (overall is None) == (sections[part] in missing), name


def test_the_tiles_say_what_check_says(outputs: Outputs) -> None:
    dead, _, norm, mismatch, reach = outputs.page.strip
    value = outputs.values.value
    decided = outputs.degeneracy.is_in_conflict
    assert decided == ("side reward" in dead.title)
    assert dead.value == value("frac_reward_conflict" if decided else "frac_reward_zero_std").estimate
    assert mismatch.value.is_defined == value("logprob_gap").estimate.is_defined
    assert norm.value.is_defined == value("replay_grad_norm_error").estimate.is_defined
    is_pass_at_k = "pass@" in reach.title and reach.value.is_defined
    assert is_pass_at_k == value("pass@1").estimate.is_defined
    if is_pass_at_k and reach.then is not None:
        (k,) = re.findall(r"and (\d+)", reach.note)
        assert (reach.value, reach.then) == (value("pass@1").estimate, value(f"pass@{k}").estimate)
    try:
        measure_pass_at_k(outputs.path)
        assert value("pass@1").estimate.is_defined
    except GradscopeError:
        assert not value("pass@1").estimate.is_defined


def test_replay_is_named_where_it_can_say_something(outputs: Outputs) -> None:
    replay = replay_run(outputs.path)
    section = {section.name: section for section in outputs.page.sections}["replay"]
    assert ("gradscope replay" in section.command) == (replay.verdict != "cannot")
    estimate = outputs.values.value("frac_replay_mismatch").estimate
    assert as_json(estimate) == document_of(replay)["result"]["frac_replay_mismatch"]


def test_nobody_says_that_a_run_in_conflict_is_fine(outputs: Outputs) -> None:
    conflict, dead = outputs.degeneracy.reward_conflict, outputs.degeneracy.frac_reward_zero_std
    answer = " ".join(printed(render_table(outputs.degeneracy)).split())
    assert f"no gradient {format_estimate(dead, Footnotes(), 'share')}" in answer
    for text in (outputs.screen, outputs.words_of_page):
        assert "every group can move the policy" not in text
        if conflict is not None:
            assert f"'{conflict.deciding}' alone decides" in text
            assert "Nothing to do: none of these groups" not in text
        if dead.value:
            assert "each of them gives a group-mean baseline a gradient" not in text
