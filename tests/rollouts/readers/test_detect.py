import gzip
import json
import shutil
from collections import Counter
from pathlib import Path

import pytest

from gradscope.errors import InputError, UsageError
from gradscope.rollouts.read_options import ColumnNames, ReadOptions
from gradscope.rollouts.readers.detect import FORMATS, read_run
from gradscope.rollouts.run import Run
from tests.conftest import REPOSITORY
from tests.rollouts.build import group
from tests.rollouts.test_run_folder import MANIFEST

LOGS = REPOSITORY / "fixtures" / "logs"


def test_an_unknown_format_gets_a_suggestion() -> None:
    with pytest.raises(UsageError, match="There is no format 'trk'") as caught:
        read_run(LOGS / "trl", ReadOptions(reader="trk"))
    assert "Did you mean 'trl'?" in (caught.value.hint or "")
    with pytest.raises(UsageError, match="There is no format 'x'"):
        read_run(LOGS / "trl", ReadOptions(reader="x"))


@pytest.mark.parametrize(
    ("format", "message"),
    [
        ("gradscope", r"has no readable manifest\.json"),
        ("trl", r"holds no completions/completions_"),
        ("verl", r"has no usable rows; set aside"),
        ("samples", r"has no column that is known to be a reward"),
        ("generic", r"has no column that is known to be a reward"),
    ],
)
def test_a_forced_format_that_does_not_fit_says_what_is_missing(format: str, message: str) -> None:
    assert format in {reader.name for reader in FORMATS}
    with pytest.raises(InputError, match=message):
        read_run(LOGS / "README.md", ReadOptions(reader=format))


def rewards(run: Run) -> dict[str, tuple[float | None, ...]]:
    return {group.group_id: group.rewards for group in run.groups}


@pytest.mark.parametrize(
    ("name", "format", "expected"),
    [
        ("trl", "trl", [(1.5, 0.5), (0.0, 0.5), (1.5, 1.5), (0.5, 1.0)]),
        ("verl_v1", "verl", [(1.0, 0.0), (0.0, 0.0)]),
        ("verl_legacy", "verl", [(1.0, 0.0), (0.0, 0.0)]),
        ("samples_rows.jsonl", "samples", [(1.0, 0.0), (0.0, 0.0)]),
        ("samples_lists.jsonl", "samples", [(1.0, 0.0, 1.0), (0.0, 0.0, 0.0)]),
        ("samples_counts.csv", "samples", [(1.0, 1.0, 1.0, 0.0), (0.0,) * 4]),
        ("samples_nested.json", "samples", [(1.0, 0.1), (0.0, 0.0)]),
        ("samples_policies.jsonl", "samples", [(0.0, 1.0), (1.0, 1.0)]),
        ("trials.json", "samples", [(1.0, 0.0), (0.0, 0.0)]),
        ("generic.csv", "generic", [(1.0, 0.0), (1.0, 0.0)]),
    ],
)
def test_every_fixture_is_recognized(name: str, format: str, expected: list[tuple[float, ...]]) -> None:
    run = read_run(LOGS / name)
    assert run.source.format == format
    assert list(rewards(run).values()) == expected
    assert run.source.quarantined.num_rows == 0
    assert all(Path(file).is_file() for file in run.source.files)
    assert {group.group_id for group in run.groups} == {r.group_id for g in run.groups for r in g.rollouts}


def test_a_messy_log_is_read_and_every_row_accounted_for() -> None:
    path = LOGS / "messy.jsonl"
    run = read_run(path)
    assert rewards(run) == {"1:a": (1.0, None, None, None), "1:b": (None, None, 1.0, None)}
    assert run.source.num_rows == 2
    assert Counter({r.reason: r.num_rows for r in run.source.quarantined.reasons}) == {
        "the reward is not finite": 2,
        "the reward is null": 1,
        "the reward is text": 1,
        "the reward is missing": 1,
        "the reward is a list, not a number": 1,
        "the step is not a whole number": 1,
        "group_id is missing": 1,
        "the line is blank": 1,
        "the line is not UTF-8": 1,
        "the line is not a JSON object": 1,
        "the line is not JSON": 1,
        "the last line is cut off": 1,
    }
    first_rows = {reason.reason: reason.first for reason in run.source.quarantined.reasons}
    assert first_rows["the reward is not finite"] == f"{path}:4"
    assert first_rows["the last line is cut off"] == f"{path}:15"
    with pytest.raises(
        InputError, match=r"Rows that cannot be used: 13; first .*messy\.jsonl:4: the reward is not finite"
    ):
        read_run(path, ReadOptions(strict=True))


