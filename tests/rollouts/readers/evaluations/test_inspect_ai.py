import json
import os
import zipfile
import zlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from gradscope.rollouts.readers.detect import read_run
from gradscope.rollouts.readers.evaluations import inspect_ai
from gradscope.rollouts.readers.evaluations.inspect_ai import Header, find_logs, header_of
from tests.conftest import LOGS, REPOSITORY
from tests.rollouts.readers.lines import naming, refusal, rewards_of, set_aside

LOG = REPOSITORY / "fixtures/logs/inspect_ai_shards"
RUN = "2026-11-01T10-00-00+00-00_demo_x"
EARLY, LATE = f"{RUN}.eval", "2026-11-01T11-00-00+00-00_demo_y.eval"


def archive(path: Path, members: dict[str, Any]) -> Path:
    with zipfile.ZipFile(path, "w") as stream:
        for name, content in members.items():
            stream.writestr(name, json.dumps(content))
    return path


def zstd_archive(path: Path, members: dict[str, Any], *, frame: int = 20) -> Path:
    """An archive as inspect_ai writes it: zstd, a member in several frames."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as stream:
        for name, content in members.items():
            data = json.dumps(content).encode()
            parts = [data[index : index + frame] for index in range(0, len(data), frame)]
            stream.writestr(name, b"".join(pa.compress(part, codec="zstd", asbytes=True) for part in parts))
            info = stream.getinfo(name)  # written into the directory of the archive as it is closed
            info.compress_type, info.file_size, info.CRC = 93, len(data), zlib.crc32(data)
    return path


SAMPLE = {"id": "a", "epoch": 1, "input": "long " * 40_000, "scores": {"m": {"value": "C"}}}


@pytest.mark.parametrize("frame", [1 << 17, 1 << 20])
def test_members_of_zstd_are_read_frame_by_frame(tmp_path: Path, frame: int) -> None:
    log = zstd_archive(tmp_path / "a.eval", {"samples/a_epoch_1.json": SAMPLE}, frame=frame)
    (rollout,) = read_run(log).groups[0].rollouts
    assert (rollout.reward, len(rollout.prompt)) == (1.0, 200_000)


@pytest.mark.parametrize(("i", "value"), [(24, 1000), (16, 1), (20, 7), (None, 0)])  # size, checksum, offset, data
def test_members_of_zstd_that_are_damaged_are_an_error(tmp_path: Path, i: int | None, value: int) -> None:
    log = zstd_archive(tmp_path / "a.eval", {"samples/a_epoch_1.json": SAMPLE}, frame=1 << 20)
    raw = bytearray(log.read_bytes())
    i = 60 if i is None else raw.rindex(b"PK\x01\x02") + i
    raw[i : i + 4] = value.to_bytes(4, "little")
    log.write_bytes(raw)
    refusal(log, r"a\.eval cannot be read")


def test_a_log_that_is_damaged_or_no_archive_says_nothing_of_itself(tmp_path: Path) -> None:
    (tmp_path / "text.eval").write_text("no zip")
    log = zstd_archive(tmp_path / "list.eval", {"header.json": ["success"]})
    for file in (tmp_path / "none.eval", tmp_path / "text.eval"):
        assert header_of([file]) == Header()
    assert header_of([log]).status == "started"


def test_inspect_archives_that_cannot_be_read_say_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = archive(tmp_path / "a.eval", {"samples/a_epoch_1.json": {"id": "a"}})
    raw = log.read_bytes()
    central = raw.index(b"PK\x01\x02")
    for method, reason in ((93, "ZSTD"), (9, "That compression method is not supported"), (14, "cannot be read")):
        other = tmp_path / "other.eval"
        other.write_bytes(raw[: central + 10] + method.to_bytes(2, "little") + raw[central + 12 :])
        refusal(other, reason)
    locked = tmp_path / "locked.eval"
    locked.write_bytes(raw[: central + 8] + (1).to_bytes(2, "little") + raw[central + 10 :])
    refusal(locked, "is encrypted")
    chunks = archive(tmp_path / "chunks.eval", {"samples/a_epoch_1/part.json": {}})
    assert f"inspect log convert {chunks} --to json" in refusal(chunks, "splits each sample into chunks")
    monkeypatch.setattr(inspect_ai, "MAX_ROW", 3)
    refusal(log, "a sample of more than 0 MiB")
    misnamed = tmp_path / "misnamed.eval"  # its directory calls a name UTF-8 that is not
    misnamed.write_bytes(
        raw[: central + 9] + b"\x08" + raw[central + 10 : central + 46] + b"\xff" + raw[central + 47 :]
    )
    refusal(misnamed, "cannot be read: 'utf-8' codec")
    damaged = tmp_path / "damaged.eval"
    damaged.write_bytes(raw.replace(b'"id"', b'"ix"', 1))
    monkeypatch.undo()
    refusal(damaged, "cannot be read: Bad CRC")


@pytest.mark.parametrize("name", ["inspect_ai", "inspect_ai_json", "inspect_ai_zstd", "inspect_ai_shards"])
def test_inspect_epochs_are_the_samples_of_a_prompt(name: str) -> None:
    run = read_run(LOGS / name)
    assert rewards_of(run) == {"a": (1.0, 0.0), "b": (0.0, 0.5)}
    assert run.groups[0].rollouts[0].completion == "4"
    assert "scorer match" in run.source.inferred[0]


def test_inspect_logs_that_lack_the_scorer_are_refused(tmp_path: Path) -> None:
    refusal(LOGS / "inspect_ai", "has no scorer 'other'", naming(reward="other"))
    members = {"samples/a_epoch_1.json": {"id": "a"}, "samples/b_epoch_1.json": 3}
    ended = {"header.json": {"status": "cancelled", "eval": HEADER}}
    for extra, sentence in (({}, r"samples\."), (ended, r"samples: the evaluation was cancelled: 1 of 12 samples\.")):
        assert (
            refusal(archive(tmp_path / "a.eval", {**members, **extra}), f"has no scored {sentence}")
            == "Give a log with a scorer for each sample."
        )


def test_each_entry_of_a_score_that_is_an_object_is_a_scorer(tmp_path: Path) -> None:
    scores = ({"main": True, "side": "C", "note": "x"}, {"main": False, "side": "P"}, {}, [1, 0])
    samples = {k: v for epoch, score in enumerate(scores, 1) for k, v in members("a", score, epoch=epoch).items()}
    log = archive(tmp_path / "x.eval", samples)
    run = read_run(log)
    assert rewards_of(run) == {"a": (1.0, 0.0, None, None)}
    assert "the scorer m.main (of 'm.main', 'm.side', 'm.note', 'm': --reward-column)" in run.source.inferred[0]
    assert rewards_of(read_run(log, naming(reward="m.side"))) == {"a": (1.0, 0.5, None, None)}
    refusal(log, "has no scorer 'main'", naming(reward="main"))


@pytest.mark.parametrize("words", [("C", "I"), ("yes", "No"), ("True", "false"), ("1", "0.0")])
def test_ids_may_have_slashes_and_values_be_words(tmp_path: Path, words: tuple[str, str]) -> None:
    """As HumanEval's ids, which are part of the names of members; such words count in inspect_ai's own accuracy."""
    samples = [members("HumanEval/0", name, epoch=epoch) for epoch, name in enumerate(words, 1)]
    log = archive(tmp_path / "a.eval", {k: v for name in samples for k, v in name.items()} | members("b", words[0]))
    assert rewards_of(read_run(log)) == {"HumanEval/0": (1.0, 0.0), "b": (1.0,)}


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_of_samples_that_were_scored_anew_the_last_counts(tmp_path: Path) -> None:
    log = archive(tmp_path / "a.eval", members("a", 0) | members("b", 1))
    with zipfile.ZipFile(log, "a") as stream:
        stream.writestr("samples/a_epoch_1.json", json.dumps(members("a", 1)["samples/a_epoch_1.json"]))
    run = read_run(log)
    assert (rewards_of(run), set_aside(run)) == ({"a": (1.0,), "b": (1.0,)}, {})


def test_inspect_members_that_are_no_sample_are_set_aside(tmp_path: Path) -> None:
    sample = {"id": 1, "epoch": 1, "scores": {"m": {"value": "maybe"}}}
    members = {
        "samples/1_epoch_1.json": {**sample, "scores": {"m": {"value": 1}}},
        "samples/1_epoch_2.json": {**sample, "epoch": 2},
    }
    run = read_run(archive(tmp_path / "a.eval", {**members, "samples/1_epoch_3.json": "text"}))
    assert rewards_of(run) == {"1": (1.0, None)}
    assert set_aside(run) == {"the reward is text": 1, "the sample is not a JSON object": 1}


def members(name: str, score: Any, *, epoch: int = 1, **header: Any) -> dict[str, Any]:
    sample = {"id": name, "epoch": epoch, "scores": {"m": {"value": score}}}
    return {f"samples/{name}_epoch_{epoch}.json": sample, **({"header.json": header} if header else {})}


@pytest.mark.parametrize(
    ("below", "expected"),
    [
        ("", {"a": (1.0, 0.0), "b": (0.0, 0.5)}),
        (f"{RUN}.shards", {"a": (1.0, 0.0), "b": (0.0, 0.5)}),
        (f"{RUN}.shards/0", {"a": (1.0,), "b": (0.0,)}),
        (f"{RUN}.eval", {"a": (1.0,)}),
    ],
)
def test_shards_of_a_run_are_one_evaluation_until_merged(below: str, expected: dict[str, tuple[float, ...]]) -> None:
    assert rewards_of(read_run(LOG / below)) == expected


def test_a_merged_log_goes_before_its_shards(tmp_path: Path) -> None:
    zstd_archive(tmp_path / f"{RUN}.shards/0/{LATE}", members("a", "C"))
    merged = zstd_archive(tmp_path / f"{RUN}-recovered.eval", members("a", "I", status="success"))
    assert list(find_logs(tmp_path)) == [merged]
    zstd_archive(merged, members("a", "I", status="error"))
    assert [file.name for file in find_logs(tmp_path)] == [LATE]


def test_the_last_attempt_of_a_shard_counts(tmp_path: Path) -> None:
    shard = tmp_path / f"{RUN}.shards/0"
    zstd_archive(shard / LATE, members("a", "C"))
    zstd_archive(shard / EARLY, members("a", "I"))
    zstd_archive(shard / "undated.eval", members("a", "I"))
    (shard / "notes.eval.txt").write_text("no log")
    (shard.parent / ".hidden").mkdir()
    (shard.parent / "stray.eval").write_text("no log of a worker")
    assert rewards_of(read_run(tmp_path)) == rewards_of(read_run(shard)) == {"a": (1.0,)}
    zstd_archive(shard / LATE.replace(".eval", "-recovered.eval"), members("a", "P"))
    assert rewards_of(read_run(shard.parent)) == {"a": (0.5,)}


def test_attempts_without_a_time_go_by_when_they_were_written(tmp_path: Path) -> None:
    shard = tmp_path / "run.shards/0"
    for index, name in enumerate(("b", "a")):
        os.utime(zstd_archive(shard / f"{name}.eval", members("a", index)), (index, index))
    assert rewards_of(read_run(tmp_path)) == {"a": (1.0,)}


def test_a_sample_in_two_shards_is_settled(tmp_path: Path) -> None:
    zstd_archive(tmp_path / "one.shards/0/x.eval", members("a", 1))
    zstd_archive(tmp_path / "one.shards/1/x.eval", members("a", 0))
    zstd_archive(tmp_path / "one.shards/2/x.eval", members("a", 1, epoch=2))
    for i, text in ((3, "cut off"), (4, "version https://git-lfs.github.com/spec/v1\n")):
        (tmp_path / f"one.shards/{i}").mkdir()
        (tmp_path / f"one.shards/{i}/x.eval").write_text(text)
    run = read_run(tmp_path)
    assert rewards_of(run) == {"a": (None, 1.0)}
    assert set_aside(run) == {
        "the row contradicts an earlier one of the same sample, so that neither counts": 2,
        "the file is no zip archive": 1,
    }
    assert "is a pointer of Git LFS" in run.source.quarantined.lost[0]


HEADER = {"task": "gsm8k", "model": "m", "dataset": {"sample_ids": ["a", "b", "c"]}, "config": {"epochs": 4}}


@pytest.mark.parametrize(
    ("members_about", "sentence"),
    [
        ({"header.json": {"status": "success", "eval": HEADER}}, None),
        ({"header.json": {"status": "cancelled", "eval": HEADER}}, "was cancelled: 2 of 12 samples"),
        ({"header.json": {"status": "error", "eval": HEADER}}, "ended with an error: 2 of 12 samples"),
        ({"_journal/start.json": {"eval": HEADER}}, "has not ended: 2 of 12 samples"),
        ({"header.json": {"status": "cancelled"}}, "was cancelled: 2 samples"),
        ({}, None),
    ],
)
def test_failed_evaluations_say_so(tmp_path: Path, members_about: dict[str, Any], sentence: str | None) -> None:
    samples = {**members("a", 1), **members("b", "noanswer")}
    source = read_run(archive(tmp_path / "x.eval", {**samples, **members_about})).source
    missing = [text for text in source.missing if text.startswith("The evaluation")]
    assert missing == ([] if sentence is None else [f"The evaluation {sentence}."])
    assert source.unfinished == (sentence or "")
