import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gradscope import measure_degeneracy
from gradscope.progress import no_progress
from gradscope.rollouts.read_options import ReadOptions
from gradscope.rollouts.readers.metrics_alone.console import CUT_DICTIONARY
from gradscope.rollouts.readers.metrics_alone.files import MetricsLog, opened
from gradscope.rollouts.readers.metrics_alone.published import (
    outputs_of_notebook,
    rows_of_table,
    scalars_saved,
    tables_of_markdown,
    tables_of_page,
)
from tests.rollouts.readers.lines import refused

DEAD = (0.25, 0.5, 0.75)  # the share of dead groups at steps 1 to 3 of every file below
STEPS = list(enumerate(DEAD, start=1))
PAGE = (
    "<p>3/3</p><table border=1><thead><tr><th>Step</th><th>Training Loss</th><th>reward</th>"
    "<th>frac_reward_zero_std</th><th>completions / mean_length</th></tr></thead><tbody>"
    + "".join(f"<tr><td>{step}</td><td>0.1</td><td>0.5</td><td>{dead}</td><td>9</td></tr>" for step, dead in STEPS)
    + "</tbody></table>"
)


def notebook(*outputs: dict[str, Any]) -> str:
    cells = [{"cell_type": "markdown", "source": "# x"}, {"cell_type": "code", "outputs": [*outputs, "none", {}]}]
    return json.dumps({"cells": cells, "nbformat": 4})


def shown(page: str | list[str]) -> dict[str, Any]:
    return {"output_type": "display_data", "data": {"text/html": page}}


PRINTED = "".join(f"{{'loss': 0.1, 'frac_reward_zero_std': {dead}}}\n" for dead in DEAD)


def fill(line: str) -> str:
    """A line for each step, with its number and its share."""
    return "".join(line.replace("STEP", str(step)).replace("DEAD", str(dead)) for step, dead in STEPS)


NAME = "frac_reward_zero_std"
FILES: dict[str, tuple[str, str]] = {
    "notebook's table": ("x.ipynb", notebook(shown([PAGE[:100], PAGE[100:]]))),
    "notebook's print": ("x.ipynb", notebook({"output_type": "stream", "text": PRINTED.splitlines(keepends=True)})),
    "page": ("x.html", f"<html><body>{PAGE}<table><tr><th>other</th></tr></table></body></html>"),
    "card": ("README.md", f"# Card\n\n| Step | {NAME} |\n|:-:|---|\n" + fill("| STEP | DEAD |\n") + "\nend"),
    "saved CSV": (f"run-a-tag-train_{NAME}.csv", "Wall time,Step,Value\n" + fill("1.7e9,STEP,DEAD\n")),
    "saved JSON": (f"run-a-tag-train_{NAME}.json", json.dumps([[1.7e9, s, d] for s, d in STEPS])),
    "long table": ("x.csv", "step,metric,value\n" + fill(f"STEP,reward,0.5\nSTEP,{NAME},DEAD\n")),
    "long lines": ("x.jsonl", fill(f'{{"step": STEP, "name": "{NAME}", "value": DEAD}}\n')),
    "step under a name": ("x.jsonl", fill(f'{{"system/step": STEP, "{NAME}": DEAD}}\n')),
    "names and values": ("x.log", fill(f"INFO: step=STEP reward=0.5 {NAME}=DEAD\n")),
    "names and values between bars": ("x.log", fill(f"Iter   STEP | reward 0.5 ± 0.30 | {NAME} DEAD (of 8) | 1.5s\n")),
    "colored boxes": (
        "x.log",
        fill(f"\x1b[3m  Step STEP  \x1b[0m\n│\x1b[1m {NAME} \x1b[0m│\x1b[32m DEAD{' ' * 20}\x1b[0m│\n"),
    ),
    "a step of so many, and bars": ("x.log", fill(f"step STEP/3 | loss 0.1 | {NAME} DEAD | lr 1e-6\n")),
    "a step of so many, and spaces": ("x.log", fill(f"[Step STEP/3] reward 0.5 {NAME} DEAD\nloading 3/9 | mb 5\n")),
    "a table that pandas printed": (
        "x.log",
        f"each step counts\n   step  {NAME}    kl\n" + fill("0     STEP       DEAD  1e-STEP%\n") + "done\n3 0.5 1\n",
    ),
    "columns": ("x.txt", f"Step   loss  {NAME.title()}\n-----------\n" + fill("   STEP  nan  DEAD\n\n")),
    "a step in passing": ("x.log", fill(f"{{'loss': 1, '{NAME}': DEAD}}\nSaved x.json (step 9STEP, rho=1.0)\n")),
    "prime-rl": ("x.log", fill("10:00 Step STEP | Time: 1.00s | Frac Reward Zero Std: DEAD | x\n")),
    "heading": ("x.log", fill(f"== Step STEP/3 ==\nTimes:\n • Took: 3s\n • KL: 1\n • {NAME}: DEAD\n")),
    "dictionaries with a step": (
        "x.log",
        fill('12:00 INFO saved {\'step\': STEP}\n12:00 metrics={"env/step": STEP, "groups/rate_dropped": DEAD}\n'),
    ),
    "an outline below a step": ("x.log", fill("Step STEP\ngroups:\n  rate_dropped: DEAD\ntiming_s:\n  step: 1.5\n\n")),
    "a dictionary that begins on the line after its step": (
        "x.log",
        fill(
            "(a pid=1) 10:00 | INFO | Step STEP: \n(a pid=1) {'generate/avg_num_tokens': '99.2',\n"
            "(a pid=1)  'groups/rate_dropped': 'DEAD',\n(a pid=1)  'trainer/global_step': STEP}\n"
            "(a pid=1) {'eval/all/avg_score': '0.9'}\n"
        ),
    ),
    "boxes": (
        "x.log",
        fill(
            "Stats INFO: Epoch 1/1 Step STEP/3 Train step STEP/3 done.\n╒═══╤═══╕\n│ groups/rate_dropped │ DEADe+00 │\n"
            "├───┼───┤\n│ update/grad_norm    │ 1.0000e+00 │ update/lr │ 1e-6 │\n╘═══╧═══╛\n"
        ),
    ),
}


