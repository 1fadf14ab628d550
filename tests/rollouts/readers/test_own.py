"""Parts of a log are the log, however it was cut, and whatever is not such a part is refused by name."""

import json
import os
import random
import shutil
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from msgspec.structs import asdict, replace

from gradscope.errors import InputError, OutputExistsError
from gradscope.rollouts.arrays import to_texts
from gradscope.rollouts.groups import RewardTable, reward_table
from gradscope.rollouts.read_options import ReadOptions
from gradscope.rollouts.readers import own
from gradscope.rollouts.readers.detect import read_run
from gradscope.rollouts.readers.own import SUFFIX, write_part
from gradscope.rollouts.run import Run
from gradscope.rollouts.run_folder import checkpoint_path, manifest_path, metrics_path, write_manifest
from gradscope.rollouts.store import write_step_rollouts
from tests.rollouts.build import adapter_folder, group, model_folder
from tests.rollouts.readers.lines import refusal, refused, write_lines, write_rows
from tests.rollouts.test_run_folder import MANIFEST

LOGS = Path(__file__).resolve().parents[3] / "fixtures/logs"
STEPPED_LOGS = ("areal", "art", "open_instruct", "relax", "rllm", "roll", "slime", "tinker", "trl", "miles")
"""Samples of formats with a file a step or an episode, each of which is a log of its own."""


def row(step: int, group: str, reward: float | None, sample: int, **extra: Any) -> dict[str, Any]:
    return {
        "step": step,
        "prompt_id": f"prompt {group}",
        "prompt": f"What is {group}?",
        "group_id": group,
        "completion_id": f"{group}.{sample}",
        "reward": reward,
        **extra,
    }


def parts_of(inputs: Iterable[Path | str], folder: Path, options: ReadOptions | None = None) -> Path:
    for part_input in inputs:
        write_part(read_run(part_input, options, rewards_only=True, measured="samples"), folder)
    return folder


def table_of(run: Run) -> RewardTable:
    return reward_table(run.groups)


def assert_is_the_log(parts: Path, log: Path | str) -> None:
    merged, full = read_run(parts, rewards_only=True), read_run(log, rewards_only=True)
    actual, wanted = table_of(merged), table_of(full)
    assert actual.ids() == wanted.ids()
    assert [actual.prompts[i] for i in actual.prompt] == [wanted.prompts[i] for i in wanted.prompt]
    assert dict(actual.rewards).keys() == dict(wanted.rewards).keys()
    for name, values in wanted.rewards.items():
        np.testing.assert_array_equal(actual.rewards[name], values, name)
    for name in ("step", "prompt", "size", "reward", "advantage", "num_tokens", "seconds", "policy"):
        np.testing.assert_array_equal(getattr(actual, name), getattr(wanted, name), name)
    assert (actual.prompt_texts, actual.policies) == (wanted.prompt_texts, wanted.policies)
    for name, value in asdict(full.source).items():
        if name not in ("path", "digests"):
            assert getattr(merged.source, name) == value, name
    assert (merged.metrics, merged.settings.values) == (full.metrics, full.settings.values)
    assert (merged.notes, merged.windows, merged.repeats) == (full.notes, full.windows, full.repeats)


@pytest.mark.parametrize(
    "log", sorted(path.name for path in LOGS.iterdir() if path.name not in ("README.md", "metrics", "verifiers_eval"))
)
def test_one_part_is_the_log(tmp_path: Path, log: str) -> None:
    assert_is_the_log(parts_of([LOGS / log], tmp_path), LOGS / log)


@pytest.mark.parametrize("log", STEPPED_LOGS)
def test_a_part_a_file_is_the_log(tmp_path: Path, log: str) -> None:
    files = [file for file in read_run(LOGS / log, rewards_only=True).source.files if "trainer_state" not in file]
    assert len(files) > 1
    assert_is_the_log(parts_of(reversed(files), tmp_path), LOGS / log)


