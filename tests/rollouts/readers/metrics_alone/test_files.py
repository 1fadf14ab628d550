import gzip
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gradscope.progress import no_progress
from gradscope.rollouts.readers.metrics_alone import files
from gradscope.rollouts.readers.metrics_alone.files import STEP_IS_POSITION, MetricsLog, opened
from gradscope.rollouts.readers.metrics_alone.runs import Piece
from gradscope.rollouts.run import Numbers


def aside_log() -> MetricsLog:
    return MetricsLog(no_progress, ())


def rows_in(piece: Piece) -> list[tuple[str, str, dict[str, Any]]]:
    """Location, run and cells of each row; a number that a row of a table lacks is no cell of it."""
    located = []
    for table in piece.tables:
        rows: list[dict[str, Any]] = [{} for _ in table.rows]
        for key, cells in table.columns.items():
            i = range(len(rows)) if not isinstance(cells, Numbers) or cells.rows is None else cells.rows.tolist()
            for index, cell in zip(i, cells.values.tolist() if isinstance(cells, Numbers) else cells, strict=True):
                rows[index][key] = cell
        located += [(index, table.run, row) for index, row in zip(table.rows.tolist(), rows, strict=True)]
    return [(piece.location(index), run, row) for index, run, row in sorted(located, key=lambda entry: entry[0])]


def cells_in(path: Path, aside: MetricsLog | None = None) -> list[dict[str, Any]]:
    file = opened(path)
    assert file is not None
    rows = [row for piece in file.pieces(aside or aside_log()) for row in rows_in(piece)]
    first = [row for piece in file.first_pieces(2) for row in rows_in(piece)]
    assert str(first) == str(rows[: len(first)])
    assert len(first) >= min(len(rows), 2)
    return [row for _, _, row in rows]


def test_no_more_of_large_rows_is_looked_at_than_tells_what_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "a.jsonl", "".join(json.dumps({"step": index, "loss": 0.5}) + "\n" for index in range(100)))
    monkeypatch.setattr(files, "_FIRST_BYTES", 300)
    assert sum(len(piece.numbers) for piece in opened(path).first_pieces(100)) == 100
    monkeypatch.setattr(files, "_MAX_BYTES", 300)
    assert sum(len(piece.numbers) for piece in opened(path).first_pieces(100)) < 20


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


FIRST = {"step": 1, STEP_IS_POSITION: 1.0}
STEP_6 = {"run": "of", "step": "step_6", "kl": 2}