def test_a_folder_a_glob_and_gzip_hold_the_same(tmp_path: Path) -> None:
    for step in (10, 9):
        row = {"step": step, "group_id": "g", "reward": 1.0}
        with gzip.open(tmp_path / f"{step}.jsonl.gz", "wt") as stream:
            stream.write(json.dumps(row) + "\n")
    by_folder, by_glob = read_run(tmp_path), read_run(str(tmp_path / "*.gz"))
    assert rewards(by_folder) == rewards(by_glob) == {"9:g": (1.0,), "10:g": (1.0,)}
    assert [Path(file).name for file in by_folder.source.files] == ["9.jsonl.gz", "10.jsonl.gz"]


def test_a_run_folder_of_ours(tmp_path: Path) -> None:
    from gradscope.rollouts.run_folder import append_metrics, write_manifest
    from gradscope.rollouts.store import write_step_rollouts

    write_manifest(tmp_path, MANIFEST)
    with pytest.raises(InputError, match=r"holds no rollouts/step"):
        read_run(tmp_path, ReadOptions(reader="gradscope"))
    write_step_rollouts(tmp_path, 1, [group(1, rewards=(1.0, None))])
    append_metrics(tmp_path, 1, {"grad_norm": 2.0})
    run = read_run(tmp_path)
    assert run.source.format == "gradscope"
    assert run.groups == (group(1, rewards=(1.0, None)),)
    assert run.metrics == {1: {"grad_norm": 2.0}}
    assert run.settings.get("num_generations") == 4


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: None, "There is no file or folder"),
        (lambda path: path.mkdir(), "The folder .* is empty"),
        (lambda path: path.touch(), "The file .* is empty"),
        (
            lambda path: path.write_text('{"a": 1}\n'),
            r"is not a log that gradscope knows. Its columns are 'a'\. Looked for",
        ),
        (lambda path: path.write_text("\n\n"), "has no usable rows; the first .*: the line is blank"),
    ],
)
def test_an_unusable_path_says_why(tmp_path: Path, make: object, message: str) -> None:
    path = tmp_path / "log"
    make(path)  # type: ignore[operator]
    with pytest.raises(InputError, match=message):
        read_run(path)


def test_a_glob_without_matches(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"No file matches .*\*\.jsonl"):
        read_run(tmp_path / "*.jsonl")


def test_a_url_made_a_path_gets_a_hint_to_give_text() -> None:
    with pytest.raises(InputError, match="There is no file or folder s3:/bucket/run") as caught:
        read_run(Path("s3://bucket/run"))
    assert caught.value.hint == "Give a URL as text: a Path drops one of its slashes."


def test_a_forced_format_is_used() -> None:
    assert read_run(LOGS / "verl_v1" / "1.jsonl", ReadOptions(reader="generic")).source.format == "generic"


def test_what_a_reader_has_no_use_for_is_refused() -> None:
    with pytest.raises(UsageError, match=r"is read as trl, whose columns are known"):
        read_run(LOGS / "trl", ReadOptions(columns=ColumnNames(reward="neat")))
    with pytest.raises(UsageError, match=r"a side file of completion ids goes with a TRL run only"):
        read_run(LOGS / "generic.csv", ReadOptions(completion_ids=LOGS / "generic.csv"))
    file = LOGS / "trl" / "completions" / "completions_00001.parquet"
    columns = ColumnNames(reward="neat", group="prompt")
    assert read_run(file, ReadOptions(reader="generic", columns=columns)).groups[0].rewards == (1.0, 1.0)


@pytest.mark.parametrize("cells", [{"reward": 1e61}, {"reward": -1e308}])
def test_rewards_that_cannot_be_added_up_are_refused(tmp_path: Path, cells: dict[str, object]) -> None:
    log = tmp_path / "log.jsonl"
    rows = [{"step": 1, "prompt_id": "p", "reward": reward} for reward in (0.0, None, 1e60)]
    log.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert len(read_run(log).groups) == 1
    log.write_text("".join(json.dumps(row) + "\n" for row in (*rows, {"step": 1, "prompt_id": "p"} | cells)))
    with pytest.raises(InputError, match=r"has a reward of 1e\+(61|308) in size, and such beyond 1e\+60"):
        read_run(log)


@pytest.mark.parametrize(
    ("logs", "read", "other"),
    [
        (("trl", "verl_legacy"), "trl", "verl"),
        (("slime", "roll"), "slime", "roll"),
        (("nemo_rl", "art"), "nemo-rl", "art"),
    ],
)
def test_files_of_another_trainer_in_the_folder_are_named(
    tmp_path: Path, logs: tuple[str, str], read: str, other: str
) -> None:
    for log in logs:
        shutil.copytree(LOGS / log, tmp_path, dirs_exist_ok=True)
    sentence = f"Files of {other} are in the folder, too, and are left out: read them with --reader."
    source = read_run(tmp_path).source
    assert (source.format, sentence in source.missing) == (read, True)
    assert sentence not in read_run(tmp_path, ReadOptions(reader=read)).source.missing
    assert read_run(tmp_path, ReadOptions(reader=other)).source.format == other
