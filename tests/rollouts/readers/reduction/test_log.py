"""The reduction answers as the row reader does, whatever is in the files."""

import gzip
import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gradscope.outside import limits
from gradscope.rollouts.groups import reward_table
from gradscope.rollouts.read_options import ColumnNames
from gradscope.rollouts.readers.detect import read_run
from gradscope.rollouts.readers.parsing.records import Record
from gradscope.rollouts.readers.reduction import lines as reduction_lines
from gradscope.rollouts.readers.reduction import log as reduction_log
from gradscope.rollouts.readers.reduction.log import ReadSoFar
from gradscope.rollouts.readers.reduction.parts import Part
from tests.rollouts.readers.lines import refusal, refused
from tests.rollouts.readers.reduced import answers, assert_reduced, assert_same


def line(step: int, group: str, reward: Any, **cells: Any) -> str:
    return json.dumps({"step": step, "group_id": group, "reward": reward, **cells}) + "\n"


class Log:
    """A folder with one file, looked at again and again."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "1.jsonl"
        self.so_far = ReadSoFar()
        self.read: list[int] = []

    def look(self, monkeypatch: pytest.MonkeyPatch) -> int:
        """How many bytes a look reads; its answers are those of a first look."""
        read: list[int] = []
        original = reduction_lines.blocks_in

        def spy(path: Path, start: int = 0, end: int | None = None) -> Iterator[reduction_lines.LineBlock]:
            for block in original(path, start, end):
                read.append(len(block.data))
                yield block

        with monkeypatch.context() as patch:
            patch.setattr(reduction_lines, "blocks_in", spy)
            again = read_run(self.file.parent, rewards_only=True, so_far=self.so_far)
        assert answers(again) == answers(read_run(self.file.parent, rewards_only=True))
        return sum(read)

    def append(self, text: str) -> int:
        with self.file.open("a") as stream:
            stream.write(text)
        return len(text)


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Log:
    monkeypatch.setattr(reduction_lines, "BLOCK", 200)
    monkeypatch.setattr(reduction_log, "_MARK", 16)
    made = Log(tmp_path)
    made.append("".join(line(1, f"g{index // 4}", index % 2) for index in range(40)))
    return made


def test_what_was_appended_is_read_and_nothing_else(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    assert log.look(monkeypatch) == log.file.stat().st_size
    assert log.look(monkeypatch) == 0
    # of an old group, without a reward, no JSON, and of a new step
    added = log.append(line(1, "g3", 1) + line(1, "g4", None) + "{\n" + line(2, "g0", 0))
    assert log.look(monkeypatch) == added
    (log.file.parent / "2.jsonl").write_text(line(3, "g0", None) + line(3, "g0", 1))
    assert log.look(monkeypatch) == (log.file.parent / "2.jsonl").stat().st_size


def test_a_line_that_is_still_being_written_is_read_again(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    log.look(monkeypatch)
    written = line(2, "g0", 1)
    log.append(written[:20])
    assert log.look(monkeypatch) == 20
    log.append(written[20:-1])
    assert log.look(monkeypatch) == len(written) - 1
    log.append("\n" + line(2, "g0", None))
    assert log.look(monkeypatch) == len(written) + len(line(2, "g0", None))


def test_reasons_keep_the_place_of_the_first_row(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    (log.file.parent / "2.jsonl").write_text(line(2, "g0", None))
    log.append(line(1, "g0", None)[:-1])  # without its end, and before the other file
    log.look(monkeypatch)
    log.look(monkeypatch)


@pytest.mark.parametrize("change", ["cut", "anew", "replaced", "earlier", "other_end", "gone", "columns"])
def test_a_log_that_did_not_grow_is_read_from_its_start(log: Log, monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    log.look(monkeypatch)
    content = log.file.read_text()
    match change:
        case "cut":
            os.truncate(log.file, len(content) // 2)
        case "anew":
            log.file.write_text(content.replace("g0", "h0", 1))
        case "replaced":
            other = log.file.with_name("other")
            other.write_text(content)
            other.replace(log.file)
        case "earlier":
            (log.file.parent / "0.jsonl").write_text(line(1, "g0", 1))
        case "other_end":
            log.file.write_text(content[:-5] + " }\n" + content)
        case "gone":
            log.file.rename(log.file.with_name("5.jsonl"))
        case _:
            log.file.write_text(line(1, "g0", 1, format_reward=1.0) + content)
    assert log.look(monkeypatch) == sum(file.stat().st_size for file in log.file.parent.iterdir())


def test_a_compressed_log_is_read_from_its_start(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    content = log.file.read_bytes()
    log.file.unlink()
    (log.file.parent / "1.jsonl.gz").write_bytes(gzip.compress(content))
    assert [log.look(monkeypatch) for _ in range(2)] == [len(content)] * 2


@pytest.fixture
def by_row(monkeypatch: pytest.MonkeyPatch) -> list[Record]:
    """The records that the row reader makes for a reduction."""
    made: list[Record] = []
    original = reduction_log.part_of_records

    def spy(records: Sequence[tuple[int, Record]], *usual: Any, **how: Any) -> Part:
        made.extend(record for _, record in records)
        return original(records, *usual, **how)

    monkeypatch.setattr(reduction_log, "part_of_records", spy)
    return made


ROW = '{"step": 1, "group_id": "a", "prompt_id": "p", "reward": 1.0, "completion": "text"}'


def changed(old: str, *new: str, row: str = ROW) -> list[str]:
    """The usual row with something else in one place, once for each."""
    return [row.replace(old, entry) for entry in new]


STEP = '"step": 1'
PLAIN = (
    *(ROW, *changed("1.0", "0", "true"), *changed(STEP, '"step": 2.0', '"step": "3"'), *changed('"a"', "17", '"17"')),
    ROW.replace('"a"', '"b\\u00e9\\n\\"c"').replace('"p"', '"q"'),
    ROW.replace('"a"', '"c"').replace('"p"', '""'),
    ROW.replace("1.0", "-1e-3").replace('"a"', '"d"'),
)
ODD = (
    *("", "  ", "{", "[1]", "null", '"text"', ROW + ROW, ROW[:-1], ROW + " ", ROW[:-1] + ",}", ROW[:-1] + " , \t }"),
    *changed("1.0", "null", "NaN", "-Infinity", "1e999", '"1.0"', "[1.0]", '{"score": 1}'),
    *changed(STEP, *(f'"step": {cell}' for cell in ("1.5", "null", "true", "1e300", '"x"'))),
    *changed('"a"', "null", '""', "1.50", "true", '["a", 1]', '{"a":  1}', '"[a"'),
    *changed('"p"', '"other"', "null", '{"of": 1}'),
    *changed('"text"', "NaN", '"\\ud800"', "[1, 2, ]", '"so [1, ] and {2,}"'),
    ROW.replace('"a"', '"\\ud800"').replace('"p"', '"\\ud800"'),
    *(ROW.replace('"reward": 1.0, ', ""), ROW.replace('"reward"', '"Reward"')),
)


@pytest.mark.slow
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    files=st.lists(
        st.tuples(st.lists(st.sampled_from(PLAIN + ODD), max_size=8), st.sampled_from(["\n", "\r\n"]), st.booleans()),
        min_size=1,
        max_size=3,
    )
)
def test_messy_files_have_the_answers_of_the_row_reader(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, files: list[tuple[list[str], str, bool]]
) -> None:
    folder = tmp_path_factory.mktemp("log")
    monkeypatch.setattr(reduction_lines, "BLOCK", 200)  # about two lines
    (folder / "0.jsonl").write_text(ROW + "\n")
    for number, (lines, end, ended) in enumerate(files, start=1):
        text = end.join(lines) + (end if ended and lines else "")
        (folder / f"{number}.jsonl").write_bytes(text.encode())
    assert_reduced(folder)


@pytest.mark.parametrize("line", PLAIN)
def test_plain_rows_are_reduced(tmp_path: Path, by_row: list[Record], line: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(f"{line}\n{line}")
    assert_reduced(path)
    assert not by_row


@pytest.mark.parametrize("line", ODD)
def test_each_odd_row_alone_has_the_answer_of_the_row_reader(tmp_path: Path, by_row: list[Record], line: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(f"{ROW}\n{line}\n{ROW}\n")
    assert_reduced(path)
    assert len(by_row) <= 3  # once for the groups on disk, twice for the table alone


def test_a_group_that_goes_on_in_the_next_file_is_one_group(tmp_path: Path) -> None:
    (tmp_path / "1.jsonl").write_text(ROW + "\n")
    (tmp_path / "2.jsonl").write_text(ROW.replace('"p"', '"later"').replace("1.0", "null") + "\n" + ROW + "\n")
    run = assert_reduced(tmp_path)
    assert [(group.prompt_id, group.rewards) for group in run.groups] == [("p", (1.0, None, 1.0))]


def write(folder: Path, kind: str) -> Path:
    folder.mkdir()
    rows = [{"step": index // 4, "group_id": f"g{index // 2}", "reward": float(index % 3 == 0)} for index in range(16)]
    lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
    match kind:
        case "jsonl":
            (folder / "a.jsonl").write_bytes(lines)
        case "gzip":
            (folder / "a.jsonl.gz").write_bytes(gzip.compress(lines))
        case "zstd":
            (folder / "a.jsonl.zst").write_bytes(pa.compress(lines, codec="zstd", asbytes=True))
        case "csv":
            cells = "".join(f'{row["step"]},"{row["group_id"]}",{row["reward"]}\n' for row in rows)
            (folder / "a.csv").write_text("step,group_id,reward\n" + cells)
        case _:
            pq.write_table(pa.Table.from_pylist(rows), folder / "a.parquet")
    return folder


@pytest.mark.parametrize("kind", ["jsonl", "gzip", "zstd", "csv", "parquet"])
def test_every_kind_of_file_is_reduced_and_progress_reported(tmp_path: Path, by_row: list[Record], kind: str) -> None:
    reports: list[tuple[int, int, str]] = []
    folder = write(tmp_path / "log", kind)
    (file,) = folder.iterdir()
    for path in (folder, file, folder / "*"):
        assert [group.step for group in assert_reduced(path).groups] == [0, 0, 1, 1, 2, 2, 3, 3]
    read_run(folder, rewards_only=True, progress=lambda *report: reports.append(report))
    assert reports == [(0, 0, "MB read, 16 rollouts")]
    assert not by_row


@pytest.mark.parametrize(
    "text",
    [
        "step,group_id,reward\n1,a,1\n\n1,a,0\n",
        "step,group_id,reward\n1,a,1\n1,a\n1,a,TRUE\n1,a,\n",
        'step,group_id,reward\n1,"a\nb",1\n1,a,0.5\n',
        "step,group_id,reward\n1,a,x\n1.5,a,1\n1, a ,1\n",
        "\ufeffstep,group_id,reward\n1,a,1\n1,a, 0 \n",
        'step,group_id,reward\n1,"[a",1\n1,NULL,1\n1,a"b,1\n',
    ],
)
def test_messy_csv(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text(text, encoding="utf-8")
    assert_reduced(path)


@pytest.mark.parametrize("rewards", [[1.0, None], [1.0, float("nan")], [True, False], ["1.0", "0.0"], [1, 2]])
def test_parquet_types(tmp_path: Path, rewards: list[Any]) -> None:
    rows = {"step": [1, 1, 1], "group_id": [1, 1, 2], "reward": [*rewards, rewards[0]]}
    pq.write_table(pa.table(rows), tmp_path / "part_1.parquet")
    pq.write_table(pa.table({**rows, "reward": [1.0] * 3}), tmp_path / "part_2.parquet")
    assert_reduced(tmp_path)


def test_columns_whose_names_are_those_of_other_roles(tmp_path: Path) -> None:
    names = ColumnNames(reward="s", step="g", group="p", prompt_id="x0")
    (tmp_path / "1.jsonl").write_text('{"s": 1, "g": 2, "p": "a", "x0": "b", "file": 9, "rows": 9}\n')
    assert_reduced(tmp_path / "1.jsonl", columns=names)
    (tmp_path / "2.csv").write_text("s,g,p,x0,file,rows\n1,2,a,b,9,9\n")
    assert_reduced(tmp_path, columns=names)


@pytest.mark.parametrize("kind", ["csv", "parquet", "jsonl"])
def test_a_name_that_looks_like_a_pattern(tmp_path: Path, by_row: list[Record], kind: str) -> None:
    (file,) = write(tmp_path / "log", kind).iterdir()
    assert_reduced(file.rename(file.with_name(f"[a].{kind}")))
    assert not by_row


@pytest.mark.parametrize("kind", ["jsonl.gz", "jsonl.zst", "csv.gz", "parquet"])
def test_a_damaged_file_is_set_aside_and_named(tmp_path: Path, kind: str) -> None:
    (tmp_path / "1.jsonl").write_text(ROW + "\n")
    damaged = tmp_path / f"2.{kind}"
    damaged.write_bytes(gzip.compress(ROW.encode() * 1000)[:-12] if kind.endswith("gz") else b"damaged")
    for rewards_only in (True, False):
        source = read_run(tmp_path, rewards_only=rewards_only).source
        assert source.num_rows >= 1
        assert damaged.name in source.quarantined.lost[0]
    refusal(damaged, damaged.name, rewards_only=True)


@pytest.mark.parametrize("rewards_only", [True, False])
@pytest.mark.parametrize("kind", ["jsonl.gz", "jsonl.zst", "csv.gz"])
def test_of_a_compressed_file_that_is_cut_off_the_rows_before_are_read(
    tmp_path: Path, kind: str, rewards_only: bool
) -> None:
    rows = [(f"q{row // 4}", hashlib.sha256(bytes([row % 256, row >> 8])).hexdigest(), row % 2) for row in range(4000)]
    if kind == "csv.gz":
        text = "prompt,completion,reward\n" + "".join(f"{p},{c},{r}\n" for p, c, r in rows)
    else:
        text = "".join(json.dumps({"prompt": p, "completion": c, "reward": r}) + "\n" for p, c, r in rows)
    packed = pa.compress(text.encode(), codec="gzip" if kind.endswith("gz") else "zstd", asbytes=True)
    (tmp_path / f"1.{kind}").write_bytes(packed[: len(packed) // 2])
    source = read_run(tmp_path / f"1.{kind}", rewards_only=rewards_only).source
    assert 1000 < source.num_rows < 3000
    assert source.quarantined.lost[0].startswith(f"{tmp_path / f'1.{kind}'} cannot be read")


def test_rollouts_of_one_reward_are_one_object(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text((ROW + "\n") * 3)
    (group,) = read_run(path, rewards_only=True).groups
    assert group.rewards == (1.0, 1.0, 1.0)
    assert len({id(rollout) for rollout in group.rollouts}) == 1


@pytest.mark.parametrize("further", ["0.5", "true", "null", "NaN", "1e999", '"1.0"', "[1]", '{"of": 1}'])
def test_a_log_with_several_rewards_keeps_them_together(tmp_path: Path, further: str) -> None:
    path = tmp_path / "a.jsonl"
    both = ROW.replace('"completion"', '"format_reward": 0.25, "completion"')
    odd = both.replace("0.25", further).replace("1.0", "0.0")
    path.write_text("".join(f"{line}\n" for line in (both, odd, ROW, both, both.replace('"a"', '"b"'))))
    assert_reduced(path)


def test_further_rewards_of_files_with_types(tmp_path: Path) -> None:
    (tmp_path / "1.csv").write_text("step,group_id,reward,score\n1,a,1,0.5\n1,a,0,x\n1,a,0,\n1,b,1,inf\n")
    (tmp_path / "2.csv").write_text("step,group_id,reward\n2,a,1\n2,a,0\n")
    pq.write_table(
        pa.table({"step": [3, 3], "group_id": ["a", "a"], "reward": [1, 0], "score": [float("nan"), 2.0]}),
        tmp_path / "3.parquet",
    )
    assert assert_reduced(tmp_path).groups[0].rollouts[0].rewards == {"reward": 1.0, "score": 0.5}


def test_rollouts_beyond_memory_say_so_when_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = pa.DictionaryArray.from_arrays(pa.array([0] * 600, pa.int32()), pa.array(["x" * 100_000]))
    rewards = [float(index % 2) for index in range(600)]
    rows = {
        "step": [1] * 600,
        "group_id": [f"g{index // 8}" for index in range(600)],
        "reward": rewards,
        "prompt": prompts,
    }
    pq.write_table(pa.table(rows), tmp_path / "log.parquet")
    monkeypatch.setattr(limits, "MAX_UNPACKED", 16 << 20)
    run = read_run(tmp_path / "log.parquet")
    assert len(run.groups) == 75
    refused(r"log\.parquet unpacks to more than", run.groups_at, 1)


def test_texts_are_read_where_they_are_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(ROW + "\n")
    assert read_run(path).groups[0].rollouts[0].completion == "text"
    assert read_run(path, rewards_only=True).groups[0].rollouts[0].completion == ""


@pytest.mark.parametrize("kind", ["gz", "zst"])
def test_compressed_logs_are_large_by_their_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    path = tmp_path / f"a.jsonl.{kind}"
    lines = (ROW.replace('"reward"', '"prompt": "q", "reward"') + "\n").encode() * 50
    path.write_bytes(gzip.compress(lines) if kind == "gz" else pa.compress(lines, codec="zstd", asbytes=True))
    on_disk = path.stat().st_size
    for most, has_texts in ((10 * on_disk, True), (10 * on_disk - 1, False)):
        monkeypatch.setattr(reduction_log, "MAX_WITH_TEXTS", most)
        assert (reward_table(read_run(path, rewards_only=True).groups).prompt_texts is not None) == has_texts


NUMBERED = ROW.replace('"reward"', '"sample_idx": 0, "reward"')
NUMBER = '"sample_idx": 0'


@pytest.mark.parametrize(
    "again",
    [
        *(NUMBERED, *changed("1.0", "0.5", "null", row=NUMBERED)),
        *changed(NUMBER, *(f'"sample_idx": {cell}' for cell in ('"0"', "null", "[0]")), row=NUMBERED),
        "\n".join(changed(NUMBER, '"sample_idx": 1.5', '"sample_idx": "1.5"', row=NUMBERED)),
        *(ROW, NUMBERED.replace(STEP, '"step": 2'), "{"),
    ],
)
def test_repeated_samples_equal_the_row_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, again: str) -> None:
    monkeypatch.setattr(reduction_lines, "BLOCK", 200)
    further = [NUMBERED.replace('"sample_idx": 0', f'"sample_idx": {index}') for index in range(1, 5)]
    path = tmp_path / "part_1.jsonl"
    path.write_text("".join(f"{line}\n" for line in (NUMBERED, *further, NUMBERED.replace('"a"', '"b"'), again)))
    (tmp_path / "part_2.jsonl").write_text(f"{again}\n")
    assert_reduced(tmp_path)


def test_rows_of_small_files_are_taken_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(12):
        last = {3: "{\n", 7: "", 9: ROW.replace("1.0", "null") + "\n"}.get(number, ROW + "\n")
        of_file = ROW.replace('"step": 1', f'"step": {number // 2}, "file": {number}')
        lines = [of_file.replace('"a"', f'"g{index % 3}"') for index in range(6)]
        (tmp_path / f"{number}.jsonl").write_text("".join(f"{line}\n" for line in lines) + last)
    (tmp_path / "12.jsonl").write_text(ROW)  # its line has no end
    row_counts: list[int] = []
    original = reduction_lines.part_of_columns
    monkeypatch.setattr(
        reduction_lines,
        "part_of_columns",
        lambda columns, index, **how: row_counts.append(len(index)) or original(columns, index, **how),
    )
    read_run(tmp_path, rewards_only=True)
    assert row_counts == [21, 6, 55, 7, 7, 7, 6, 7, 7, 7, 7, 1]  # an odd row among 55: each of their files by itself
    assert_reduced(tmp_path)


@pytest.mark.parametrize("last", ["{", "[]", '{"data": [1]}', "[1]", '{"step": 1}', "", "null", ROW + "\n" + ROW])
def test_documents_of_a_row_each_are_taken_together(tmp_path: Path, last: str) -> None:
    row = json.loads(ROW)
    documents = [row | {"step": number // 2, "group_id": f"g{number % 3}"} for number in range(8)]
    for number, document in enumerate([*documents, [row, row | {"reward": 0.0}], {"rows": [row]}, row | {"x": "data"}]):
        (tmp_path / f"{number}.json").write_text(json.dumps(document, indent=number % 3))
    (tmp_path / "99.json").write_text(last)
    assert_same(tmp_path)
