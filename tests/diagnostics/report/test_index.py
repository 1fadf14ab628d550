"""A folder of runs as an index, and runs side by side."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from gradscope.diagnostics.report.index import _summary, report_index, report_runs, side_by_side
from gradscope.errors import InputError
from gradscope.results.report import ReportSection
from gradscope.rollouts.run import Run
from tests.diagnostics.made_up_runs import group_of, run_of
from tests.rollouts.readers.lines import write_lines


def write_run(folder: Path, name: str, rewards_by_step: list[list[int]]) -> Path:
    """A prompt a step: a log in a folder of its own."""
    steps = enumerate(rewards_by_step, start=1)
    rows = [{"prompt_id": f"p{step}", "step": step, "reward": reward} for step, rewards in steps for reward in rewards]
    return write_lines(folder / name / "log.jsonl", *rows)


RISING = [[0, 0, 0, 0], [1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0]]
FLAT = [[1, 1, 1, 1]] * 4


def test_each_run_has_its_numbers_curves_and_findings(tmp_path: Path) -> None:
    runs = [write_run(tmp_path, "rising", RISING), write_run(tmp_path, "flat", FLAT)]
    index = report_index(tmp_path, runs)
    rising, flat = index.runs
    assert (rising.name, rising.steps, rising.num_rollouts) == ("rising/log.jsonl", (1, 2, 3, 4), 16)
    assert rising.reward_by_step == (0.0, 0.25, 0.5, 0.75)
    assert rising.degenerate_by_step == (1.0, 0.0, 0.0, 0.0)
    assert rising.grad_norm_by_step == (None,) * 4
    assert (rising.reward.value, rising.reward.interval) == (0.375, None)
    assert rising.reward_change.value == pytest.approx(0.75)
    assert rising.frac_reward_zero_std.value == 0.25
    assert flat.frac_reward_zero_std.value == 1.0
    assert index.source.num_rows == 32
    assert index.source.recognized == "2 runs"
    series = index.sections[1]
    assert (series.severity, series.findings[1][:11]) == ("problem", "Mean reward")  # with dead groups first
    share, rise = series.headline, index.findings[-1]
    assert "in 1 of 2 runs and falls in 0, along the line through its steps, at 95 % each." in rise
    assert share.startswith("Groups without a gradient: most in flat/log.jsonl (100.0 % [")
    assert "fewest in rising/log.jsonl (25.0 % [" in share
    assert len(report_index(tmp_path, runs[:1]).findings) == 1


def test_progress_names_each_run_before_reading_it(tmp_path: Path) -> None:
    reported: list[tuple[int, int, str]] = []
    runs = [write_run(tmp_path, "a", RISING)]
    report_index(tmp_path, runs, progress=lambda done, total, name: reported.append((done, total, name)))
    assert (reported[0], reported[-1]) == ((0, 1, "a/log.jsonl"), (1, 1, "runs"))
    assert all(name.startswith("a/log.jsonl: ") for _, _, name in reported[1:-1])


def test_what_cannot_be_read_is_left_out_unless_nothing_is_left(tmp_path: Path) -> None:
    broken = tmp_path / "broken.jsonl"
    broken.write_text("{}\n")
    run = write_run(tmp_path, "a", RISING)
    assert [name for name, _ in report_index(tmp_path, [run, broken]).left_out] == ["broken.jsonl"]
    with pytest.raises(InputError, match=r"broken\.jsonl cannot be summarized: "):
        report_index(tmp_path, [broken])
    with pytest.raises(InputError, match=r"broken\.jsonl cannot be summarized: "):
        report_index(tmp_path, [run, broken], strict=True)


@pytest.mark.parametrize("scale", [1.0, 5.0])
def test_runs_of_the_same_prompts_are_paired_as_in_passk(scale: float) -> None:
    """Of 33 prompts from hard to easy one policy solved less of half: as independent runs they did not differ."""
    better = run_of(*(group_of([scale * (row < n // 4) for row in range(8)], prompt=f"p{n}") for n in range(3, 36)))
    worse = run_of(
        *(group_of([scale * (row < n // 4 - 1 + n % 2) for row in range(8)], prompt=f"p{n}") for n in range(35, 2, -1))
    )
    section, *_ = sections_of(better, worse)
    assert section.headline.startswith("B against A: mean reward -")
    other, *_ = sections_of(better, replace(worse, groups=worse.groups[:-1]))
    assert other.headline == "B against A: none of 2 differences is beyond chance."


@pytest.mark.parametrize("num_steps", [1, 2, 3])
def test_a_trend_is_told_of_runs_that_have_one(tmp_path: Path, num_steps: int) -> None:
    runs = [write_run(tmp_path, name, [[0, 1, 1, 0]] * num_steps) for name in "ab"]
    findings = " ".join(report_runs(runs).findings)
    assert ("The reward rises beyond chance in" in findings) == (num_steps > 1)
    assert ("0 of 2 runs" in findings, "a trend needs three steps" in findings) == (num_steps == 3, num_steps == 2)
    assert ("first to last step" in findings) == (num_steps > 1)
    assert "Groups without a gradient: 0.0 % in each run." in findings


def test_a_reward_that_drops_early_is_told_though_no_line_falls(tmp_path: Path) -> None:
    rewards = [0.75, 1.0] * 4 + [0.0, 0.0625] * 16
    for name, values in (("dropped", rewards), ("steady", [0.75, 0.875] * 20)):
        write_lines(tmp_path / f"{name}.jsonl", *({"step": n, "reward": value} for n, value in enumerate(values)))
    *_, lines, drop = report_index(tmp_path, sorted(tmp_path.iterdir())).findings
    assert "in 0 of 2 runs and falls in 0, along the line through its steps, at 95 % each; in 1 more it drops" in lines
    assert drop == "The reward of dropped.jsonl drops at step 8 from 1 to 0 (medians of 5 steps)."


def test_evaluations_without_groups_are_sent_to_passk(tmp_path: Path) -> None:
    runs = [
        write_lines(tmp_path / f"{name} 1.jsonl", *({"task_id": f"t{n}", "passed": n % 2 == 0} for n in range(6)))
        for name in "ab"
    ]
    with pytest.raises(InputError, match="has no group to judge") as caught:
        report_runs(runs)
    assert caught.value.hint == f"gradscope passk '{runs[0]}' '{runs[1]}'"
    with pytest.raises(InputError, match="has no group to judge") as caught:
        report_runs([runs[0], write_lines(tmp_path / "m.jsonl", *({"step": s, "reward": 0.1} for s in range(3)))])
    assert caught.value.hint == "Name runs, not folders that hold several."


@pytest.mark.slow
def test_named_runs_are_compared_with_the_first_and_many_are_an_index(tmp_path: Path) -> None:
    runs = [write_run(tmp_path, "rising", RISING), write_run(tmp_path, "flat", FLAT)]
    index = report_runs(runs)
    assert [run.name for run in index.runs] == ["rising/log.jsonl", "flat/log.jsonl"]
    assert index.name == "rising/log.jsonl and flat/log.jsonl"
    assert index.findings[0].startswith("flat/log.jsonl against rising/log.jsonl: ")
    assert [section.name for section in index.sections] == ["differences", "courses", "settings"]
    with pytest.raises(InputError, match="nowhere cannot be summarized: There is no file or folder"):
        report_runs([*runs, tmp_path / "nowhere"])
    runs = [write_run(tmp_path, name, RISING) for name in "abcdefghijklm"]
    assert report_runs(runs).sections == ()
    assert len(report_runs(runs[:-1]).sections) == 3
    assert len(report_runs(runs).runs) == 13
    assert len(report_index(tmp_path, runs[:4]).sections) == 3


def run_with(
    rate: float,
    *,
    steps: int = 12,
    size: int = 4,
    groups: int = 8,
    seed: int = 0,
    settings: Mapping[str, object] | None = None,
    norm: float | None = None,
) -> Run:
    """Coin flips at a rate."""
    rng = np.random.default_rng(seed)
    return run_of(
        *(
            group_of((rng.random(size) < rate).astype(float).tolist(), step=step, prompt=f"p{step}-{index}")
            for step in range(1, steps + 1)
            for index in range(groups)
        ),
        metrics={} if norm is None else {s: {"grad_norm": norm + 0.01 * (s % 3)} for s in range(1, steps + 1)},
        settings=settings,
    )


def sections_of(*runs: Run) -> tuple[ReportSection, ReportSection, ReportSection]:
    named = dict(zip("ABCDEFG", runs, strict=False))
    differences, series, settings = side_by_side(named, [_summary(run, name, None) for name, run in named.items()])
    return differences, series, settings


def rows_of(section: ReportSection) -> dict[str, tuple[str, ...]]:
    return {str(row[0]): tuple(map(str, row[1:])) for row in section.tables[0].rows}


def test_completions_that_grow_differ_by_their_texts(tmp_path: Path) -> None:
    """Of text alone the lengths of two runs were not compared."""
    runs = []
    for name, growth in (("a", 0), ("b", 400)):
        rows = [
            {
                "step": step,
                "prompt": f"p{sample % 2}",
                "completion": "x" * (900 + growth * step + sample),
                "reward": sample % 4 // 2,
            }
            for step in range(1, 13)
            for sample in range(8)
        ]
        runs.append(write_lines(tmp_path / f"{name}.jsonl", *rows))
    index = report_index(tmp_path, runs)
    assert "b.jsonl against a.jsonl: characters of a completion, trend +4,400 [" in index.findings[0]


def test_a_run_that_earns_more_differs_and_an_equal_run_does_not() -> None:
    better, _, _ = sections_of(run_with(0.2), run_with(0.8, seed=1))
    assert better.severity == "look"
    assert better.headline.startswith("B against A: mean reward +0.")
    first, second, difference = rows_of(better)["mean reward"]
    assert float(second.split()[0]) - float(first.split()[0]) == pytest.approx(float(difference.split()[0]), abs=1e-3)
    same, _, _ = sections_of(run_with(0.5), run_with(0.5, seed=5))
    assert same.headline == "B against A: none of 3 differences is beyond chance."
    assert same.severity == "fine"


def test_runs_are_compared_where_both_have_steps() -> None:
    section, series, _ = sections_of(run_with(0.5, steps=5), run_with(0.5, steps=12))
    assert any("over the 5 steps that all runs have, 1 to 5" in finding for finding in section.findings)
    assert series.charts[0].places == tuple(range(1, 13))
    assert series.charts[0].series[0].values[5:] == (None,) * 7
    single, *_ = sections_of(run_with(0.5, steps=1), run_with(0.5, steps=12))
    assert "Compared at step 1, the only one that all runs have." in single.findings
    assert single.tables[0].caption.startswith("Step 1, 95 % intervals")
    late = run_of(*(replace(group, step=group.step + 50) for group in run_with(0.5).groups))
    disjoint, *_ = sections_of(run_with(0.5), late)
    assert "no step in common" in str(disjoint.missing)


def test_the_first_sentence_says_that_runs_have_no_step_in_common(tmp_path: Path) -> None:
    rows = [{"step": step, "prompt_id": "p", "reward": float(step % 3 > n)} for step in range(4) for n in (0, 1)]
    logs = [
        write_lines(tmp_path / f"{shift}.jsonl", *({**row, "step": row["step"] + shift} for row in rows))
        for shift in (0, 50)
    ]
    assert report_runs(logs).findings[0].startswith("The runs have no step in common")


def test_other_group_sizes_and_shared_prompts_are_reported() -> None:
    section, *_ = sections_of(run_with(0.5, size=4), run_with(0.5, size=8))
    assert any("Groups differ in size (4; 8)" in finding for finding in section.findings)
    assert section.findings[-1] == "96 of 96 prompts are in all of them."
    other_prompts = run_of(*(group_of([0.0, 1.0], step=step, prompt=f"other {step}") for step in range(1, 13)))
    unshared, *_ = sections_of(run_with(0.5), other_prompts)
    assert unshared.findings[-1] == "0 of 108 prompts are in all of them: a difference may be that of the prompts."
    assert rows_of(section)["groups without a gradient"][2].endswith("points")


def test_three_runs_have_a_line_each_but_where_they_do_not_differ() -> None:
    section, lines, _ = sections_of(run_with(0.2), run_with(0.5), run_with(0.8))
    assert [row[1] for row in section.tables[0].rows[:2]] == ["B", "C"]
    assert [finding[0] for finding in section.findings[:2]] == ["B", "C"]
    assert [series.name for series in lines.charts[0].series] == ["A", "B", "C"]
    section, *_ = sections_of(run_with(0.2), run_with(0.2, seed=3), run_with(0.9, seed=4), run_with(0.2, seed=5))
    assert section.findings[0].startswith("C against A: mean reward +0.")
    assert section.findings[1] == "B, D against A: none of 6 differences is beyond chance."


@pytest.mark.parametrize(("number", "batches"), [(4, ["ABCD"]), (7, ["ABCD", "AEFG"])])
def test_more_runs_than_a_chart_can_hold_have_several_with_the_first_in_each(number: int, batches: list[str]) -> None:
    runs = [run_with(0.5, seed=seed, norm=float(seed)) for seed in range(number)]
    _, section, _ = sections_of(*runs)
    for title in ("Mean reward", "Groups without a gradient", "Gradient norm, as logged"):
        charts = [chart for chart in section.charts if chart.title.startswith(title)]
        assert ["".join(series.name for series in chart.series) for chart in charts] == batches
        assert len({chart.y_range for chart in charts}) == 1
        assert (title in {chart.title for chart in charts}) == (len(batches) == 1)


def test_the_trainers_own_metrics_are_compared_where_both_logged_them() -> None:
    section, series, _ = sections_of(run_with(0.5, norm=1.0), run_with(0.5, norm=3.0))
    assert rows_of(section)["gradient norm, as logged"][2].startswith("+2 [")
    assert "gradient norm, as logged" not in rows_of(sections_of(run_with(0.5, norm=1.0), run_with(0.5))[0])
    assert [chart.title for chart in series.charts][-1] == "Gradient norm, as logged"
    assert series.charts[-1].y_label == "grad_norm"
    broken = run_with(0.5, norm=1.0)
    metrics = {**broken.metrics, 3: {"grad_norm": float("nan")}}
    section, *_ = sections_of(replace(broken, metrics=metrics), run_with(0.5, norm=1.0))
    assert "nan" not in str(section.tables)
    assert (section.findings[0], section.severity) == ("A: grad_norm is NaN at step 3.", "problem")


def test_what_leaves_its_level_in_one_run_is_named_where_means_do_not_differ_beyond_chance() -> None:
    rng = np.random.default_rng(0)
    calm, wild = (
        replace(
            run_with(0.5), metrics={s: {"kl": 0.01 * rng.uniform(1, 1.1) * (rise if s > 32 else 1)} for s in range(40)}
        )
        for rise in (1, 100)
    )
    section, *_ = sections_of(calm, wild)
    assert section.findings[0].startswith("B: kl jumps at step ")
    assert section.findings[1].startswith("B against A: none of ")
    assert section.severity == "look"


@pytest.mark.parametrize(
    ("first", "second", "severity", "words"),
    [
        ({"lr": 1e-6, "beta": 0}, {"lr": 2e-6, "beta": 0}, "fine", "1 of 3 settings differs: lr."),
        ({"lr": 1e-6}, {"lr": 2e-6, "beta": 0.1}, "fine", "1 of 2 settings differs: lr."),
        ({"lr": 1, "output_dir": "a"}, {"lr": 1, "output_dir": "b"}, "fine", "0 of 2 settings differ."),
        ({"lr": 1}, None, "unknown", "0 of 1 setting differ."),
    ],
)
def test_settings_that_differ_are_listed(
    first: dict[str, object] | None, second: dict[str, object] | None, severity: str, words: str
) -> None:
    _, _, settings = sections_of(run_with(0.5, settings=first), run_with(0.5, settings=second))
    assert (settings.headline, settings.severity) == (words, severity)
    _, _, neither = sections_of(run_with(0.5), run_with(0.5))
    assert "None of the logs tells its trainer's arguments" in str(neither.missing)


def test_logs_without_rewards_still_show_what_they_have() -> None:
    bare = run_of(metrics={1: {"grad_norm": 1.0}, 2: {"grad_norm": 2.0}})
    bare = replace(bare, source=replace(bare.source, kind="metrics"))
    section, series, _ = sections_of(bare, replace(bare))
    assert list(rows_of(section)) == ["gradient norm, as logged"]
    assert series.headline == "No step of these runs has all rewards."
    assert [chart.title for chart in series.charts] == ["Gradient norm, as logged"]


def test_rewards_on_another_scale_are_no_difference(tmp_path: Path) -> None:
    rows = [{"prompt_id": f"p{n}", "step": s, "reward": n % 2} for s in (1, 2) for n in range(20) for _ in range(2)]
    logs = [
        write_lines(tmp_path / f"{name}.jsonl", *(row | {"reward": row["reward"] + shift} for row in rows))
        for name, shift in (("a", 0), ("b", 3))
    ]
    findings = report_runs(logs).findings
    assert "mean reward +" not in findings[0]
    assert "Their rewards go from 0 to 1 and 3 to 4, so mean rewards are in two units." in findings
