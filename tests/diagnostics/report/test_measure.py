"""A report on runs whose answers are known: every section has an answer or says what to log."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from gradscope.diagnostics.degeneracy.measure import degeneracy_of_run
from gradscope.diagnostics.inputs import recomputed
from gradscope.diagnostics.inputs.steps import measure_steps
from gradscope.diagnostics.passk.measure import pass_at_k_of_samples, samples_of_run
from gradscope.diagnostics.rank import tokens as rank_tokens
from gradscope.diagnostics.report import measure as report
from gradscope.diagnostics.report.measure import ReportOptions, key_numbers, report_run, report_tokens
from gradscope.diagnostics.report.sections.inputs import TokenParts
from gradscope.errors import InputError
from gradscope.estimate import Estimate
from gradscope.gradients import processes
from gradscope.gradients.engine_options import EngineOptions
from gradscope.gradients.tokens import measure as measure_module
from gradscope.progress import no_progress
from gradscope.results.logged import LoggedPolicy, SamplerMismatch
from gradscope.results.report import KeyNumber, ReportSection, RunReport
from gradscope.results.source import Source
from gradscope.rollouts.groups import GroupsOnDisk, Rollout, RolloutGroup
from gradscope.rollouts.read_options import ReadOptions
from gradscope.rollouts.readers.detect import read_run
from gradscope.rollouts.readers.reduction import processes as reduction_processes
from gradscope.rollouts.run import Run, WeightsRef
from tests.conftest import LOGS
from tests.diagnostics.made_up_runs import group_of, run_of, samples_run
from tests.diagnostics.rank.made_up_parts import made_up
from tests.diagnostics.rank.test_tokens import ON_CPU, plain_outputs, run_on, tokens_of
from tests.diagnostics.report.sections.made_up_inputs import NOT_READ, gram_of, inputs_of
from tests.render.examples import replay_report, run_report
from tests.rollouts.readers.lines import write_lines

pytestmark = pytest.mark.slow  # a run of shared/data, recomputed

NAMES = [
    *("reward", "signal", "zero-loss", "replay", "rank", "contributions", "tokens", "length", "rewards", "dilution"),
    *("agreement", "staleness", "entropy", "generation", "coverage", "formulations", "claims"),
]


def sections_of(result: RunReport) -> dict[str, ReportSection]:
    return {section.name: section for section in result.sections}


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Three steps of a dead and a live group of four; longer completions are right."""
    rows: list[dict[str, object]] = [
        {"prompt_id": f"{name}{step}", "step": step, "reward": reward, "completion": "x" * (3 + 4 * int(reward))}
        for step in (1, 2, 3)
        for name, rewards in (("easy", (1, 1, 1, 1)), ("mixed", (1, 0, 1, 0)))
        for reward in rewards
    ]
    return write_lines(tmp_path / "log.jsonl", *rows)


def test_a_plain_log_answers_what_it_can_and_says_what_it_lacks(log: Path) -> None:
    sections = sections_of(report_run(log))
    assert list(sections) == NAMES
    for section in sections.values():
        assert (section.missing is None) == bool(section.findings)
        assert section.headline
    answered = [name for name, section in sections.items() if section.missing is None]
    assert answered == ["signal", "replay", "length", "rewards", "dilution", "claims"]
    assert "logging_steps=1" in str(sections["zero-loss"].missing)
    assert "--samples BEFORE" in str(sections["coverage"].missing)
    length = sections_of(report_run(log))["length"]
    assert "correlate at +1.00" in length.findings[0]
    rows = length.tables[0].rows
    assert [row[1].split(" to ")[0] for row in (rows[0], rows[-1])] == ["-2.0", "+2.0"]
    assert rows[0][2] < 0 < rows[-1][2]
    sections = sections_of(report_run(log, gradients=False))
    assert "--no-gradients" in str(sections["contributions"].missing)
    assert "--no-gradients" in str(sections["formulations"].missing)
    with pytest.raises(InputError, match="has no rollouts of step 9"):
        report_run(log, steps=[9])


ODD_ROWS = [
    {"prompt_id": "a", "step": 1, "reward": reward, "completion": text}
    for reward, text in (
        (1, "yes"),
        (0, "yes"),
        (1, "yes"),
        (0.5, ""),
        (None, "no"),
        ("high", "no"),
        (1, ["a", "list"]),
    )
]


