"""Every question about rewards has the answer of the whole, byte for byte but for paths and times."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gradscope.diagnostics import reduce
from gradscope.diagnostics.check.measure import check_run
from gradscope.diagnostics.degeneracy.group_rewards import DegeneracyOptions
from gradscope.diagnostics.degeneracy.measure import measure_degeneracy
from gradscope.diagnostics.passk.measure import measure_pass_at_k
from gradscope.diagnostics.reduce import reduce_run
from gradscope.diagnostics.report.measure import report_run
from gradscope.errors import InputError
from gradscope.render.files import document_of
from gradscope.results.envelope import render_json
from gradscope.rollouts.readers.detect import read_run
from tests.conftest import LOGS
from tests.rollouts.readers.lines import write_lines

QUESTIONS: dict[str, Callable[[Path], Any]] = {
    "degeneracy": lambda path: measure_degeneracy(
        path, group_sizes=(2, 8), options=DegeneracyOptions(target_degeneracy=0.2)
    ),
    "check": lambda path: check_run(path, requirements=["frac_reward_zero_std@last1 <= 0.1", "jensen_gap >= 0"]),
}
OF_TEXTS = {"length", "loss-scale"}  # sections of a page that look at completions or their tokens


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Three files of two steps whose groups go on from file to file, a broken line and a missing reward among them."""
    rows = [
        {
            "step": step,
            "group_id": f"g{group}",
            "prompt": f"What is {group}?",
            "completion": "x" * sample,
            "accuracy_reward": float((group + sample) % 3 == 0),
            "format_reward": float(sample % 2),
            "reward": float((group + sample) % 3 == 0) + float(sample % 2),
        }
        for sample in range(4)
        for step in (1, 2)
        for group in range(6)
    ]
    rows[20]["reward"] = None
    lines = [json.dumps(row) for row in rows]
    lines[30:30] = ["{"]
    folder = tmp_path / "whole/log"
    folder.mkdir(parents=True)
    for index, name in enumerate("123"):
        text = "".join(f"{line}\n" for line in lines[index * 17 : (index + 1) * 17])
        (folder / f"shard_{name}.jsonl").write_text(text, encoding="utf-8")
    return folder


@pytest.fixture
def parts(log: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "parts/log"
    for name in "312":
        reduce_run(log / f"shard_{name}.jsonl", folder)
    return folder


def document(result: object, path: Path) -> str:
    return render_json({**document_of(result), "created_at": ""}).replace(str(path.parent), "")


@pytest.mark.parametrize("question", sorted(QUESTIONS))
def test_merged_parts_answer_as_the_whole(log: Path, parts: Path, question: str) -> None:
    ask = QUESTIONS[question]
    assert document(ask(parts), parts).replace(str(log.parent), "") == document(ask(log), log)


def test_samples_of_one_policy_answer_as_the_whole(tmp_path: Path) -> None:
    log, parts = tmp_path / "whole/log", tmp_path / "parts/log"
    log.mkdir(parents=True)
    for file_number in range(3):
        rows = [{"task_id": f"t{task}", "passed": (task * file_number) % 2 == 0} for task in range(8) for _ in range(2)]
        (log / f"{file_number}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
        reduce_run(log / f"{file_number}.jsonl", parts)
    merged = document(measure_pass_at_k(parts), parts).replace(str(log.parent), "")
    assert merged == document(measure_pass_at_k(log), log)


def test_a_page_of_parts_lacks_what_is_read_of_texts_and_no_more(log: Path, parts: Path) -> None:
    report, merged = report_run(log), report_run(parts)
    assert [section.name for section in merged.sections] == [section.name for section in report.sections]
    for of_parts, of_log in zip(merged.sections, report.sections, strict=True):
        if of_log.name not in OF_TEXTS:
            expected = str(of_log).replace(str(log.parent), "").replace("Rollout 0 of group 2:g0", "Rollout 0")
            assert str(of_parts).replace(str(parts.parent), "") == expected, of_log.name
    (length,) = (section for section in merged.sections if section.name == "length")
    assert length.missing.endswith("Name the log itself.")
    assert merged.strip == report.strip
    assert (merged.rollouts, len(report.rollouts) > 0) == ((), True)


def test_advantages_of_the_log_are_replayed_from_parts(tmp_path: Path) -> None:
    fixture = LOGS / "trl"
    reduce_run(fixture, tmp_path / "trl")
    report, wanted = report_run(tmp_path / "trl"), report_run(fixture)
    (of_parts,), (of_log,) = ([part for part in run.sections if part.name == "replay"] for run in (report, wanted))
    assert of_parts.tables == of_log.tables


def test_evaluations_and_metrics_alone_are_not_reduced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for log, message in (
        ("skyrl_eval", "holds 2 evaluations, which are never pooled"),
        ("metrics", "holds metrics and no rollouts"),
    ):
        with pytest.raises(InputError, match=message):
            reduce_run(LOGS / log, tmp_path)
    run = read_run(LOGS / "inspect_ai", rewards_only=True)
    cancelled = replace(run, source=replace(run.source, unfinished="was cancelled: 12 of 32 samples"))
    monkeypatch.setattr(reduce, "read_run", lambda *_, **__: cancelled)
    with pytest.raises(InputError, match="was cancelled: 12 of 32 samples"):
        reduce_run(LOGS / "inspect_ai", tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["rollouts_step{}.jsonl", "{}.jsonl"])
def test_a_file_whose_name_alone_has_the_step_is_no_part(name: str, tmp_path: Path) -> None:
    for step, prompts in enumerate(("ab", "bc")):
        rows = ({"prompt": prompt, "reward": reward % 2} for prompt in prompts for reward in range(2))
        file = write_lines(tmp_path / "log" / name.format(step), *rows)
    hint = f"Reduce such files together: gradscope reduce {file.parent} -o parts"
    with pytest.raises(InputError, match="is in its name alone, which a part does not have") as refused:
        reduce_run(file, "parts")
    assert refused.value.hint == hint
    report = measure_degeneracy(reduce_run(file.parent, tmp_path / "parts").parent)
    assert [(row.step, row.num_groups) for row in report.by_step] == [(0, 2), (1, 2)]
