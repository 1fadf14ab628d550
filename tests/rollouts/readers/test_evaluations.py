"""EvalPlus, lm-eval, lighteval and inspect_ai: files of evaluations."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from gradscope.errors import InputError, UsageError
from gradscope.rollouts.read_options import ColumnNames, ReadOptions
from gradscope.rollouts.readers.detect import read_run
from tests.conftest import REPOSITORY
from tests.rollouts.readers.lines import rewards_of, set_aside, write_lines

LOGS = REPOSITORY / "fixtures" / "logs"


def test_evalplus_counts_a_sample_only_if_both_suites_pass() -> None:
    run = read_run(LOGS / "evalplus")
    assert rewards_of(run) == {"HumanEval/0": (1.0, 0.0), "HumanEval/1": (0.0, 0.0)}
    assert run.groups[0].rollouts[1].rewards == {"base": 1.0, "plus": 0.0}
    assert "base and plus tests both pass" in run.source.inferred[0]


def test_evalplus_without_plus_tests_takes_the_base_verdict(tmp_path: Path) -> None:
    path = tmp_path / "eval_results.json"
    samples = [{"base_status": status, "plus_status": None} for status in ("pass", "fail", None)]
    path.write_text(json.dumps({"eval": {"t": samples}}))
    run = read_run(path)
    assert rewards_of(run) == {"t": (1.0, 0.0, None)}
    assert set_aside(run) == {"base_status is missing": 1}
    assert "no plus tests" in run.source.inferred[0]


def test_lm_eval_rows_of_another_filter_are_not_samples() -> None:
    run = read_run(LOGS / "lm_eval")
    assert rewards_of(run) == {"0": (0.0,), "1": (1.0,)}
    assert "rows of other filters (flexible-extract)" in run.source.inferred[0]
    assert "up to 2 responses" in run.source.missing[0]
    assert "only pass@1" in run.source.missing[0]


def test_lm_eval_documents_of_two_tasks_stay_apart_and_bad_rows_are_set_aside(tmp_path: Path) -> None:
    row = {"doc_id": 0, "doc": {}, "resps": [["4"]], "filter": "none", "metrics": ["acc"], "acc": 1.0}
    write_lines(tmp_path / "samples_a_2026.jsonl", row, {**row, "doc_id": None})
    write_lines(tmp_path / "samples_b_2026.jsonl", row)
    run = read_run(tmp_path)
    assert rewards_of(run) == {"a/0": (1.0,), "b/0": (1.0,)}
    assert set_aside(run) == {"doc_id is missing": 1}


def test_lm_eval_without_a_score_is_refused(tmp_path: Path) -> None:
    row = {"doc_id": 0, "doc": {}, "resps": [["4"]], "filter": "none", "metrics": ["acc"], "acc": "high"}
    path = write_lines(tmp_path / "samples_a.jsonl", row)
    with pytest.raises(InputError, match="lists no metric that is a number"):
        read_run(path)
    with pytest.raises(InputError, match="has no score 'f1'"):
        read_run(path, ReadOptions(columns=ColumnNames(reward="f1")))


def test_lighteval_has_one_value_a_document() -> None:
    run = read_run(LOGS / "lighteval")
    assert rewards_of(run) == {"math|0/0": (0.0,), "math|0/1": (1.0,)}
    assert run.source.inferred == ("The score is extractive_match.",)
    by_length = read_run(LOGS / "lighteval", ReadOptions(columns=ColumnNames(reward="len")))
    assert rewards_of(by_length) == {"math|0/0": (2.0,), "math|0/1": (2.0,)}
    with pytest.raises(InputError, match="has no metric 'f1'"):
        read_run(LOGS / "lighteval", ReadOptions(columns=ColumnNames(reward="f1")))


def test_lighteval_rows_that_cannot_be_used_are_set_aside(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [{"doc": {"id": name}, "model_response": {"text": ["a"]}, "metric": {"acc": 1.0}} for name in ("1", None)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "details_a.parquet")
    assert set_aside(read_run(tmp_path)) == {"doc.id is missing": 1}
    texts = [{**row, "metric": {"acc": "high"}} for row in rows]
    pq.write_table(pa.Table.from_pylist(texts), tmp_path / "details_a.parquet")
    with pytest.raises(InputError, match="has no metric that is a number"):
        read_run(tmp_path)


@pytest.mark.parametrize("name", ["inspect_ai", "inspect_ai_json", "inspect_ai_zstd", "inspect_ai_shards"])
def test_inspect_epochs_are_the_samples_of_a_prompt(name: str) -> None:
    run = read_run(LOGS / name)
    assert rewards_of(run) == {"a": (1.0, 0.0), "b": (0.0, 0.5)}
    assert run.groups[0].rollouts[0].completion == "4"
    assert "scorer match" in run.source.inferred[0]


def archive(path: Path, members: dict[str, Any]) -> Path:
    with zipfile.ZipFile(path, "w") as stream:
        for name, content in members.items():
            stream.writestr(name, json.dumps(content))
    return path


def test_inspect_logs_that_lack_the_scorer_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has no scorer 'other'"):
        read_run(LOGS / "inspect_ai", ReadOptions(columns=ColumnNames(reward="other")))
    with pytest.raises(InputError, match="has no scored samples"):
        read_run(archive(tmp_path / "a.eval", {"samples/a_epoch_1.json": {"id": "a"}, "samples/b_epoch_1.json": 3}))


def test_inspect_members_that_are_no_sample_are_set_aside(tmp_path: Path) -> None:
    sample = {"id": 1, "epoch": 1, "scores": {"m": {"value": "maybe"}}}
    members = {
        "samples/1_epoch_1.json": {**sample, "scores": {"m": {"value": 1}}},
        "samples/1_epoch_2.json": {**sample, "epoch": 2},
    }
    run = read_run(archive(tmp_path / "a.eval", {**members, "samples/1_epoch_3.json": "text"}))
    assert rewards_of(run) == {"1": (1.0, None)}
    assert set_aside(run) == {"the reward is text": 1, "the sample is not a JSON object": 1}


@pytest.mark.parametrize("name", ["lm_eval", "lighteval", "inspect_ai"])
def test_only_the_score_can_be_named(name: str) -> None:
    with pytest.raises(UsageError, match="whose columns are known"):
        read_run(LOGS / name, ReadOptions(columns=ColumnNames(prompt="doc")))