@pytest.mark.parametrize(
    ("document", "rows"),
    [
        ({"log_history": [{"step": 1}, {"step": 2}], "global_step": 2}, [{"step": 1}, {"step": 2}]),
        ([{"step": 1}], [{"step": 1}]),
        ({"history": [{"_step": 0}]}, [{"_step": 0}]),
        ({"step": [1, 2], "loss": [0.5, 0.25]}, [{"step": 1, "loss": 0.5}, {"step": 2, "loss": 0.25}]),
        ({"step": {"0": 1, "1": 2}, "loss": {"0": 3, "1": 4}}, [{"step": 1, "loss": 3}, {"step": 2, "loss": 4}]),
        ({"0": {"loss": 0.5}, "10": {"kl": 2}}, [{"step": "0", "loss": 0.5}, {"step": "10", "kl": 2}]),
        ({"step": [1, 2], "loss": [3, 4], "dev": [5], "lr": 0.1}, [{"step": 1, "loss": 3}, {"step": 2, "loss": 4}]),
        ({"step": 3, "loss": 0.5}, [{"step": 3, "loss": 0.5}]),
        ({"10": {"loss": 0.5}, "2": {"loss": 2}}, [{"step": "10", "loss": 0.5}, {"step": "2", "loss": 2}]),  # as text
        ({"3": {"loss": 0.5}, "2": {"loss": 2}}, []),  # of prompts, say
        ({"step": {"0": 1}, "loss": {"1": 4}}, []),
        ({"lr": 0.1, "log": [{"step": 1}], "trace": [0.5]}, [{"run": "log", "step": 1}]),
        ({"a": [{"step": 1}], "b": [{"n": 2}]}, [{"run": "a", "step": 1}, {"run": "b", "n": 2}]),
        ({"a": [{"step": 1}], "b": [{"step": 1, "prompt": "p"}], "c": [{"x": "y"}]}, [{"run": "a", "step": 1}]),
        ({"step": [1], "loss": [3], "a": [{"step": 5}]}, [{"step": 1, "loss": 3}]),
        ({"total_reward": 0.5, "turns": [{"step": 1, "action": "a", "reward": 0.5}]}, []),
        ({"task_id": "t", "steps": [{"step": 1, "reward": 0.5}]}, []),
        ({"inference_scaling": {"50": {"reward": 0.5}, "100": {"reward": 0.75}}, "of": "m"}, []),
        ({"task_id": "t", "steps": [{"step": 1, "loss": 0.5}]}, [{"step": 1, "loss": 0.5, "run": "steps"}]),
        ({"run": {"history": [{"step": 1}]}, "seed": 3}, [{"run": "run", "step": 1}]),
        ({"a": {"b": {"c": {"step": [1], "loss": [2]}}}}, [{"run": "a/b/c", "step": 1, "loss": 2}]),
        ({"a": {"b": {"c": {"d": {"step": [1], "loss": [2]}}}}, "n": {}}, []),
        ({"a": {"steps": [1], "loss": [2]}, "b": {"seed": 1}}, [{"run": "a", "step": 1, "loss": 2}]),
        ({"a": {"data": [{"n": 1}]}, "b": {"data": [{"step": 1}]}}, [{"run": "b", "step": 1}]),
        ({"of": {"step_5": {"loss": 1}, "step_6": {"kl": 2}}}, [{"run": "of", "step": "step_5", "loss": 1}, STEP_6]),
        ({"steps": [1], "rewards": [0.5]}, [{"steps": 1, "rewards": 0.5}]),
        ({"episode_1": {"step": [1, 2], "reward": [0, 1]}}, [{"episode_1": [1, 2]}, {"episode_1": [0, 1]}]),
        ({"avg_reward": [0.5], "loss": [2]}, [{"avg_reward": 0.5, "loss": 2, **FIRST}]),
        ({"loss_history": [1], "lr": [2]}, [{"loss_history": 1, "lr": 2, **FIRST}]),
        ({"rewards": [0.5], "losses": [2]}, [{"rewards": 0.5, "losses": 2}]),
        ({"avg_reward": [0.5], "model": ["m"]}, [{"avg_reward": 0.5, "model": "m"}]),
        ({"mean_rewards": [0.5], "losses": [2], "seed": 3}, [{"mean_rewards": 0.5, "losses": 2, **FIRST}]),
        ({"mean_rewards": [0.5], "seed": 3}, [{"mean_rewards": [0.5], "seed": 3}]),
        ({"reward_trace": [0.5], "seed": 3}, [{"reward_trace": 0.5, **FIRST}]),
        ([{"run_id": "a", "log": [{"step": 1, "loss": 2}]}], [{"run": "run 1/log", "step": 1, "loss": 2}]),
        (
            {
                "task": "x",
                "results": [{"seed": 1, "reward_trace": [0.1, 0.2]}, {"seed": 2, "log": [{"step": 1, "loss": 2}]}],
            },
            [
                {"reward_trace": 0.1, "step": 1, STEP_IS_POSITION: 1.0, "run": "results/run 1"},
                {"reward_trace": 0.2, "step": 2, STEP_IS_POSITION: 1.0, "run": "results/run 1"},
                {"run": "results/run 2/log", "step": 1, "loss": 2},
            ],
        ),
        ([{"log": [{"step": 1, "loss": 2}]}, {"seed": 3}], [{"run": "run 1/log", "step": 1, "loss": 2}]),
        ([{"run_id": "a", "log": [{"step": 1, "reward": 2}]}], [{"run_id": "a", "log": [{"step": 1, "reward": 2}]}]),
        ({"name": "x"}, []),
        ({}, []),
        ("text", []),
    ],
)
def test_documents_of_json(tmp_path: Path, document: Any, rows: list[dict[str, Any]]) -> None:
    assert cells_in(write(tmp_path / "x.json", json.dumps(document))) == rows


