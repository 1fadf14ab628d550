"""The studies: plans that can be run, tests that are those of the plan, a page that takes in what came out."""

from __future__ import annotations

import csv
import importlib
import itertools
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from gradscope.training.run_checks import check_settings
from tests.conftest import REPOSITORY
from tests.diagnostics.compared_runs import write_run

STUDIES = ("study_sign", "study_five", "study_steps", "study_starvation")
PARTS = {"pilot": "<!-- end of pilot -->", "tables": "<!-- end of tables -->"}


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Modules of the folder of benchmarks, by name."""
    monkeypatch.syspath_prepend(str(REPOSITORY / "benchmarks"))
    return importlib.import_module


def begin(name: str, part: str) -> str:
    return f"<!-- {part} of benchmarks/{name}.py -->"


@pytest.mark.parametrize("name", STUDIES)
def test_every_run_of_a_plan_can_be_made(scripts: Any, tmp_path: Path, name: str) -> None:
    study, rates = scripts(name).STUDY, scripts("study").RATES
    assert not set(study.seeds) & set(study.pilot_seeds)
    chosen = dict.fromkeys(study.arms, next(iter(rates)))
    cells = (*study.choosing_cells, *study.spread_cells(chosen), *study.cells(chosen))
    folders = {}
    for cell in cells:
        config = study.cell(tmp_path, *cell)
        check_settings(config)
        folders[config.output] = cell
    assert len(folders) == len(set(cells))
    assert len(study.cells(chosen)) == len(study.arms) * len(study.seeds) == len(study.arms) * 20
    for claim in study.claims:
        assert study.against[claim.arm] == claim.baseline
        assert claim.metric in study.metrics


@pytest.mark.parametrize("name", [*STUDIES, "study_rank"])
def test_the_page_of_a_study_has_its_plan_and_takes_its_tables(name: str) -> None:
    page = (REPOSITORY / "docs" / "research" / f"{name}.md").read_text()
    assert page.index("## The plan") < page.index(begin(name, "pilot")) < page.index(PARTS["pilot"])
    assert page.index("## What came out") < page.index(begin(name, "tables")) < page.index(PARTS["tables"])
    assert all(
        (REPOSITORY / "docs" / "research" / file.split(")")[0]).is_file()
        for file in page.split("](")[1:]
        if ".csv" in file
    )


def small(study: Any) -> Any:
    """A study of three arms and five seeds, by the folders of runs that were never trained."""
    claims = (
        study.Claim(arm="better", baseline="base", metric="pass@1", reported="higher"),
        study.Claim(arm="same", baseline="base", metric="pass@1", reported="negligible", margin=0.3),
        study.Claim(arm="same", baseline="base", metric="fails", reported="fails", is_share=True),
    )
    return study.Study(
        name="study_small",
        base={"group_size": 4},
        arms={"base": {}, "better": {"advantage": "sign"}, "same": {"advantage": "rloo"}},
        against={"better": "base", "same": "base"},
        claims=claims,
        metrics={"pass@1": study.held_out(1), "fails": lambda run: float(run.reward[-1] < 0.5)},
        rate_of={"base": "base", "better": "better", "same": "base"},
        seeds=range(100, 108),
    )


def train(study: Any, folder: Path, cell: tuple[str, str, int], passes: int) -> None:
    """The folder of a run whose two held-out prompts have so many passes in eight samples."""
    settings = study.cell(folder, *cell)
    correct = (passes // 2, passes - passes // 2)
    write_run(Path(settings.output), advantage=settings.advantage, seed=settings.seed, correct=correct)


def test_the_pilot_chooses_the_rate_with_the_highest_pass_rate(scripts: Any, tmp_path: Path) -> None:
    study = scripts("study")
    design = small(study)
    for arm, rate, seed in design.choosing_cells:
        train(
            design,
            tmp_path,
            (arm, rate, seed),
            {"3e-5": 2, "1e-4": 3, "3e-4": 5 - 2 * (arm == "better"), "1e-3": seed}[rate],
        )
    runs = study.Runs.read(design, tmp_path, design.choosing_cells, {})
    assert not runs.num_missing
    assert {arm for arm, _, _ in design.choosing_cells} == {"base", "better"}
    assert runs.best_rates() == {"base": "3e-4", "better": "1e-4", "same": "3e-4"}


def test_claims_are_judged_as_one_family_by_sign_flips(scripts: Any, tmp_path: Path) -> None:
    study = scripts("study")
    design, rates = small(study), dict.fromkeys(("base", "better", "same"), "3e-4")
    passes = {"base": [2, 3, 2, 3, 2, 3, 2, 3], "better": [6, 6, 5, 7, 4, 6, 7, 5], "same": [2, 3, 3, 2, 2, 3, 2, 4]}
    for arm, rate, seed in design.cells(rates):
        train(design, tmp_path, (arm, rate, seed), passes[arm][seed - 100])
    runs = study.Runs.read(design, tmp_path, design.cells(rates), rates)
    better, same, fails = runs.judged
    change = (np.array(passes["better"]) - passes["base"]) / 8
    flips = [abs(np.dot(signs, change)) for signs in itertools.product([1, -1], repeat=8)]
    assert better.p_value == np.mean(np.array(flips) >= change.sum() - 1e-9) == 2 / 256
    assert (better.p_holm, better.verdict) == (pytest.approx(2 / 256 * 2), "higher")
    assert (same.p_value, same.p_holm, same.verdict) == (1 / 256, pytest.approx(3 / 256), "within 0.3 of it")
    assert (fails.p_value, fails.verdict, fails.estimate.value) == (1.0, "not decided", 0.0)
    assert better.estimate.value == pytest.approx(change.mean())
    text = scripts("study_tables").tables(runs)
    assert "3 tests, 8 seeds; p-values are Holm's for all 3." in text
    assert "**within 0.3 of it**" in text
    (tmp_path / "by_seed.csv").write_text(runs.by_seed())
    again = study.Runs.from_seeds(design, tmp_path / "by_seed.csv")
    assert (scripts("study_tables").tables(again), again.by_seed()) == (text, runs.by_seed())
    assert runs.by_seed().splitlines()[:2] == ["arm,learning rate,seed,pass@1,fails", "base,3e-4,100,0.25,0.0"]


def test_nothing_is_tested_before_all_runs_are_in(scripts: Any, tmp_path: Path) -> None:
    study = scripts("study")
    design, rates = small(study), dict.fromkeys(("base", "better", "same"), "3e-4")
    for cell in design.cells(rates)[:-1]:
        train(design, tmp_path, cell, 4)
    runs = study.Runs.read(design, tmp_path, design.cells(rates), rates)
    text = scripts("study_tables").tables(runs)
    assert text == "23 of 24 runs of the study are finished. Nothing is tested before all are."


def test_labels_that_are_dealt_anew_are_the_same_labels(scripts: Any) -> None:
    rank: ModuleType = scripts("study_rank")
    from gradscope.rollouts.groups import Rollout, RolloutGroup

    rollouts = tuple(
        Rollout(group_id="g", sample=i, row=i, prompt="p", completion="c", reward=float(i % 3 == 0), token_rewards=own)
        for i, own in enumerate([(1.0, 0.0), (0.0, 1.0, 1.0), (0.0,), (1.0, 1.0)])
    )
    group = RolloutGroup(step=1, group_id="g", prompt_id="p", rollouts=rollouts)
    parts = {name: rank.labeled(group, 2, label) for name, label in rank.BY_TOKEN.items()}
    assert [part.group_id for part in parts["per step"]] == ["p/0", "p/1"]
    for part, dealt in zip(parts["per step"], parts["per step, dealt anew"], strict=True):
        credits = [[*rollout.token_advantages] for one in (part, dealt) for rollout in one.rollouts]
        first, second = credits[: len(credits) // 2], credits[len(credits) // 2 :]
        assert sorted(itertools.chain(*first)) == sorted(itertools.chain(*second))
        assert [len(own) for own in first] == [len(own) for own in second]
    # by hand, the first two rollouts: returns (1, 0) and (2, 2, 1), their means (1.5, 1, .5)
    assert [rollout.token_advantages for rollout in parts["per step"][0].rollouts] == [(-0.5, -1.0), (0.5, 1.0, 0.5)]


Ran = Callable[..., tuple[Any, str, str]]


@pytest.fixture
def run_study(scripts: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Ran:
    """A study's exit code or last words, stdout and stderr; run here, where a warning is an error and imports are made.

    Its cells are processes of their own all the same.
    """

    def run(name: str, *arguments: str | Path) -> tuple[Any, str, str]:
        monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            runpy.run_module(name, run_name="__main__")
        return ended.value.code, *capsys.readouterr()

    return run


def page_of(folder: Path, name: str) -> Path:
    page = folder / "page.md"
    parts = "\n".join(f"{begin(name, part)}\n\na table of yesterday\n\n{end}\n" for part, end in PARTS.items())
    page.write_text(f"before\n\n{parts}\nafter\n")
    return page


@pytest.mark.slow
def test_the_quick_study_fills_its_page(run_study: Ran, tmp_path: Path) -> None:
    page, images = page_of(tmp_path, "study_sign"), tmp_path / "images"
    arguments = ("--quick", "--output", tmp_path / "runs", "--page", page, "--images", images)
    words, _, _ = run_study("study_sign", *arguments)
    assert words == "8 runs of the pilot are missing: run it first, with --pilot"
    code, pilot, error = run_study("study_sign", *arguments, "--pilot")
    assert code == 0, error
    assert pilot.count("wrote ") == 8
    assert "8 of 8 runs of the pilot are finished." in page.read_text()
    code, done, error = run_study("study_sign", *arguments)
    assert code == 0, error
    assert done.count("wrote ") == 4
    text = page.read_text()
    assert text.startswith("before\n\n")
    assert text.endswith(f"{PARTS['tables']}\n\nafter\n")
    assert "yesterday" not in text
    assert "1 test, 2 seeds." in text
    assert {path.name for path in images.iterdir()} == {"study_sign_steps.svg", "study_sign_differences.svg"}
    _, again, _ = run_study("study_sign", *arguments)
    assert "wrote " not in again
    assert page.read_text() == text
    check_files(tmp_path)


@pytest.mark.slow
def test_the_quick_study_of_ranks_fills_its_page(run_study: Ran, tmp_path: Path) -> None:
    page, images = page_of(tmp_path, "study_rank"), tmp_path / "images"
    arguments = ("--quick", "--output", tmp_path / "runs", "--page", page, "--images", images)
    code, _, error = run_study("study_rank", *arguments)
    assert code == 0, error
    assert "by sign flips: " in page.read_text()
    assert [path.name for path in images.iterdir()] == ["study_rank_sizes.svg"]
    check_files(tmp_path)


def test_a_step_is_judged_by_the_samples_from_before_it(scripts: Any) -> None:
    """Two prompts with rates of 1/4 and 0; a step that doubles the first, and moves mass among the second's fails."""
    study = scripts("study_intervention")
    before = study.Sampled(
        ids=None,
        mask=None,
        prompt=np.array([3, 3, 7, 7]),
        reward=np.array([1.0, 0.0, 0.0, 0.0]),
        share=np.array([0.25, 0.75, 0.5, 0.5]),
    )
    failed, passed = study.changes(before, np.array([2.0, 2 / 3, 1.5, 0.5]))
    assert (failed, passed) == pytest.approx(((0.5**4 - 0.75**4) / 2, 0.25 / 2))
    assert study.changes(before, np.ones(4)) == (0.0, 0.0)