@pytest.mark.parametrize("seed", range(6))
def test_rows_of_a_group_in_several_parts_are_those_of_the_whole(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    rows: list[dict[str, Any] | str] = [
        row(step, f"g{group}", chance.choice((0.0, 1.0, 0.5)), sample, seconds=chance.random(), side=sample / 8)
        for step in (1, 2)
        for group in range(5)
        for sample in range(4)
    ]
    chance.shuffle(rows)
    rows[7:7] = ["{", json.dumps(row(1, "g1", None, 9)), "[]", json.dumps(row(1, "\u00e9\u4e2d", 1.0, 0))]
    cuts = [0, *sorted(chance.sample(range(1, len(rows)), 5)), len(rows)]
    files = [
        write_lines(tmp_path / f"log/worker{index}.jsonl", *rows[start:end])
        for index, (start, end) in enumerate(pairwise(cuts))
    ]
    chance.shuffle(files)
    parts = parts_of(files, tmp_path / "parts")
    assert_is_the_log(parts, tmp_path / "log")
    assert len(table_of(read_run(parts, rewards_only=True))) < sum(
        len(table_of(read_run(part, rewards_only=True))) for part in parts.iterdir()
    )


def test_parts_of_several_files_interleave(tmp_path: Path) -> None:
    for number in (1, 2, 3, 10):
        write_lines(tmp_path / f"log/{number}.jsonl", *[row(1, f"g{number}.{i}", i % 2, i) for i in (0, 0, 1, 1)])
    parts = parts_of([tmp_path / "log/[23].jsonl", tmp_path / "log/1*.jsonl"], tmp_path / "parts")
    assert_is_the_log(parts, tmp_path / "log")


def test_logs_of_other_sizes_and_of_other_reward_functions(tmp_path: Path) -> None:
    write_lines(tmp_path / "log/1.jsonl", *[row(1, "a", 1.0, index) for index in range(3)])
    write_lines(tmp_path / "log/2.jsonl", *[row(2, "a", 1.0, index) for index in range(2)])
    parts = parts_of([tmp_path / "log/1.jsonl", tmp_path / "log/2.jsonl"], tmp_path / "parts")
    assert_is_the_log(parts, tmp_path / "log")
    assert "Groups differ in size: 2 to 3 rollouts." in read_run(parts, rewards_only=True).source.inferred


def test_numbers_that_are_none_are_said_once(tmp_path: Path) -> None:
    for step in (1, 2):
        write_lines(tmp_path / f"log/{step}.jsonl", *[verl_row(step, sample) for sample in (0, 1)])
    metrics = [{"step": step, "data": {"actor/grad_norm": float("nan")}} for step in (1, 2)]
    write_lines(tmp_path / "metrics.jsonl", *metrics)
    parts = parts_of([tmp_path / "log/1.jsonl", tmp_path / "log/2.jsonl"], tmp_path / "parts")
    full, merged = read_run(tmp_path / "log", rewards_only=True), read_run(parts, rewards_only=True)
    assert merged.source.missing == full.source.missing
    assert repr(merged.metrics) == repr(full.metrics)


def verl_row(step: int, sample: int, group: str = "0f8fad5b-d9cb-469f-a165-70867728950e") -> dict[str, Any]:
    return {
        "input": "q",
        "output": str(sample),
        "gts": "1",
        "score": float(sample % 2),
        "step": step,
        "uid": f"{group}_{sample}_0",
    }


def test_texts_are_those_of_a_log_of_this_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for step in (1, 2):
        write_lines(tmp_path / f"log/{step}.jsonl", *[row(step, "a", i, i) for i in (0, 1)])
    parts = parts_of([tmp_path / "log/1.jsonl", tmp_path / "log/2.jsonl"], tmp_path / "parts")
    assert table_of(read_run(parts, rewards_only=True)).prompt_texts == ("What is a?",)
    size = sum(file.stat().st_size for file in (tmp_path / "log").iterdir())
    monkeypatch.setattr(own, "MAX_WITH_TEXTS", size - 1)
    assert table_of(read_run(parts, rewards_only=True)).prompt_texts is None


def test_samples_logged_twice_within_a_part_were_settled_there(tmp_path: Path) -> None:
    rows = [verl_row(1, sample) for sample in (0, 1, 1, 2)]
    write_lines(tmp_path / "log/1.jsonl", *rows)
    write_lines(tmp_path / "log/2.jsonl", *[verl_row(2, sample) for sample in (0, 1)])
    parts = parts_of([tmp_path / "log/1.jsonl", tmp_path / "log/2.jsonl"], tmp_path / "parts")
    assert_is_the_log(parts, tmp_path / "log")
    assert read_run(parts, rewards_only=True).source.quarantined.num_rows == 1


@pytest.mark.parametrize("repeated", [1, 2])
def test_samples_logged_twice_in_two_parts_are_refused(tmp_path: Path, repeated: int) -> None:
    """A sample of the first part again, or one of a group of which the first part settled a sample itself."""
    first = write_lines(tmp_path / "a.jsonl", *[verl_row(1, sample) for sample in (0, 1, *(1,) * (repeated == 2))])
    second = write_lines(tmp_path / "b.jsonl", *[verl_row(1, sample) for sample in (repeated, 3)])
    third = write_lines(tmp_path / "c.jsonl", *[verl_row(2, sample) for sample in (0, 1)])
    parts = parts_of([first, second, third], tmp_path / "parts")
    refusal(parts, r"may be logged twice, in the files of \S*a.jsonl\S* and of \S*b.jsonl\S*\.$", rewards_only=True)


def test_groups_without_samples_of_their_own_are_counted(tmp_path: Path) -> None:
    rows = [{"input": "q", "output": "o", "gts": "1", "score": index % 2, "step": 1} for index in range(6)]
    files = [write_lines(tmp_path / f"log/{name}.jsonl", *part) for name, part in (("a", rows[:4]), ("b", rows[4:]))]
    assert_is_the_log(parts_of(files, tmp_path / "parts"), tmp_path / "log")


def test_policies_are_numbered_anew(tmp_path: Path) -> None:
    rows = [
        {"task_id": f"t{task}", "model": policy, "passed": [True, False], "completions": ["a", "b"]}
        for policy in ("x", "y", "z")
        for task in (0, 1)
    ]
    full = table_of(read_run(write_lines(tmp_path / "log.jsonl", *rows), rewards_only=True))
    parts = parts_of(
        [write_lines(tmp_path / "2.jsonl", *rows[3:]), write_lines(tmp_path / "1.jsonl", *rows[:3])], tmp_path / "parts"
    )
    merged = table_of(read_run(parts, rewards_only=True))
    assert merged.policies == full.policies == ("x", "y", "z")
    np.testing.assert_array_equal(merged.policy, full.policy)


def test_a_part_is_named_by_its_files_and_never_replaced(tmp_path: Path) -> None:
    log = write_lines(tmp_path / "my \udcff.jsonl", *[row(1, "a", i, i) for i in (0, 1)])
    run = read_run(log, rewards_only=True)
    part = write_part(run, tmp_path / "parts")
    assert part.name.startswith("my_.jsonl-")
    before = part.read_bytes()
    part.with_name(f".{part.name}.1-abcdef.partial").touch()  # as killed processes leave it
    refused("were reduced before", write_part, run, tmp_path / "parts", error=OutputExistsError)
    assert part.read_bytes() == before
    assert [file.name for file in part.parent.iterdir()] == [part.name]
    log.write_text(log.read_text(encoding="utf-8") + "\n", encoding="utf-8")
    assert write_part(read_run(log, rewards_only=True), tmp_path / "parts") != part


def test_an_interrupted_reduction_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    run = read_run(LOGS / "art", rewards_only=True)
    with monkeypatch.context() as patched:
        patched.setattr(os, "link", interrupted)
        with pytest.raises(KeyboardInterrupt):
            write_part(run, tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert_is_the_log(parts_of([LOGS / "art"], tmp_path), LOGS / "art")


def test_a_part_with_a_changed_bit_in_its_columns_never_has_other_numbers(tmp_path: Path) -> None:
    log = write_lines(tmp_path / "log.jsonl", *[row(1, str(index // 4), index % 3, index) for index in range(80)])
    (part,) = parts_of([log], tmp_path / "parts").iterdir()
    content, refused = part.read_bytes(), 0
    for index in range(4, 400, 7):
        part.write_bytes(content[:index] + bytes([content[index] ^ 4]) + content[index + 1 :])
        try:
            assert_is_the_log(part.parent, log)
        except InputError:
            refused += 1
    assert refused > 20


@pytest.mark.parametrize("moved", [False, True])
def test_a_file_that_two_parts_hold_is_refused(tmp_path: Path, moved: bool) -> None:
    first = write_lines(tmp_path / "log/1.jsonl", *[row(1, "a", i, i) for i in (0, 1)])
    write_lines(tmp_path / "log/2.jsonl", *[row(2, "a", i, i) for i in (0, 1)])
    parts = parts_of([first], tmp_path / "parts")
    if moved:  # the same file, read on another machine
        shutil.copytree(tmp_path / "log", tmp_path / "elsewhere")
        parts_of([tmp_path / "elsewhere"], parts)
    else:
        parts_of([tmp_path / "log"], parts)
    with pytest.raises(InputError, match=r"both hold \S+/1.jsonl: it was reduced twice") as caught:
        read_run(parts, rewards_only=True)
    assert all(str(part) in caught.value.message for part in parts.iterdir())


def test_parts_of_two_formats_are_refused(tmp_path: Path) -> None:
    parts = parts_of([LOGS / "trl", LOGS / "art"], tmp_path)
    refusal(parts, r"is of a log of (trl|art) and \S+ of one of (trl|art)", rewards_only=True)


def test_parts_of_two_evaluations_are_refused(tmp_path: Path) -> None:
    files = read_run(LOGS / "skyrl_eval", rewards_only=True).source.files
    parts = parts_of(files, tmp_path)
    refusal(parts, "are of several evaluations, which are never pooled", rewards_only=True)


def test_what_is_no_part_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"art holds no part of a log that was reduced"):
        read_run(LOGS / "art", ReadOptions(reader="reduced"), rewards_only=True)
    parts = parts_of([LOGS / "art"], tmp_path / "parts")
    (part,) = parts.iterdir()
    table = pq.read_table(part)
    other = parts / f"other{SUFFIX}"
    pq.write_table(table.replace_schema_metadata({}), other)
    refusal(parts, rf"other{SUFFIX} is no part of a log, though its name ends with", rewards_only=True)
    key, text = next(item for item in table.schema.metadata.items() if item[0] != b"ARROW:schema")
    newer = json.dumps({**json.loads(text), "layout": 99, "gradscope": "99.1"})
    pq.write_table(table.replace_schema_metadata({key: newer}), other)
    refusal(parts, r"was written by gradscope 99.1, whose parts this version", rewards_only=True)
    pq.write_table(table.drop_columns(["reward"]), other)
    refusal(parts, "is no part of a log", rewards_only=True)
    for manifest in ("[]", "{", json.dumps({**json.loads(text), "files": [1]}), json.dumps({"layout": 1})):
        pq.write_table(table.replace_schema_metadata({key: manifest}), other)
        refusal(parts, "is no part of a log", rewards_only=True)
    other.write_bytes(part.read_bytes()[:-9])
    refusal(parts, "is not a readable Parquet file", rewards_only=True)


def test_more_than_rewards_is_refused(tmp_path: Path) -> None:
    parts = parts_of([LOGS / "art"], tmp_path)
    assert str(LOGS / "art") in refusal(parts, "holds rewards alone")


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["verl rollouts, 1 file", "verl rollouts, 3 files"], "verl rollouts, 4 files"),
        (["ms-swift completions, 2 lines"] * 2, "ms-swift completions, 4 lines"),
        (["jsonl with a row, 1 file", "csv with a row, 1 file"], "jsonl with a row, 1 file; csv with a row, 1 file"),
        (["one.jsonl"], "one.jsonl"),
    ],
)
def test_what_parts_are_is_added_up(texts: Sequence[str], expected: str) -> None:
    assert own._recognized(texts) == expected


def test_names_of_groups_that_have_no_step_in_them_stay(tmp_path: Path) -> None:
    run = read_run(write_lines(tmp_path / "log.jsonl", *[row(1, "a", i, i) for i in (0, 1)]))
    groups = tuple(replace(group, group_id="all mine") for group in run.groups)
    write_part(replace(run, groups=groups), tmp_path / "parts")
    assert table_of(read_run(tmp_path / "parts", rewards_only=True)).ids() == ("all mine",)


def test_half_a_surrogate_pair_survives(tmp_path: Path) -> None:
    log = write_lines(tmp_path / "log.jsonl", *[row(1, "\ud800", i, i) for i in (0, 1)])
    parts = parts_of([log], tmp_path / "parts")
    assert_is_the_log(parts, log)
    assert to_texts(table_of(read_run(parts, rewards_only=True)).names) == ["\ud800"]  # type: ignore[arg-type]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    path = tmp_path / "run"
    write_manifest(path, MANIFEST)
    write_step_rollouts(path, 1, [group(1)])
    return path


def test_nothing_is_inferred(run: Path) -> None:
    metrics_path(run).touch()
    source = read_run(run).source
    assert (source.format, source.inferred, source.num_rows) == ("gradscope", (), 2)
    assert read_run(run).settings.origin == "the run's manifest"
    assert [Path(file).name for file in source.files] == ["step_00001.parquet", "manifest.json", "metrics.jsonl"]
    assert source.missing == ("No complete checkpoint is in the folder.",)
    assert "gradscope run r1, 1 step" in source.recognized


def test_weights_and_tokenizer_are_those_of_the_checkpoints(run: Path) -> None:
    model_folder(checkpoint_path(run, 1))
    (checkpoint_path(run, 1) / "tokenizer.json").touch()
    loaded = read_run(run)
    assert [ref.num_updates for ref in loaded.weights] == [1]
    assert loaded.tokenizer == checkpoint_path(run, 1)
    assert loaded.source.missing == ()


def test_given_weights_and_arguments_win(run: Path, tmp_path: Path) -> None:
    for num_updates in (0, 1):
        adapter_folder(checkpoint_path(run, num_updates))
    initial = adapter_folder(tmp_path / "init")
    config = write_rows(tmp_path / "args.json", {"beta": 0.5})
    loaded = read_run(run, ReadOptions(initial_weights=initial, model="org/base", trainer_args=config))
    assert [(ref.num_updates, ref.path, ref.base) for ref in loaded.weights] == [
        (0, initial, "org/base"),
        (1, checkpoint_path(run, 1), "org/base"),
    ]
    assert loaded.settings.values == {"beta": 0.5, "num_generations": 4, "advantage": "dr_grpo"}
    assert loaded.settings.origin == str(config)


def test_rollouts_without_their_manifest_say_so(run: Path) -> None:
    manifest_path(run).unlink()
    refusal(run, r"has no readable manifest\.json")


def test_a_joined_file_that_is_gone_or_lacks_groups_is_reported(run: Path) -> None:
    for step in range(2, 42):
        write_step_rollouts(run, step, [group(step)])
    write_lines(metrics_path(run), *({"step": step, "num_groups": 2 if step == 22 else 1} for step in range(1, 42)))
    source = read_run(run).source
    assert "gradscope run r1, 41 steps" in source.recognized
    (lost,) = source.quarantined.lost
    assert "steps_00021-00040.parquet has 1 groups of step 22, and the metrics tell of 2" in lost
    (run / "rollouts" / "steps_00001-00020.parquet").unlink()
    assert (
        "steps_00001-00020.parquet is gone: the run wrote rollouts at steps 1 to 20."
        in read_run(run).source.quarantined.lost[0]
    )