def test_json_lines_under_another_name_and_compressed(tmp_path: Path) -> None:
    lines = '{"step": 1}\n{"step": 2}\n'
    assert cells_in(write(tmp_path / "x.json", lines)) == [{"step": 1}, {"step": 2}]
    (tmp_path / "x.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    assert cells_in(tmp_path / "x.jsonl.gz") == [{"step": 1}, {"step": 2}]
    (tmp_path / "x.jsonl.gz").write_bytes(gzip.compress(lines.encode() * 1000)[:-20])
    aside = aside_log()
    cells_in(tmp_path / "x.jsonl.gz", aside)
    assert "cannot be read" in aside.result().lost[0]


def test_entries_that_are_no_objects_are_set_aside(tmp_path: Path) -> None:
    aside = aside_log()
    assert cells_in(write(tmp_path / "x.json", '[{"step": 1}, 5]'), aside) == [{"step": 1}]
    assert aside.result().reasons[0].first == f"{tmp_path / 'x.json'}:2"


def test_adjacent_bad_lines_are_counted_each_and_the_last_may_be_cut_off(tmp_path: Path) -> None:
    aside = aside_log()
    cells_in(write(tmp_path / "x.jsonl", '{"step": 1}\n{"a\n{"b\n{"c\n{"step": 2}\n'), aside)
    (reason,) = aside.result().reasons
    assert (reason.first, reason.num_rows) == (f"{tmp_path / 'x.jsonl'}:2", 3)


def test_a_table(tmp_path: Path) -> None:
    aside = aside_log()
    text = '\ufeffStep,"train/loss",note\n\n1,0.5,"a,b"\n2,NaN,\n3\n4,"x\n'
    cells = cells_in(write(tmp_path / "x.csv", text), aside)
    assert [str(entry) for entry in cells] == [
        "{'Step': 1.0, 'train/loss': 0.5, 'note': 'a,b'}",
        "{'Step': 2.0, 'train/loss': nan, 'note': ''}",
    ]
    reasons = {entry.reason for entry in aside.result().reasons}
    assert "the row has more or fewer cells than the header" in reasons
    assert any(reason.startswith("the row is not CSV") for reason in reasons)
    assert cells_in(write(tmp_path / "x.tsv", "step\tloss\n1\t2\n")) == [{"step": 1.0, "loss": 2.0}]


def test_a_chart_of_several_runs(tmp_path: Path) -> None:
    text = '"Step","a - train/loss","a - train/loss__MIN","b - c - train/loss"\n1,0.5,0.4,0.25\n2,0.5,0.4,\n'
    file = opened(write(tmp_path / "x.csv", text))
    assert file is not None
    (piece,) = file.pieces(aside_log())
    rows = [(run, cells) for _, run, cells in rows_in(piece)]
    assert rows == [
        ("a", {"Step": 1.0, "train/loss": 0.5}),
        ("b - c", {"Step": 1.0, "train/loss": 0.25}),
        ("a", {"Step": 2.0, "train/loss": 0.5}),
    ]


def test_parquet(tmp_path: Path) -> None:
    pq.write_table(pa.table({"step": [1, 2], "loss": [0.5, None]}), tmp_path / "x.parquet")
    assert cells_in(tmp_path / "x.parquet") == [{"step": 1, "loss": 0.5}, {"step": 2, "loss": None}]
    (tmp_path / "cut.parquet").write_bytes((tmp_path / "x.parquet").read_bytes()[:-30])
    aside = aside_log()
    assert cells_in(tmp_path / "cut.parquet", aside) == []
    assert aside.result().lost


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("{'loss': 0.5, 'reward': nan}\n{'loss': '1e-3', 'reward': -inf}\n", [(1, 0.5), (2, 0.001)]),
        (
            "5%| | 5/50 [0:01\r{'loss': 0.5, 'reward': 1}\n10/50 [0:02\n{'loss': 2, 'reward': 1}\n",
            [(5, 0.5), (10, 2.0)],
        ),
        ("3/3 [0:01\n{'loss': 0.5, 'reward': 1}\n{'loss': 2, 'reward': 1}\n", [(1, 0.5), (2, 2.0)]),
        ("{'loss': np.float64(0.5), 'reward': 1.0}\n{'train_runtime': 3.0, 'loss': 1}\nloss {\n", [(1, 0.5)]),
        ('{"loss": 0.5, "reward": 1}\n', [(1, 0.5)]),
        ("{'loss': 0.5, 'kl': 1e-\n06,\n 'reward': 1}\n{'loss': 2, 'reward': 1}\n", [(1, 0.5), (2, 2.0)]),
        ('{\n  "loss": 0.5,\n  "reward": 1\n}\n{\n  "loss": 2,\n  "reward": 1\n}\n', [(1, 0.5), (2, 2.0)]),
        ("{'loss': 9, 'reward': 1,\n{'loss': 2, 'reward': 1}\n{\n'loss': 1,\n" + "x\n" * 64 + "}\n", [(1, 2.0)]),
    ],
)
def test_dictionaries_on_a_console(tmp_path: Path, text: str, rows: list[tuple[int, float]]) -> None:
    printed = cells_in(write(tmp_path / "x.log", text))
    assert [(row["step"], row["loss"]) for row in printed] == rows
    assert {row[STEP_IS_POSITION] for row in printed} == {float("/" not in text or "3/3" in text)}


