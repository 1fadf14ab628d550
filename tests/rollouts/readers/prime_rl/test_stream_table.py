"""A reduced stream of prime-rl's has the answers of the row reader."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from gradscope.rollouts.groups import holds_rewards_alone
from gradscope.rollouts.readers.parsing.counted import SEVERAL
from gradscope.rollouts.run import Run
from tests.conftest import REPOSITORY
from tests.rollouts.readers.prime_rl.test_columns import KEYS, OTHER, longer, row, trace
from tests.rollouts.readers.reduced import STRANGE, assert_same, every_log_is_large, mutated, write_lines

LOG = REPOSITORY / "fixtures" / "logs" / "prime_rl_stream"


@pytest.fixture(autouse=True)
def reduced(monkeypatch: pytest.MonkeyPatch) -> None:
    every_log_is_large(monkeypatch, block=2000)


def tokens(*logprobs: Any, parent: Any = 0) -> list[dict[str, Any]]:
    """The messages of a trace with log-probabilities."""
    ask = {"message": {"role": "user", "content": "?"}, "token_ids": [5, 9], "mask": [False, False]}
    ids, mask = list(range(len(logprobs))), [True] * len(logprobs)
    return [ask, {"parent": parent, "sampled": True, "token_ids": ids, "mask": mask, "logprobs": list(logprobs)}]


def episode(number: int = 0, group: str = "g", *, sent: int = 1, **cells: Any) -> dict[str, Any]:
    """An episode with one trace, ``t<number>``."""
    info = {"kind": "train", "dispatch": {"step": sent}}
    return row(sent, group, trace(f"t{number}", number / 3, info=info, **cells))


def ship(number: int, step: Any, **cells: Any) -> dict[str, Any]:
    return {"version": 1, "trace_id": f"t{number}", "info": {"ship": {"step": step}}} | cells


def write(folder: Path, rows: Sequence[Any], annotations: Sequence[Any] = (), *, chunk: str = "00000") -> Path:
    traces = folder / "traces"
    write_lines(
        traces / "stream" / f"{chunk}.jsonl", [cell if isinstance(cell, str) else json.dumps(cell) for cell in rows]
    )
    if annotations:
        lines = [cell if isinstance(cell, str) else json.dumps(cell) for cell in annotations]
        write_lines(traces / "annotations" / "orchestrator" / f"{chunk}.jsonl", lines)
    return folder


def steps_of_groups(run: Run | None) -> dict[str, int]:
    assert run is not None
    return {group.group_id: group.step for group in run.groups}


EPISODES = [
    *(episode(4 * at + 2 * step + place, "gh"[at], sent=step) for at in (0, 1) for step in (1, 2) for place in (0, 1)),
    episode(0, "g"),
    episode(8, "h", nodes=tokens(-0.1, -0.25)),
    episode(9, "h", nodes=longer(None, 0, 1, 2)),
    episode(10, "g", nodes=longer(None, 0, 0)),
    episode(11, "é\u0000😀", rewards=OTHER),
    row(2, "g", trace("t12"), task={"hash": "else"}),
    row(2, "g", trace("t13"), trace("t14", agent={"name": "critic", "trainable": False})),
    row(2, "g", trace("t15", info={"kind": "eval"})),
]
ANNOTATIONS = [
    *(ship(number, 2 + number % 3) for number in (*range(10), 12)),
    ship(3, 4, info={"advantage": 0.5}),
    ship(5, 4, info={"dispatch": {"step": 7}, "ship": None}),
    ship(0, 3),
]
WITHIN = (*KEYS, "info", "ship", "dispatch")


@pytest.mark.slow
@pytest.mark.parametrize("agents", [1, 2])
def test_damaged_streams_have_the_answers_of_the_row_reader(tmp_path: Path, agents: int) -> None:
    num_reduced = 0
    rows = EPISODES if agents == 1 else [*EPISODES, row(1, "g", trace("t20"), trace("t21"))]
    for seed in range(12):
        folder, chance = tmp_path / str(seed), random.Random(seed)
        for chunk in ("00000", "00001")[: 1 + seed % 2]:
            lines = [json.dumps(episode()), *mutated(rows, chance.randrange(1 << 30), within=WITHIN)]
            told = mutated(ANNOTATIONS, chance.randrange(1 << 30), within=WITHIN) if seed % 5 else []
            write(folder, lines, told, chunk=chunk)
        run = assert_same(folder)
        num_reduced += run is not None and holds_rewards_alone(run.groups)
    assert num_reduced > 5


def test_the_sample_of_the_format_is_reduced() -> None:
    run = assert_same(LOG, is_reduced=True)
    assert run is not None
    assert (run.source.inferred[1].startswith("Some rollouts are several"), set(run.notes)) == (True, {2, 3})


def test_a_group_has_the_first_step_that_trained_on_it_else_that_of_its_dispatch(tmp_path: Path) -> None:
    rows = [episode(at, "gh"[at // 3], sent=3 - at % 2) for at in range(6)]
    run = assert_same(write(tmp_path, rows, [ship(1, 9), ship(2, 8), ship(7, 1)]), is_reduced=True)
    assert steps_of_groups(run) == {"8:g": 8, "2:h": 2}
    assert run is not None
    assert set(run.notes) == {8, 9}


def test_without_annotations_steps_are_those_of_the_dispatch(tmp_path: Path) -> None:
    run = assert_same(write(tmp_path, [episode(0, sent=4), episode(1, sent=3)]), is_reduced=True)
    assert steps_of_groups(run) == {"3:g": 3}
    assert run is not None
    assert run.source.missing[0].startswith("No annotation says")


def test_the_newest_of_several_annotations_counts(tmp_path: Path) -> None:
    rows = [episode(at, "ghij"[at]) for at in range(4)]
    told = [ship(0, 5), ship(0, 6), ship(1, 5), ship(1, None), ship(2, 5), ship(2, 6), ship(2, 5), ship(3, 6)]
    run = assert_same(write(tmp_path, rows, told), is_reduced=True)
    assert steps_of_groups(run) == {"6:g": 6, "1:h": 1, "5:i": 5, "6:j": 6}


def test_a_step_that_a_restart_repeated_is_noted(tmp_path: Path) -> None:
    rows, told = [episode(at, "ghi"[at]) for at in range(3)], [ship(0, 1), ship(1, 2), ship(2, 1)]
    write(tmp_path, rows, told[:1])
    run = assert_same(write(tmp_path, rows[:1], told[1:], chunk="00001"), is_reduced=True)
    assert run is not None
    assert {step: str(note).split(" trained")[0] for step, note in run.notes.items()} == {1: "a restart"}


def test_an_episode_that_is_logged_again_counts_once_and_not_where_it_contradicts_itself(tmp_path: Path) -> None:
    rows = [episode(0), episode(1), episode(0), episode(1, sent=0), row(1, "g", trace("t1", 0.9))]
    run = assert_same(write(tmp_path, rows, [ship(9, 1)]), is_reduced=True)
    assert run is not None
    assert [(group.group_id, group.rewards) for group in run.groups] == [("g", (0.07 + 0.2, None))]


def test_a_name_that_several_prompts_share_is_several_groups(tmp_path: Path) -> None:
    rows = [row(1, "g", trace(f"t{at}"), task={"hash": "ab"[at % 2]}) for at in range(4)]
    run = assert_same(write(tmp_path, rows, [ship(0, 2), ship(2, 2), ship(1, 3)]), is_reduced=True)
    assert steps_of_groups(run) == {"2:g/math/a": 2, "3:g/math/b": 3}


def test_groups_that_would_share_a_name_are_read_by_rows(tmp_path: Path) -> None:
    rows = [row(1, "g", trace(f"t{at}"), task={"hash": "ab"[at % 2]}) for at in range(4)]
    assert_same(write(tmp_path, [*rows, row(1, "g/math/a", trace("t7"), task={"hash": "a"})]), is_reduced=False)


def test_several_agents_are_several_groups(tmp_path: Path) -> None:
    named = [trace(f"t{at}", agent={"name": name}) for at, name in enumerate(("solver", "critic"), start=5)]
    run = assert_same(write(tmp_path, [episode(0), row(1, "g", *named)], [ship(5, 2)]), is_reduced=True)
    assert run is not None
    assert set(steps_of_groups(run)) == {"1:g", "2:g/solver", "1:g/critic"}
    assert_same(write(tmp_path / "alone", [row(1, "g", *named)], [ship(5, 2)]), is_reduced=True)


@pytest.mark.parametrize("place", [0, 30])
def test_a_trace_that_branches_is_told_of_wherever_it_stands(tmp_path: Path, place: int) -> None:
    rows = [episode(at) for at in range(31)]
    forked = tokens(-0.1, -0.2)
    rows[place] = episode(place, nodes=[*forked, forked[1]])
    run = assert_same(write(tmp_path, [*rows, episode(40, nodes=[*forked, *forked[1:] * 3])]), is_reduced=True)
    assert run is not None
    assert run.source.inferred == (SEVERAL,)


def test_episodes_of_evaluations_are_left_out(tmp_path: Path) -> None:
    work = {"type": "eval", "step": 1}
    others = [episode(1) | {"run": {"type": "train", "work": work}}, row(1, "g", trace("t2", info={"kind": "eval"}))]
    escaped = json.dumps(others[1]).replace('"eval"', '"ev\\u0061l"')
    run = assert_same(write(tmp_path, [episode(0), *others, escaped]), is_reduced=True)
    assert run is not None
    assert [group.size for group in run.groups] == [1]


def test_groups_that_go_on_in_another_chunk_are_one_also_where_it_is_compressed(tmp_path: Path) -> None:
    for chunk in ("00000", "00001"):
        write(
            tmp_path, [episode(2 * int(chunk) + at, sent=2 - int(chunk)) for at in range(2)], [ship(0, 7)], chunk=chunk
        )
    first = tmp_path / "traces" / "stream" / "00000.jsonl"
    first.with_name("00000.jsonl.zst").write_bytes(pa.compress(first.read_bytes(), codec="zstd", asbytes=True))
    first.unlink()
    run = assert_same(tmp_path, is_reduced=True)
    assert run is not None
    assert [(group.group_id, group.size) for group in run.groups] == [("7:g", 4)]


@pytest.mark.parametrize(
    "logprobs",
    [
        [],
        [(-0.1, -0.25)],
        [(-0.1, -0.25), (-0.12345,)],
        [(-0.12345,), (-0.1,)],
        [(-0.1,), (-1e-7,)],
        [(-0.1,), (float("nan"),), ("-0.12345",), (True,)],
        [(), (0.5,)],
    ],
)
@pytest.mark.parametrize("late", [False, True])
def test_whether_log_probabilities_are_rounded_is_told_of_all(tmp_path: Path, logprobs: list[Any], late: bool) -> None:
    others = [episode(100 + at) for at in range(25 if late else 1)]
    rows = [episode(at, nodes=tokens(*values)) for at, values in enumerate(logprobs)]
    deep = [episode(50 + at, nodes=[*tokens(*values), {"parent": 1}]) for at, values in enumerate(logprobs)]
    assert_same(write(tmp_path / "short", [*others, *rows]), is_reduced=True)
    assert_same(write(tmp_path / "long", [*rows[:1], *others, *deep]), is_reduced=True)


PLACES = ("work", "step", "type", "id", "info", "kind", "ship", "dispatch", "group", "hash")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("key", "value"),
    [(key, value) for at, key in enumerate(PLACES) for number, value in enumerate(STRANGE) if (at + number) % 3 == 0],
)  # each value in three or four of the places, each place with a third of the values
def test_an_odd_cell_has_the_answer_of_the_row_reader(tmp_path: Path, key: str, value: Any) -> None:
    def other(cell: Any) -> Any:
        if isinstance(cell, list):
            return [other(item) for item in cell]
        return (
            {name: value if name == key else other(item) for name, item in cell.items()}
            if isinstance(cell, dict)
            else cell
        )

    odd = json.dumps(other(episode(1) | {"traces": [trace("t1", info={"kind": "train", "ship": {}, "dispatch": {}})]}))
    told = [ship(0, 2), other(ship(1, 3)), other(ship(2, 3, info={"dispatch": {"step": 5}}))]
    assert_same(write(tmp_path, [episode(0), odd, episode(2), odd], told))


def test_traces_without_a_name_are_in_no_batch_and_repeat_nothing(tmp_path: Path) -> None:
    rows = [row(at, "g", trace(name)) for at, name in enumerate((None, 7, None, 7))]
    run = assert_same(write(tmp_path, rows, [ship(0, 7)]), is_reduced=True)
    assert run is not None
    assert [(group.step, group.size) for group in run.groups] == [(0, 4)]


def test_a_trace_that_tells_its_batch_itself_is_for_the_row_reader(tmp_path: Path) -> None:
    rows = [episode(0), row(1, "g", trace("t1", info={"ship": {"step": 6}}))]
    run = assert_same(write(tmp_path, rows, [ship(0, 7)]), is_reduced=False)
    assert steps_of_groups(run) == {"6:g": 6}


def test_rewards_that_come_late_are_for_the_row_reader(tmp_path: Path) -> None:
    rows = [*(episode(at) for at in range(20)), row(1, "g", trace("x", rewards={"late": {"score": 1}}))]
    assert_same(write(tmp_path, rows), is_reduced=True)


def test_what_is_set_aside_is_first_where_the_row_reader_finds_it_first(tmp_path: Path) -> None:
    run = assert_same(
        write(tmp_path, ["{", episode(0), "", "{"], [ship(0, 1), "{", {}, ship(1, 2), ""]), is_reduced=True
    )
    assert run is not None
    places = {reason.reason: Path(reason.first).parent.name for reason in run.source.quarantined.reasons}
    assert places == {
        "the line is not JSON": "orchestrator",
        "the line is blank": "orchestrator",
        "the annotation is not of version 1 or names no trace": "orchestrator",
    }