@pytest.mark.parametrize(("name", "text"), FILES.values(), ids=FILES)
def test_what_people_publish_is_read(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    for path in (tmp_path / name, *([] if Path(name).suffix in (".md", ".html") else [tmp_path])):
        report = measure_degeneracy(path)
        assert [(row.step, row.frac_reward_zero_std.value) for row in report.by_step] == STEPS
        assert report.source.kind == "metrics"
        assert report.source.quarantined.lost == ()


@pytest.mark.parametrize("bars", [False, True])
def test_what_was_printed_after_a_training_ended_is_another_run(tmp_path: Path, bars: bool) -> None:
    lines = [(f"{i * 5}/15 [00:01\n" if bars else "") + f"{{'loss': {i}.5, 'reward': 0.5}}\n" for i in (1, 2, 3)]
    ended = "{'train_runtime': 1.5, 'train_loss': 0.1}\n"
    (tmp_path / "x.log").write_text("".join([*lines, ended, *(line.replace(".5,", ".25,") for line in lines), ended]))
    refused(r"holds 2 runs: '1' \(from x.log:[12]\), '2' ", measure_degeneracy, tmp_path)
    second = measure_degeneracy(tmp_path, read=ReadOptions(metric_run="2")).metrics
    assert {metric.name: dict(zip(metric.steps, metric.values, strict=True)) for metric in second}["loss"] == {
        i * (5 if bars else 1): i + 0.25 for i in (1, 2, 3)
    }


def mlflow(run: Path, **metrics: tuple[float, ...]) -> Path:
    for name, values in metrics.items():
        file = run / "metrics" / name.replace("__", "/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(f"1700000000000 {value} {step}\n" for step, value in enumerate(values, start=1)))
    return run


@pytest.mark.parametrize("below", ["", "metrics", ".."])
def test_a_folder_of_mlflow(tmp_path: Path, below: str) -> None:
    run = mlflow(tmp_path / "0" / "abc", reward=(0.5, 0.5, 0.5), train__frac_reward_zero_std=DEAD)
    report = measure_degeneracy(run / below)
    assert [(row.step, row.frac_reward_zero_std.value) for row in report.by_step] == STEPS
    assert report.source.num_rows == 6


def test_two_runs_of_mlflow_are_named_by_their_folders(tmp_path: Path) -> None:
    for run in ("abc", "def"):
        mlflow(tmp_path / run, reward=(0.5,), train__frac_reward_zero_std=DEAD)
    refused(r"metrics in 2 places: .*/abc/metrics, .*/def/metrics\.", measure_degeneracy, tmp_path)


def test_a_saved_chart_of_any_name_is_named(tmp_path: Path) -> None:
    file = tmp_path / "mine.csv"
    file.write_text("Wall time,Step,Value\n" + "".join(f"1.7e9,{step},{dead}\n" for step, dead in STEPS))
    report = measure_degeneracy(file, read=ReadOptions(metric_columns=["frac_reward_zero_std=mine"]))
    assert [row.frac_reward_zero_std.value for row in report.by_step] == list(DEAD)


def test_a_printed_reward_counts_beside_a_table_of_losses(tmp_path: Path) -> None:
    """A notebook with the table of its fine-tuning had no reward, though GRPO's 300 dictionaries were printed below."""
    losses = "<table><tr><th>Step</th><th>Training Loss</th></tr><tr><td>1</td><td>2.5</td></tr></table>"
    printed = {"output_type": "stream", "text": PRINTED.replace("{", "{'reward': 0.5, ")}
    for outputs in ((shown(losses), printed), (shown(losses), shown(losses), printed)):
        (tmp_path / "x.ipynb").write_text(notebook(*outputs))
        report = measure_degeneracy(tmp_path / "x.ipynb")
        assert [row.frac_reward_zero_std.value for row in report.by_step] == list(DEAD)
    fine_tuned = {"output_type": "stream", "text": "reward functions\n{'loss': 2.0, 'kl': 0.1}\n"}
    for outputs, num in (((shown(PAGE), printed), len(DEAD)), ((shown(losses), fine_tuned), 0)):
        (tmp_path / "x.ipynb").write_text(notebook(*outputs))
        assert len(measure_degeneracy(tmp_path / "x.ipynb").by_step) == num


def test_several_tables_are_several_runs(tmp_path: Path) -> None:
    (tmp_path / "x.ipynb").write_text(notebook(shown(PAGE), shown(PAGE.replace(">0.1<", ">0.2<"))))
    refused("holds 2 runs: 'table 2/1'", measure_degeneracy, tmp_path / "x.ipynb")
    report = measure_degeneracy(tmp_path / "x.ipynb", read=ReadOptions(metric_run="table 2/2"))
    assert [row.frac_reward_zero_std.value for row in report.by_step] == list(DEAD)


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("x.ipynb", "{not json", "is no notebook that can be read"),
        ("metrics/reward", "1700000000000 0.5 1\ncut", "no time, value and step"),
        ("x.log", "{'loss': 0.5, 'rew\n", CUT_DICTIONARY),
    ],
)
def test_damaged_files_are_reported(tmp_path: Path, name: str, text: str, why: str) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text(text)
    aside = MetricsLog(no_progress, ())
    file = opened(tmp_path / name)
    assert file is not None
    list(file.pieces(aside))
    quarantine = aside.result()
    assert why in str([*quarantine.lost, *quarantine.reasons])