@pytest.mark.slow
def test_the_quick_study_of_one_step_fills_its_page(run_study: Ran, tmp_path: Path) -> None:
    page = page_of(tmp_path, "study_intervention")
    code, _, error = run_study("study_intervention", "--quick", "--output", tmp_path / "runs", "--page", page)
    assert code == 0, error
    rows = list(csv.DictReader((tmp_path / "study_intervention.csv").read_text().splitlines()))
    assert (
        2 * 2 * 2 * 2 <= len(rows) <= 2 * 2 * 3 * 2
    )  # weights, batches, lengths, directions, of which one may be none
    first = [row for row in rows if (row["checkpoint"], row["length"]) == ("0", "0.01")]
    own = [float(row["q^4 change"]) for row in first if row["direction"].startswith("all-fail")]
    assert f"| 0 | 0.01 | all-fail part of sign | {len(own)} | {1000 * np.mean(own):+.2f} [" in page.read_text()


@pytest.mark.slow
def test_granularity_is_measured_on_the_same_rollouts(run_study: Ran, tmp_path: Path) -> None:
    for folder in ("research", "images"):
        (tmp_path / folder).mkdir()
    code, _, error = run_study("granularity", "--quick", "--output", tmp_path / "runs", "--docs", tmp_path)
    assert code == 0, error
    with (tmp_path / "research" / "formulations_granularity.csv").open() as file:
        rows = {row["advantage"]: row for row in csv.DictReader(file)}
    assert len(rows) == 10
    assert rows["dr_grpo"]["over dr_grpo's"] == "1.00 [1.00, 1.00]"
    assert len({row["signal to noise"] for row in rows.values()}) > 5
    assert "</svg>" in (tmp_path / "images" / "granularity.svg").read_text()


def check_files(folder: Path) -> None:
    """The tables beside a page are whole."""
    files = list(folder.glob("*.csv"))
    assert files
    for file in files:
        head, *rows = csv.reader(file.read_text().splitlines())
        assert f"({file.name})" in (folder / "page.md").read_text()
        assert rows
        assert all(len(row) == len(head) for row in rows)


@pytest.mark.slow
def test_a_page_without_the_markers_is_refused(run_study: Ran, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("nothing\n")
    code, _, error = run_study("study_sign", "--quick", "--output", tmp_path / "runs", "--page", page)
    assert code == 2
    assert "has no line" in error
    assert not (tmp_path / "runs").exists()