@pytest.mark.parametrize(
    ("bars", "steps"),
    [
        ({6: 70, 12: 130, 13: 135}, range(10, 131, 10)),  # a dictionary that no longer fits is written with the next
        ({13: 130}, range(10, 131, 10)),
        ({6: 70, 12: 90, 13: 135}, range(1, 14)),  # as of an evaluation
        ({13: 200}, range(15, 196, 15)),
        ({13: 5}, range(1, 14)),
    ],
)
def test_dictionaries_written_at_once_have_even_steps(tmp_path: Path, bars: dict[int, int], steps: range) -> None:
    """Where standard output is a file it has several behind bars of as many: step 70 was the 1,400th of a trainer."""
    lines = [f"{{'loss': {index}.0, 'reward': 1}}\n" for index in range(13)]
    text = "".join(f"{bars[end]}/999 [0:01\r{''.join(lines[start:end])}" for start, end in pairwise([0, *bars]))
    assert [row["step"] for row in cells_in(write(tmp_path / "x.log", text))] == [*steps]


def test_a_bar_of_progress_that_is_drawn_over_itself_has_a_row_a_step(tmp_path: Path) -> None:
    text = "\r".join(f"train: {step}/9 [00:01<00:05, 1.2s/it, rm={step}.5, kl=0.1]" for step in (1, 2, 2, 3))
    rows = cells_in(write(tmp_path / "x.log", text))
    assert [(row["step"], row["rm"]) for row in rows] == [(step, step + 0.5) for step in (1, 2, 2, 3)]


