import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gradscope import measure_degeneracy
from gradscope.progress import no_progress
from gradscope.rollouts.read_options import ReadOptions
from gradscope.rollouts.readers.metrics_alone.files import MetricsLog, opened
from gradscope.rollouts.readers.metrics_alone.published import (
    CUT_DICTIONARY,
    PrintedLines,
    dashes_joined,
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


@pytest.mark.parametrize(
    "line", ["{'loss': %s, 'a/b': %s}", '{"loss": %s, "a/b": %s}', "step:7 - loss:%s - a/b:%s - c:1"]
)
def test_numbers_are_read_whichever_way_python_writes_them(line: str) -> None:
    """Lines of plain numbers are decoded as JSON, others are searched."""
    quoted = () if "step" in line else ("'0.25'",)
    for number in ("0.25", "np.float64(0.25)", "2.5e-1", ".25", *quoted):
        printed = PrintedLines()
        values = printed.read("log:1", line % (number, "3")) or printed.unnumbered[0][1]
        assert {key: values[key] for key in ("loss", "a/b")} == {"loss": 0.25, "a/b": 3.0}


@pytest.mark.parametrize(
    "line",
    [
        "Step 1,200 | loss: 0.5 | reward: 0.25",
        "step=1,200 loss=0.5 reward=0.25",
        "[Step 1,200/50,000] loss: 0.5 reward: 0.25",
        "Iteration 1200 | loss: 0.5 | reward: 0.25",
    ],
)
def test_a_step_may_have_commas_between_its_thousands(line: str) -> None:
    values = PrintedLines().read("log:1", line)
    assert isinstance(values, dict)
    assert (values["step"], values["loss"], values["reward"]) == (1200, 0.5, 0.25)


@pytest.mark.parametrize("width", [0, 40, 61, 77])
@pytest.mark.parametrize("after", ["saved - done", "(TaskRunner pid=12) step 3 is saved"])
def test_a_line_of_verl_may_be_broken(width: int, after: str) -> None:
    """By a terminal of so many columns, or after each number."""
    metrics = {f"actor/metric_{at}": at / 8 for at in range(9)}
    line = "(TaskRunner pid=12) step:7" + "".join(f" - {name}:{value}" for name, value in metrics.items())
    parts = line.replace(" - ", "\n(TaskRunner pid=12) - ").split("\n")
    parts = [line[at : at + width].rstrip() for at in range(0, len(line), width)] if width else parts
    joined = list(dashes_joined((f"log:{at}", part) for at, part in enumerate([*parts, after, *parts])))
    assert [location for location, _ in joined] == ["log:0", f"log:{len(parts)}", f"log:{len(parts) + 1}"]
    assert PrintedLines().read(*joined[0]) == metrics | {"step": 7} == PrintedLines().read(*joined[2])


@pytest.mark.parametrize("updates", [1, 2, 4])
def test_a_rollout_of_slimes_is_of_the_first_of_its_updates(updates: int) -> None:
    printed, rows = PrintedLines(), list[Any]()
    for rollout in (*range(3), *([1, 2] if updates == 1 else [])):  # a run that was resumed
        lines = [f"perf {rollout}: {{'rollout/truncated': 0.5}}", f"rollout {rollout}: {{'rollout/raw_reward': 0.5}}"]
        lines += [f"step {rollout * updates + at}: {{'train/grad_norm': 1.5}}" for at in range(updates)]
        rows += [printed.read("log:1", line) for line in [*lines, f"eval {rollout}: {{'eval/aime': 0.5}}"]]
    steps = {name: [row["step"] for row in rows if name in row] for name in ("rollout/raw_reward", "train/grad_norm")}
    resumed = [1, 2] if updates == 1 else []
    assert steps["rollout/raw_reward"] == [0, updates, 2 * updates, *resumed]
    assert steps["train/grad_norm"] == [*range(3 * updates), *resumed]


def notebook(*outputs: dict[str, Any]) -> str:
    cells = [{"cell_type": "markdown", "source": "# x"}, {"cell_type": "code", "outputs": [*outputs, "none", {}]}]
    return json.dumps({"cells": cells, "nbformat": 4})


def shown(page: str | list[str]) -> dict[str, Any]:
    return {"output_type": "display_data", "data": {"text/html": page}}


PRINTED = "".join(f"{{'loss': 0.1, 'frac_reward_zero_std': {dead}}}\n" for dead in DEAD)


def each(line: str) -> str:
    """A line for each step, with its number and its share."""
    return "".join(line.replace("STEP", str(step)).replace("DEAD", str(dead)) for step, dead in STEPS)


NAME = "frac_reward_zero_std"
FILES: dict[str, tuple[str, str]] = {
    "notebook's table": ("x.ipynb", notebook(shown([PAGE[:100], PAGE[100:]]))),
    "notebook's print": ("x.ipynb", notebook({"output_type": "stream", "text": PRINTED.splitlines(keepends=True)})),
    "page": ("x.html", f"<html><body>{PAGE}<table><tr><th>other</th></tr></table></body></html>"),
    "card": ("README.md", f"# Card\n\n| Step | {NAME} |\n|:-:|---|\n" + each("| STEP | DEAD |\n") + "\nend"),
    "saved CSV": (f"run-a-tag-train_{NAME}.csv", "Wall time,Step,Value\n" + each("1.7e9,STEP,DEAD\n")),
    "saved JSON": (f"run-a-tag-train_{NAME}.json", json.dumps([[1.7e9, s, d] for s, d in STEPS])),
    "long table": ("x.csv", "step,metric,value\n" + each(f"STEP,reward,0.5\nSTEP,{NAME},DEAD\n")),
    "long lines": ("x.jsonl", each(f'{{"step": STEP, "name": "{NAME}", "value": DEAD}}\n')),
    "step under a name": ("x.jsonl", each(f'{{"system/step": STEP, "{NAME}": DEAD}}\n')),
    "names and values": ("x.log", each(f"INFO: step=STEP reward=0.5 {NAME}=DEAD\n")),
    "names and values between bars": ("x.log", each(f"Iter   STEP | reward 0.5 ± 0.30 | {NAME} DEAD (of 8) | 1.5s\n")),
    "colored boxes": (
        "x.log",
        each(f"\x1b[3m  Step STEP  \x1b[0m\n│\x1b[1m {NAME} \x1b[0m│\x1b[32m DEAD{' ' * 20}\x1b[0m│\n"),
    ),
    "a step of so many, and bars": ("x.log", each(f"step STEP/3 | loss 0.1 | {NAME} DEAD | lr 1e-6\n")),
    "a step of so many, and spaces": ("x.log", each(f"[Step STEP/3] reward 0.5 {NAME} DEAD\nloading 3/9 | mb 5\n")),
    "a table that pandas printed": (
        "x.log",
        f"each step counts\n   step  {NAME}    kl\n" + each("0     STEP       DEAD  1e-STEP%\n") + "done\n3 0.5 1\n",
    ),
    "columns": ("x.txt", f"Step   loss  {NAME.title()}\n-----------\n" + each("   STEP  nan  DEAD\n\n")),
    "a step in passing": ("x.log", each(f"{{'loss': 1, '{NAME}': DEAD}}\nSaved x.json (step 9STEP, rho=1.0)\n")),
    "prime-rl": ("x.log", each("10:00 Step STEP | Time: 1.00s | Frac Reward Zero Std: DEAD | x\n")),
    "heading": ("x.log", each(f"== Step STEP/3 ==\nTimes:\n • Took: 3s\n • KL: 1\n • {NAME}: DEAD\n")),
    "dictionaries with a step": (
        "x.log",
        each('12:00 INFO saved {\'step\': STEP}\n12:00 metrics={"env/step": STEP, "groups/rate_dropped": DEAD}\n'),
    ),
    "an outline below a step": ("x.log", each("Step STEP\ngroups:\n  rate_dropped: DEAD\ntiming_s:\n  step: 1.5\n\n")),
    "a dictionary that begins on the line after its step": (
        "x.log",
        each(
            "(a pid=1) 10:00 | INFO | Step STEP: \n(a pid=1) {'generate/avg_num_tokens': '99.2',\n"
            "(a pid=1)  'groups/rate_dropped': 'DEAD',\n(a pid=1)  'trainer/global_step': STEP}\n"
            "(a pid=1) {'eval/all/avg_score': '0.9'}\n"
        ),
    ),
    "boxes": (
        "x.log",
        each(
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
    lines = [(f"{at * 5}/15 [00:01\n" if bars else "") + f"{{'loss': {at}.5, 'reward': 0.5}}\n" for at in (1, 2, 3)]
    ended = "{'train_runtime': 1.5, 'train_loss': 0.1}\n"
    (tmp_path / "x.log").write_text("".join([*lines, ended, *(line.replace(".5,", ".25,") for line in lines), ended]))
    refused(r"holds 2 runs: '1' \(from x.log:[12]\), '2' ", measure_degeneracy, tmp_path)
    second = measure_degeneracy(tmp_path, read=ReadOptions(metric_run="2")).metrics
    assert {metric.name: dict(zip(metric.steps, metric.values, strict=True)) for metric in second}["loss"] == {
        at * (5 if bars else 1): at + 0.25 for at in (1, 2, 3)
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


@pytest.mark.parametrize(
    ("line", "values"),
    [
        ("(pid=1) step:3 - a/loss:-0.5 - x:np.float64(2e-3) - bad:abc", {"a/loss": -0.5, "x": 0.002, "step": 3}),
        ("Step 4 | loss:0.5 rewards:inf", {"loss": 0.5, "rewards": float("inf"), "step": 4}),
        ("rollout 5: {'rollout/reward': 0.25, 'x': 'text'}", {"rollout/reward": 0.25, "step": 5}),
        ("global_step=6, Mean Reward = 0.5, lr = 1e-6", {"mean_reward": 0.5, "lr": 1e-6, "step": 6}),
        ("Step 7 | Time: 3.00s | Seq. Length: 20.0 tokens/sample", {"seq_length": 20.0, "step": 7}),
        ("step:8 - val-core/GSM8K/acc:0.5", {"val-core/GSM8K/acc": 0.5, "step": 8}),
        ("rollout 9: {'KL': 0.5, 'x/GSM8K': 1}", {"KL": 0.5, "x/GSM8K": 1.0, "step": 9}),
        ("[math100]  12/100 | loss=-0.5 | reward=0.25", {"loss": -0.5, "reward": 0.25, "step": 12}),
        ("[3/50] loss: 0.5, kl: 0.1", {"loss": 0.5, "kl": 0.1, "step": 3}),
        ("Step 4/50: reward=0.5 (best)", {"reward": 0.5, "step": 4}),
        ("Step 4/50 | reward: 0.5 | Val Acc: 0.25", {"reward": 0.5, "val_acc": 0.25, "step": 4}),
        (
            "step 5 rewards=[1.0, 0.0, 0.5,0.5] kl: tensor([1. 0.]), n=[1-]",
            {"rewards": 0.5, "kl": 0.5, "n": "[1-]", "step": 5},
        ),
        ("step 6 rewards=[]", None),
        ("step 7 reward 0.3 loss 0.1", {"reward": 0.3, "loss": 0.1, "step": 7}),
        ("[12:00] Step 8: Reward -0.3, mean_KL 1e-3", {"reward": -0.3, "mean_kl": 0.001, "step": 8}),
        (
            "Iter 5: Train loss 0.5, Total rewards mean 0.25, It/sec 0.1, Peak mem 10 GB",
            {"train_loss": 0.5, "total_rewards_mean": 0.25, "It/sec": 0.1, "peak_mem": 10.0, "step": 5},
        ),
        ("[Step 6] avg reward 0.5, loss 1", {"avg_reward": 0.5, "loss": 1.0, "step": 6}),
        ("Step 7: took 3 s, then 5", None),
        (
            "Train epoch [1/1]:  10%|x | 5/50 [01:00<10:00, 1.2s/it, pg=-0.5, rm=0.25, kl=0.1]",
            {"pg": -0.5, "rm": 0.25, "kl": 0.1, "step": 5},
        ),
        ("prompts: 64/64 [00:05<00:00, 12it/s, est. speed input: 10.5 toks/s, output: 3 toks/s]", None),
        pytest.param("1/2 [it/s, " * 50_000, None, id="bars in time that grows with the line"),
        pytest.param("step 1 " + "a loss, " * 50_000, None, id="words in time that grows with the line"),
        ("Update 9 | loss: 0.5 | return 3", {"loss": 0.5, "step": 9}),
        ("Episode 10\tReward 5", {"reward": 5.0, "episode": 10}),
        ("Episode #11: total_reward=2, loss=1", {"total_reward": 2.0, "loss": 1.0, "episode": 11}),
        ("Step 1: Add 5", None),
        ("step 2 reward 0.5 for the best", None),
        pytest.param("step 3 " + "- " * 100_000, None, id="in time that grows with the line"),
        ("In episode 3, reward=1", None),
        ("(User provided step: 7 is less than current step: 8. Dropping entry: {'x': 1})", None),
        ("(User provided step: 7 is less. Dropping: {'loss': 1, 'kl': 2})", {"loss": 1.0, "kl": 2.0, "step": 7}),
        ("Metrics: {'format_reward': 1.0, 'answer/score': 0.0, 'reward': 1.0}", None),
        ("Epoch 1/3 | loss=0.5", None),
        ("Epoch 1/3 | loss=0.5 reward=1", {"loss": 0.5, "reward": 1.0, "epoch": 1}),
        ("[Round 4] mean_reward: 1", {"mean_reward": 1.0, "round": 4}),
        ("[Epoch 0.60] reward=1", None),
        ("iteration:    7  mean_reward:  0.5", {"mean_reward": 0.5, "step": 7}),
        ("step   7  |  mean_reward   0.5  |  kl   1", {"mean_reward": 0.5, "kl": 1.0, "step": 7}),
        ("iter=2 reward=1 dead_groups=3/8", {"reward": 1.0, "frac_dead_groups": 0.375, "step": 2}),
        ("step 2/9 | reward 1 | degenerate 3 / 8", {"reward": 1.0, "frac_degenerate_groups": 0.375, "step": 2}),
        ("Step 2: reward=1, files=3/8, zero_shot=3/8.5, dead=0/0", {"reward": 1.0, "step": 2}),
        pytest.param("step 1: " + "dead/" * 100_000, None, id="groups in time that grows with the line"),
        ("INFO - Epoch 1/3, Step 20, Loss: -0.5", {"loss": -0.5, "epoch": 1, "step": 20}),
        ("[Epoch 2] batch 4/50: loss=0.5", {"loss": 0.5, "epoch": 2, "step": 4}),
        ("Epoch [1/3], Iter [5/9], Reward: 1", {"reward": 1.0, "epoch": 1, "step": 5}),
        ("Epoch:[1/2](20/9751), Reward: -2, KL_ref: 0.5", {"reward": -2.0, "kl_ref": 0.5, "epoch": 1, "step": 20}),
        ("Epoch (1/3), loss: 0.5", None),
        ("Iteration 2/3, Step 4/50, GRPO iter 1/1, loss: 0.5", {"loss": 0.5, "epoch": 2, "step": 4}),
        ("iter 5/9, env step 3/8: reward=1", {"reward": 1.0, "step": 5}),
        ("[step 9/20] rewards=['0.50', '1.00'] lr=0", {"rewards": 0.75, "lr": 0.0, "step": 9}),
        pytest.param("epoch 1 " * 50_000, None, id="epochs in time that grows with the line"),
        ("eval 10/64 | reward=0.5", None),
        ("copied 3/4 files: reward=0.5", None),
        ("first do step 1 of the plan", None),
        ("[step 0001] SKIP rewards=[1,0] elapsed=2s", {"rewards": 0.5, "step": 1}),
        ("step 2 skipped mean reward=1", {"mean_reward": 1.0, "step": 2}),
        ("step 3 skipped groups=3 reward=1", {"skipped_groups": 3.0, "reward": 1.0, "step": 3}),
        ("LR this iteration: 5.00e-07 | T=0.8", None),
        ("step 1.5 | loss=0.5", None),
        ("step 4.0 | loss=0.5", {"loss": 0.5, "step": 4}),
        ("Supported: {'reward', 'score'}. Defaulting to 'score'.", None),
        ("Step 8/30", None),
        ("  • Loss: 0.5", None),
        ("{'loss': 0.5, 'reward': 1.", CUT_DICTIONARY),
    ],
)
def test_lines(line: str, values: Any) -> None:
    assert PrintedLines().read("x:1", line) == values


def test_the_ends_of_bars_are_no_steps(tmp_path: Path) -> None:
    def read(text: str) -> tuple[list[int], int]:
        (tmp_path / "x.log").write_text(text)
        report = measure_degeneracy(tmp_path)
        return [*report.metrics[0].steps], report.source.quarantined.num_rows

    ends = "".join(f"train: 100%|#| {n}/{n} [00:09<00:00, 1.5it/s, loss=0.{n}]\n" for n in (25, 25, 12, 9))
    assert read(ends) == ([1, 2, 3], 0)
    assert read("step 4 | loss=1\n" + ends) == ([4], 3)
    assert read(ends.replace("25/25", "24/25", 1).replace("12/12", "25/25")) == ([24, 25], 1)


def test_a_mean_reward_alone_in_a_line_is_of_the_step_after_it_where_it_comes_first() -> None:
    lines = [
        "Average Reward: 0.5",
        "Step 1/9, loss: 1",
        "Average Reward: 0.25",
        "Step 2/9, loss: 2",
        "Step 3/9, loss: 3",
    ]

    def rewards(*of: str) -> list[Any]:
        printed = PrintedLines()
        read = [printed.read(f"x:{at}", line) for at, line in enumerate(of)]
        return [values.get("average_reward") for values in read if isinstance(values, dict)]

    assert rewards(*lines) == [0.5, 0.25, None]
    assert rewards(*lines[1:]) == [None, None, None]
    assert rewards(lines[0], "Saved 3 files", lines[1]) == [None]


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