@pytest.mark.parametrize("log", ["verl_v1", "verl_legacy", "ms_swift", "generic.csv", "messy.jsonl", "odd", "mixed"])
def test_a_log_of_texts_says_the_same_where_no_rollout_is_read_back(
    log: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = LOGS / log
    if log in ("odd", "mixed"):
        with_rewards = [row for row in ODD_ROWS if log == "mixed" or isinstance(row["reward"], int | float)]
        path = write_lines(tmp_path / "log.jsonl", *with_rewards, *({**row, "prompt_id": "b"} for row in ODD_ROWS[:4]))
    measured = report_run(path, gradients=False)
    assert read_run(path).measured is not None
    monkeypatch.setattr(Run, "measured", None)
    assert measured == report_run(path, gradients=False)


@pytest.mark.parametrize("log", ["trl", "open_instruct", "slime"])
def test_steps_with_tokens_are_read_by_several_processes(log: str, monkeypatch: pytest.MonkeyPatch) -> None:
    of_one = report_run(LOGS / log, gradients=False)
    monkeypatch.setattr(report, "_MIN_FORKED", 0)
    monkeypatch.setattr(reduction_processes, "num_cores", lambda: 2)
    assert report_run(LOGS / log, gradients=False) == of_one


def test_an_error_of_a_process_is_the_error_of_the_report(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(groups: GroupsOnDisk, step: int) -> tuple[RolloutGroup, ...]:
        raise InputError(f"Step {step} is gone, in process {os.getpid()}.", hint="Read it again.")

    monkeypatch.setattr(report, "_MIN_FORKED", 0)
    monkeypatch.setattr(reduction_processes, "num_cores", lambda: 2)
    monkeypatch.setattr(GroupsOnDisk, "_read_back", fails)
    with pytest.raises(InputError, match="is gone") as error:
        report_run(LOGS / "trl", gradients=False)
    assert error.value.hint == "Read it again."
    assert str(os.getpid()) not in error.value.message


def test_lost_problems_are_named(tmp_path: Path, log: Path) -> None:
    before = write_lines(tmp_path / "before.jsonl", *({"task_id": f"t{n}", "n": 4, "c": n % 3} for n in range(6)))
    after = write_lines(tmp_path / "after.jsonl", *({"task_id": f"t{n}", "n": 4, "c": 4 * (n % 2)} for n in range(6)))
    coverage = sections_of(report_run(log, options=ReportOptions(samples=[before, after])))["coverage"]
    assert coverage.tables[-1].rows == (("t2", "2/4", "0/4"), ("t4", "1/4", "0/4"))


@pytest.fixture(scope="module")
def trl_lora(shared_data: Path) -> dict[str, ReportSection]:
    folder = shared_data / "runs" / "trl_lora"
    page = report_run(
        folder / "run",
        steps=[6],
        options=ReportOptions(tokens=64),
        read=ReadOptions(
            initial_weights=folder / "init_adapter", trainer_args=folder / "RUN.json", model=str(folder / "base_model")
        ),
    )
    assert page.recomputed == (6,)
    return sections_of(page)


def test_a_real_run_has_every_section_that_its_log_feeds(trl_lora: dict[str, ReportSection]) -> None:
    missing = [name for name, section in trl_lora.items() if section.missing]
    assert missing == ["agreement", "staleness", "coverage"]
    findings = trl_lora["zero-loss"].findings
    assert findings[0].startswith("1 of 20 steps (first: step 7): a gradient although every group is dead")
    assert findings[1] == "19 of 20 steps have a gradient from live groups."
    _, groups, top = trl_lora["contributions"].tables
    assert sum(float(str(row[2])) for row in groups.rows) == pytest.approx(1.0)
    assert len(top.rows) == 10
    rows = {row[0]: row for row in trl_lora["formulations"].tables[0].rows}
    assert rows["grpo"][2].value == pytest.approx(1.0, abs=1e-5)
    assert rows["grpo"][1].value == pytest.approx(rows["logged"][1].value, rel=1e-3)
    assert rows["sign"][2].undefined


def test_shares_of_reward_functions_add_up(trl_lora: dict[str, ReportSection]) -> None:
    rewards = trl_lora["rewards"]
    shares = [row[3] for row in rewards.tables[0].rows]
    assert sum(share.value for share in shares) == pytest.approx(1.0, abs=1e-6)
    assert rewards.findings[0].startswith("'format_reward' alone decides 5.0 %")
    assert "'accuracy_reward' is tied in 72.5 % of groups and makes 83.1 %" in rewards.findings[1]


@pytest.mark.parametrize(
    ("matrix", "reason"),
    [(None, "The log has no advantages"), (np.zeros((2, 2)), "every recomputed step (3, 3) is zero")],
)
def test_recomputed_steps_without_a_gradient_say_why(matrix: np.ndarray | None, reason: str) -> None:
    grams = [SimpleNamespace(step=3, policy_gram=matrix)] * 2
    assert reason in report._without_gradient(grams).reason


@pytest.mark.parametrize("spike", [9.0, float("nan"), float("inf")])
def test_the_largest_logged_gradient_is_among_the_steps_that_are_recomputed(spike: float) -> None:
    """Eight checkpoints, the spike at step 5: it takes the place of the step next to it, the ends stay."""
    weights = tuple(WeightsRef(num_updates=step - 1, path=Path("w"), kind="full") for step in range(1, 9))
    rollout = Rollout(group_id="g", sample=0, row=0, prompt="", completion="", reward=1.0)
    run = Run(
        path=Path("r"),
        source=Source(path="r", format="trl", recognized="a run"),
        groups=tuple(RolloutGroup(step=s, group_id="g", prompt_id="p", rollouts=(rollout,)) for s in range(1, 9)),
        metrics={step: {"grad_norm": spike if step == 5 else 1.0} for step in range(1, 9)},
        weights=weights,
    )
    assert report._usable_steps(run, None) == (1, 3, 5, 8)
    assert report._usable_steps(run, "all") == tuple(range(1, 9))


RUN = run_of(group_of([1, 0]))


def step(number: int, rows: list[list[float]] | None) -> Any:
    gram = None if rows is None else gram_of(rows, ["0/p"] * len(rows), step=number)
    return SimpleNamespace(step=number, gram=gram, weights=f"weights {number}", groups=RUN.groups, loss="its loss")


@pytest.mark.parametrize("rows", [None, [[0.0]]])
def test_without_a_gradient_the_reason_is_that_of_the_steps(rows: list[list[float]] | None) -> None:
    assert report_tokens(RUN, [step(1, rows)], NOT_READ, 64, EngineOptions()) is NOT_READ
    unasked = report_tokens(RUN, [step(1, [[1.0]])], NOT_READ, 0, EngineOptions())
    assert unasked.reason == "The gradients of single tokens were not computed, as asked (--max-tokens 0)."


def test_rollouts_of_the_largest_gradient_are_measured_by_their_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of 2/6, none, and 4/6 of a sum along the first axis."""
    measured: dict[str, Any] = {}

    def measure(prepared: str, gram: Any, order: list[int], **options: int) -> tuple[()]:
        measured.update(prepared=prepared, step=gram.step, order=order, **options)
        return ()

    monkeypatch.setattr(recomputed, "prepared_of", lambda run, step, weights, loss, *_: f"{weights}, ready")
    monkeypatch.setattr(recomputed, "under", lambda prepared, assumption: f"{prepared} as {assumption}")
    monkeypatch.setattr(measure_module, "measure_rollout_tokens", measure)
    steps = [step(1, [[1.0, 0.0]]), step(2, [[2.0, 0.0], [0.0, 0.0], [4.0, 0.0]])]
    steps[1].gram.batch_tokens, steps[1].gram.assumption = 128, "trained"
    assert report_tokens(RUN, steps, NOT_READ, 64, EngineOptions()) == ()
    assert measured == {"prepared": "weights 2, ready as trained", "step": 2, "order": [2, 0], "max_tokens": 64}
    assert np.allclose(steps[1].gram.policy_gram.sum(), 36.0)


def test_all_tokens_of_a_step_are_those_of_plain_forward_passes(tmp_path: Path) -> None:
    run = run_on(tmp_path, 0, 2)
    run = replace(run, metrics={1: {"entropy": 0.5}})
    parts = report.token_parts(run, tuple(measure_steps(run, (1,), ON_CPU, no_progress)), ON_CPU)
    before, after = (plain_outputs(run, tmp_path / name) for name in ("0", "2"))
    (change,), (moved,) = parts.entropy, parts.logprobs
    assert change.entropy.value == pytest.approx(before[1].mean(), abs=1e-5)
    assert change.measured.value == pytest.approx((after - before)[1].mean(), abs=1e-5)
    advantages = tokens_of(run).advantages
    assert change.covariance.value == pytest.approx(np.cov(before[0], advantages, bias=True)[0, 1], abs=1e-5)
    assert (change.logged, change.last) == (0.5, 2)
    assert moved.positive.value == pytest.approx((after - before)[0][advantages > 0].mean(), abs=1e-5)
    assert (list(parts.weighed), parts.kl, parts.turns) == ([1], (), ())


def test_only_the_last_step_is_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "_prepared", lambda run, step, options: step)
    monkeypatch.setattr(
        rank_tokens, "weigh_step", lambda prepared, gram: made_up(num_turns=2).weighed if gram.step else None
    )
    groups = tuple(group_of([0.0] * 3, prompt=f"p{number}") for number in range(4))
    live = [SimpleNamespace(step=n, gram=gram_of([[1.0]], ["a"], step=n), groups=groups) for n in (0, 1, 6)]
    parts = report.token_parts(RUN, [*live, step(9, None), step(10, [[0.0]])], EngineOptions())
    assert list(parts.weighed) == [1, 6]
    assert [row.measured.undefined for row in parts.entropy] == [
        "only step 6 is followed on this page",
        "no weights after its update are on disk",
    ]
    assert [row.step for row in parts.kl] == [1, 6]
    assert [(row.step, row.turn) for row in parts.turns] == [(1, 1), (1, 2), (6, 1), (6, 2)]
    assert report.token_parts(RUN, [step(9, None)], EngineOptions()) == TokenParts()
    monkeypatch.setattr(processes, "num_connected", lambda: 2)
    assert report.token_parts(RUN, [step(1, [[1.0]])], EngineOptions()) == TokenParts()


STRIP_RUN = run_of(
    *(
        group_of(rewards, step=step, prompt=f"{step}{n}")
        for step in (1, 2)
        for n, rewards in enumerate(([1, 0], [0, 0]))
    )
)


def numbers(**parts: Any) -> list[KeyNumber]:
    return list(key_numbers(inputs_of(STRIP_RUN, **parts)))


def test_shares_come_of_the_training_groups_or_before_them_of_held_out_samples() -> None:
    strip = numbers()
    assert [number.name for number in strip] == ["signal", "rank", "replay", "agreement", "coverage"]
    assert [bool(number.value.undefined) for number in strip] == [True] * 5
    assert [number.course for number in strip] == [()] * 5
    dead, *_, reach = numbers(degeneracy=degeneracy_of_run(STRIP_RUN))
    assert (dead.value.value, dead.note, dead.places, dead.course) == (0.5, "of 4 groups", (1, 2), (0.5, 0.5))
    assert (reach.value.value, reach.then.value) == (0.25, 0.5)
    assert (reach.title, reach.note) == ("pass rate → groups with a pass", "of 4 training groups of 2")
    samples = samples_of_run(samples_run({"a": [1, 0, 0, 0], "b": [0, 0, 0, 0]}), name="after")
    *_, reach = numbers(passk=pass_at_k_of_samples([samples]), degeneracy=degeneracy_of_run(STRIP_RUN))
    assert (reach.value.value, reach.then.value, reach.name) == (0.125, 0.5, "coverage")
    assert reach.note == "k = 1 and 4, after"


def test_the_error_and_the_mismatch_are_those_of_replay_and_log() -> None:
    report = replay_report()
    *_, norm, _, _ = numbers(replay=report)
    errors = [step.relative_error["grad_norm"] for step in report.steps if "grad_norm" in step.relative_error]
    assert norm.value.value == max(errors)
    assert (
        norm.note
        == f"{sum(error <= report.tolerance for error in errors)} of {len(errors)} norms match; line: as logged"
    )
    assert norm.course == tuple(step.logged.get("grad_norm") for step in report.steps)
    bare = tuple(replace(step, relative_error={}, logged={}) for step in report.steps)
    *_, norm, _, _ = numbers(replay=replace(report, steps=bare))
    assert (norm.value.undefined, norm.note, norm.course) == ("no gradient was compared", "", ())
    *_, mismatch, _ = numbers(logged=LoggedPolicy(sampler=run_report().logged.sampler))
    assert mismatch.value.value == 0.5
    *_, mismatch, _ = numbers(logged=LoggedPolicy(sampler=SamplerMismatch()))
    assert mismatch.value == Estimate.undefined_because("the log does not hold the log-probabilities of both")