def test_bars_of_rollouts_and_of_the_update_after_them_are_one_step(tmp_path: Path) -> None:
    """The rewards of an evaluation were every second step, and updates without a KL counted twice."""
    times, lines = "[00:01<00:00, 1.2s/it,", list[str]()
    for step in (1, 2, 3):
        update = f"1|7|Loss: 0.1: 100%|█| 7/7 {times} loss=0.{step}, kl=nan]"
        lines += [f"val: 9/9 {times} reward=0.9]", f"train: 64/64 {times} reward=0.{step}]", update, update + "Saved"]
    rows = cells_in(write(tmp_path / "x.log", "\n".join(lines)))
    assert [(row["step"], row["reward"], row["loss"]) for row in rows] == [(n, n / 10, n / 10) for n in (1, 2, 3)]


def test_a_dictionary_has_the_step_of_the_line_before(tmp_path: Path) -> None:
    dictionary, aside = "{'loss': 2.5, 'kl': 0.1}\n", aside_log()
    text = dictionary + "".join(f"[STEP {step:4}]  loss={step}.25  lr=0.1\n{dictionary}" for step in (5, 10, 115))
    text += dictionary
    rows = cells_in(write(tmp_path / "x.log", text), aside)
    assert rows == [
        row
        for step in (5, 10, 115)
        for row in ({"loss": step + 0.25, "lr": 0.1, "step": step}, {"kl": 0.1, "step": step})
    ]
    (entry,) = aside.result().reasons
    assert (entry.reason, entry.num_rows) == ("the dictionary has no step, which other lines name", 2)


def test_dictionaries_that_share_no_metric_are_totals(tmp_path: Path) -> None:
    """An evaluation's mean reward and a training's last loss were the two steps of a run, as bars of prompts count."""
    bars = [f"Processed prompts: 100%| {count}/{count} [00:01<00:00, 9.0it/s]\n" for count in (256, 512)]
    text = f"{bars[0]}{{'reward': 0.5, 'format': 1.0}}\n{bars[1]}{{'loss': 0.1, 'lr': 0.2}}\n"
    assert cells_in(write(tmp_path / "x.log", text), aside := aside_log()) == []
    assert aside.result().reasons[0].reason == "the dictionary has no step, and no other has its metrics"
    assert len(cells_in(write(tmp_path / "y.log", f"{text}{{'loss': 0.1, 'lr': 0.2}}\n"))) == 3


def test_a_line_after_every_tenth_dictionary_is_not_the_next_ones_step(tmp_path: Path) -> None:
    """Of 458 dictionaries of a run 20 were another run, and the rest had steps that were off by as many."""
    lines = [f"{{'loss': {i}.0, 'reward': 0.5}}\n" + f"[Step {i}] lr=0.1\n" * (i % 10 == 0) for i in range(1, 31)]
    rows = cells_in(write(tmp_path / "x.log", "".join(lines)))
    assert [row["step"] - row["loss"] for row in rows if "loss" in row] == [0.0] * 30


def test_positions_of_dictionaries_are_no_steps_of_other_lines(tmp_path: Path) -> None:
    text = "{'loss': 0.5, 'reward': 1, 'kl': 0.1}\n" * 2 + "step 2 last_reward=1\n" * 3
    file = opened(write(tmp_path / "x.log", text))
    assert file is not None
    tables = [table for piece in file.pieces(aside_log()) for table in piece.tables]
    assert [(table.run, len(table.rows)) for table in tables] == [("", 3), ("dictionaries", 2)]


def test_text_that_is_not_utf8_costs_its_line(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_bytes(b'{"step": 1}\n{"step": "\xff"}\n{"step": 2}\n')
    aside = aside_log()
    assert len(cells_in(tmp_path / "x.jsonl", aside)) == 2
    assert aside.result().reasons[0].reason == "the line is not UTF-8"


def test_other_files_hold_no_metrics(tmp_path: Path) -> None:
    assert opened(write(tmp_path / "x.safetensors", "abc")) is None
    (tmp_path / "events.out.tfevents.1").write_bytes(b"garbage garbage garbage")
    aside = aside_log()
    assert cells_in(tmp_path / "events.out.tfevents.1", aside) == []
    assert aside.result().lost
