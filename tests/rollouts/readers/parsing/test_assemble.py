from __future__ import annotations

import json
from pathlib import Path

import pytest

from gradscope.errors import InputError
from gradscope.rollouts.read_options import ReadOptions
from gradscope.rollouts.readers.parsing.assemble import assemble, assemble_groups, peek
from gradscope.rollouts.readers.parsing.grouping import Record
from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog
from gradscope.rollouts.readers.parsing.request import ReadRequest
from tests.rollouts.build import adapter_folder, group, model_folder
from tests.rollouts.readers.lines import write_lines


def test_a_peek_is_the_first_rows_of_the_first_file_that_has_any(tmp_path: Path) -> None:
    (tmp_path / "1.jsonl").write_text("\nno json\n")
    write_lines(tmp_path / "2.jsonl", *({"row": number} for number in range(60)))
    write_lines(tmp_path / "3.jsonl", {"row": "other"})
    assert peek(tmp_path) == [{"row": number} for number in range(50)]
    assert peek(tmp_path / "1.jsonl") == peek(tmp_path / "*.csv") == []


def test_of_long_rows_fewer_are_peeked_at(tmp_path: Path) -> None:
    log = write_lines(tmp_path / "log.jsonl", *({"row": number, "text": "x" * 6_000_000} for number in range(5)))
    assert [row["row"] for row in peek(log)] == [0, 1, 2]


def test_records_become_a_run_with_what_was_asked_for(tmp_path: Path) -> None:
    log = write_lines(tmp_path / "log.jsonl", {})
    initial = adapter_folder(tmp_path / "adapter", base="gone")
    (tmp_path / "config.json").write_text(json.dumps({"args": {"beta": 0.5}}))
    base = model_folder(tmp_path / "base")
    (base / "tokenizer.json").write_text("{}")
    options = ReadOptions(initial_weights=initial, model=base, trainer_args=tmp_path / "config.json")
    request = ReadRequest(path=log, options=options)
    record = Record(step=2, group="a", prompt_id="p", prompt="2+2", completion="4", reward=1.0)
    run = assemble(
        request,
        records=[record],
        quarantine=QuarantineLog(),
        format="f",
        recognized="a log",
        metrics={2: {"loss": 1.0}},
    )
    assert [(g.step, g.group_id, g.prompt_id, g.rewards) for g in run.groups] == [(2, "2:a", "p", (1.0,))]
    assert (run.source.format, run.source.recognized, run.source.num_rows) == ("f", "a log", 1)
    assert run.source.files == (str(log),)
    assert (run.metrics, run.settings.get("beta")) == ({2: {"loss": 1.0}}, 0.5)
    assert [(ref.num_updates, ref.kind, ref.base) for ref in run.weights] == [(0, "adapter", str(base))]
    assert run.tokenizer == base


def test_rows_without_a_reward_are_of_no_use_where_a_format_has_rewards(tmp_path: Path) -> None:
    request, quarantine = ReadRequest(path=tmp_path), QuarantineLog()
    half = assemble_groups(
        request, groups=(group(rewards=(1.0, None)),), quarantine=quarantine, format="f", recognized=""
    )
    assert half.source.num_rows == 1
    none = (group(rewards=(None, None)),)
    with pytest.raises(InputError, match=f"^{tmp_path} has no usable rows.$"):
        assemble_groups(request, groups=none, quarantine=quarantine, format="f", recognized="")
    run = assemble_groups(request, groups=none, quarantine=quarantine, format="f", recognized="", needs_reward=False)
    assert run.source.num_rows == 2


def test_the_first_reason_is_named_where_nothing_is_left(tmp_path: Path) -> None:
    quarantine = QuarantineLog()
    quarantine.add("the line is blank", "log:1")
    with pytest.raises(InputError, match=r"has no usable rows; set aside: 1, first log:1: the line is blank\."):
        assemble_groups(ReadRequest(path=tmp_path), groups=(), quarantine=quarantine, format="f", recognized="")