def test_the_ends_of_bars_are_no_steps(tmp_path: Path) -> None:
    def read(text: str) -> tuple[list[int], int]:
        (tmp_path / "x.log").write_text(text)
        report = measure_degeneracy(tmp_path)
        return [*report.metrics[0].steps], report.source.quarantined.num_rows

    ends = "".join(f"train: 100%|#| {n}/{n} [00:09<00:00, 1.5it/s, loss=0.{n}]\n" for n in (25, 25, 12, 9))
    assert read(ends) == ([1, 2, 3], 0)
    assert read("step 4 | loss=1\n" + ends) == ([4], 3)
    assert read(ends.replace("25/25", "24/25", 1).replace("12/12", "25/25")) == ([24, 25], 1)


@pytest.mark.parametrize(
    "read",
    [
        lambda: tables_of_page("<tr><td>1</td></tr><table><td>2</td></table>"),
        lambda: tables_of_markdown("a | b\nno rule\n|---|"),
        lambda: list(outputs_of_notebook([])) or list(outputs_of_notebook({"cells": [{"outputs": 3}, 4]})),
    ],
)
def test_what_is_no_table_has_no_rows(read: Callable[[], list[Any]]) -> None:
    assert [row for table in read() for row in rows_of_table(table)] == []


def test_tables_need_a_step_and_whole_rows() -> None:
    assert list(rows_of_table([["Step", "x"], ["1", "2"], ["3"], ["4", "text"]])) == [
        {"step": 1.0, "x": 2.0},
        {"step": 4.0, "x": "text"},
    ]
    assert list(rows_of_table([["Step", "step"], ["1", "2"]])) == list(rows_of_table([["x"], ["1"]])) == []


def test_other_rows_stay_as_they_are(tmp_path: Path) -> None:
    assert scalars_saved([[1, 2], "x"], tmp_path / "x.json") == [[1, 2], "x"]
