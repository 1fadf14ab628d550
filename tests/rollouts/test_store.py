from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from gradscope.results.source import BROKEN_ADVANTAGE
from gradscope.rollouts import store
from gradscope.rollouts.groups import Rollout, RolloutGroup, Tokens
from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog
from gradscope.rollouts.run_folder import step_path
from tests.rollouts.build import group
from tests.rollouts.readers.lines import refused

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
REAL = st.floats(allow_nan=False, allow_infinity=False)
IDS = st.none() | st.lists(st.integers(0, 2**31 - 1)).map(tuple)


@st.composite
def rollouts(draw: st.DrawFn, group_id: str, sample: int, names: list[str]) -> Rollout:
    return Rollout(
        group_id=group_id,
        sample=sample,
        row=draw(st.integers(0, 1000)),
        prompt=draw(TEXT),
        completion=draw(TEXT),
        messages=draw(st.none() | st.lists(st.dictionaries(TEXT, TEXT | st.none())).map(tuple)),
        prompt_ids=draw(IDS),
        completion_ids=draw(IDS),
        reward=draw(st.none() | REAL),
        rewards={name: draw(st.none() | REAL) for name in names},
        token_rewards=draw(st.none() | st.lists(REAL).map(tuple)),
        advantage=draw(st.none() | REAL),
        token_advantages=draw(st.none() | st.lists(REAL).map(tuple)),
        logprobs=draw(st.none() | st.lists(st.floats(width=32, allow_nan=False)).map(tuple)),
        mask=draw(st.none() | st.lists(st.booleans()).map(tuple)),
        trainer_logprobs=draw(st.none() | st.lists(st.floats(width=32, allow_nan=False)).map(tuple)),
        status=draw(st.sampled_from(["completed", "truncated", "error", "unknown"])),
    )


@st.composite
def steps(draw: st.DrawFn) -> list[RolloutGroup]:
    names = draw(st.lists(TEXT, unique=True, max_size=3))
    groups = []
    for index, size in enumerate(draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))):
        members = tuple(draw(rollouts(f"g{index}", sample, names)) for sample in range(size))
        groups.append(RolloutGroup(step=3, group_id=f"g{index}", prompt_id=draw(TEXT), rollouts=members))
    return groups


@pytest.mark.slow
@settings(deadline=None, max_examples=15)
@given(steps())
def test_rollouts_come_back_unchanged_and_equal_content_gives_equal_bytes(
    tmp_path_factory: pytest.TempPathFactory, groups: list[RolloutGroup]
) -> None:
    run = tmp_path_factory.mktemp("run")
    path = store.write_step_rollouts(run, 3, groups)
    assert list(store.read_step_rollouts(path)) == groups
    before = path.read_bytes()
    store.write_step_rollouts(run, 3, groups)
    assert path.read_bytes() == before


def test_steps_are_read_in_order(tmp_path: Path) -> None:
    assert store.read_steps(tmp_path) == ()
    for step in (11, 2):
        store.write_step_rollouts(tmp_path, step, [group(step, "a"), group(step, "b")])
    assert [path.name for path in store.step_files(tmp_path)] == ["step_00002.parquet", "step_00011.parquet"]
    assert [g.group_id for g in store.read_steps(tmp_path)] == ["2:a", "2:b", "11:a", "11:b"]
    store.write_step_rollouts(tmp_path, 2, [group(2)])
    assert [g.group_id for g in store.read_steps(tmp_path)][1:] == ["11:a", "11:b"]


def test_logprobs_are_float32(tmp_path: Path) -> None:
    path = store.write_step_rollouts(tmp_path, 1, [group(logprobs=(-0.1,))])
    assert store.read_step_rollouts(path)[0].rollouts[0].logprobs == (float(np.float32(-0.1)),)


def test_an_advantage_that_is_not_finite_leaves_its_rollout_the_reward(tmp_path: Path) -> None:
    written = group(1, "a")
    first = replace(written.rollouts[0], advantage=float("nan"))
    store.write_step_rollouts(tmp_path, 1, [replace(written, rollouts=(first, *written.rollouts[1:]))])
    quarantine = QuarantineLog()
    assert store.read_steps(tmp_path, quarantine)[0].rollouts[0] == replace(first, advantage=None)
    assert [reason.reason for reason in quarantine.result().reasons] == [BROKEN_ADVANTAGE]


def test_the_trainers_log_probabilities_take_a_column_only_where_there_are_some(tmp_path: Path) -> None:
    path = store.write_step_rollouts(tmp_path, 1, [group()])
    assert "trainer_logprobs" not in pq.read_schema(path).names
    assert store.read_step_rollouts(path)[0].rollouts[0].trainer_logprobs is None
    rollouts = (replace(group().rollouts[0], trainer_logprobs=(-0.5, -0.25)),)
    path = store.write_step_rollouts(tmp_path, 1, [replace(group(), rollouts=rollouts)])
    assert store.read_step_rollouts(path)[0].rollouts[0].trainer_logprobs == (-0.5, -0.25)


def test_what_cannot_be_one_step_is_a_bug_of_the_caller(tmp_path: Path) -> None:
    for groups in ([], [group(2)]):
        with pytest.raises(ValueError, match="takes the groups of step 1"):
            store.write_step_rollouts(tmp_path, 1, groups)
    with pytest.raises(ValueError, match="group id occurs twice"):
        store.write_step_rollouts(tmp_path, 1, [group(), group()])
    named = replace(group(name="b").rollouts[0], rewards={"x": 1.0})
    with pytest.raises(ValueError, match="same reward functions"):
        store.write_step_rollouts(tmp_path, 1, [group(), replace(group(name="b"), rollouts=(named,))])
    sequence = Tokens(prompt_ids=(5,), completion_ids=(7,), mask=(True,))
    with pytest.raises(ValueError, match="holds one sequence"):
        store.write_step_rollouts(tmp_path, 1, [group(earlier=(sequence,))])
    assert not step_path(tmp_path, 1).exists()


def test_a_damaged_or_foreign_file_is_named(tmp_path: Path) -> None:
    path = store.write_step_rollouts(tmp_path, 1, [group()])
    path.write_bytes(path.read_bytes()[:-20])
    refused(r"is not what step_00001\.parquet\.sha256 was written for", store.read_steps, tmp_path)
    store.checksum_path(path).unlink()
    refused(r"step_00001\.parquet is not a readable Parquet file", store.read_steps, tmp_path)
    pq.write_table(pa.table({"step": [1]}), path)
    refused(r"step_00001\.parquet is not a rollout file of schema version 1", store.read_steps, tmp_path)


def names(run: Path) -> list[str]:
    return [file.name for file in store.step_files(run)]


def content(run: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in (run / "rollouts").iterdir()}


def groups_at(step: int) -> list[RolloutGroup]:
    return [group(step, "a", logprobs=(-0.5 * step,)), group(step, "b")]


@pytest.mark.slow
def test_twenty_steps_become_one_file_and_come_back_unchanged(tmp_path: Path) -> None:
    for step in range(1, 46):
        assert step in store.steps_in_file(store.write_step_rollouts(tmp_path, step, groups_at(step)))
    assert names(tmp_path)[:3] == ["steps_00001-00020.parquet", "steps_00021-00040.parquet", "step_00041.parquet"]
    assert len(content(tmp_path)) == 2 * 7
    assert store.files_written(tmp_path) == store.step_files(tmp_path)
    assert list(store.read_steps(tmp_path)) == [group for step in range(1, 46) for group in groups_at(step)]


def test_steps_that_are_missing_do_not_keep_the_others_from_being_joined(tmp_path: Path) -> None:
    for step in (1, 3, 21):
        store.write_step_rollouts(tmp_path, step, groups_at(step))
    assert names(tmp_path) == ["steps_00001-00020.parquet", "step_00021.parquet"]
    assert [group.step for group in store.read_steps(tmp_path)] == [1, 1, 3, 3, 21, 21]


@pytest.mark.slow
def test_a_run_that_goes_back_has_the_bytes_of_one_that_never_went_on(tmp_path: Path) -> None:
    straight, repeated = tmp_path / "whole", tmp_path / "again"
    for step in range(1, 41):
        store.write_step_rollouts(straight, step, groups_at(step))
    for step in range(1, 31):
        store.write_step_rollouts(repeated, step, groups_at(step))
    before = content(repeated)
    for step in range(31, 41):
        store.write_step_rollouts(repeated, step, groups_at(step)[:1])
    store.drop_steps_after(repeated, 30)
    assert content(repeated) == before
    for step in range(31, 41):
        store.write_step_rollouts(repeated, step, groups_at(step))
    assert content(repeated) == content(straight)
    for step in (35, 40):
        store.write_step_rollouts(repeated, step, groups_at(step))
    assert content(repeated) == content(straight)


def test_steps_that_a_crash_leaves_next_to_a_joined_file_count_once(tmp_path: Path) -> None:
    for step in range(1, 20):
        store.write_step_rollouts(tmp_path, step, groups_at(step))
    left = content(tmp_path)
    store.write_step_rollouts(tmp_path, 20, groups_at(20))
    before = content(tmp_path)
    for name, data in left.items():
        (tmp_path / "rollouts" / name).write_bytes(data)
    assert names(tmp_path) == ["steps_00001-00020.parquet"]
    assert len(store.read_steps(tmp_path)) == 40
    store.drop_steps_after(tmp_path, 20)
    assert content(tmp_path) == before


def test_large_steps_and_other_kinds_stay_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rollouts = (replace(group(2).rollouts[0], trainer_logprobs=(-0.5, -0.25)),)
    store.write_step_rollouts(tmp_path, 2, [replace(group(2), rollouts=rollouts)])
    store.write_step_rollouts(tmp_path, 20, groups_at(20))
    assert names(tmp_path) == ["step_00002.parquet", "step_00020.parquet"]
    monkeypatch.setattr("gradscope.rollouts.store._MAX_BYTES", 100)
    for step in (39, 40):
        store.write_step_rollouts(tmp_path, step, groups_at(step))
    assert names(tmp_path)[2:] == ["step_00039.parquet", "step_00040.parquet"]


def test_a_damaged_step_does_not_end_the_training(tmp_path: Path) -> None:
    for step in (18, 19):
        store.write_step_rollouts(tmp_path, step, groups_at(step)).write_bytes(b"PAR1")
    store.write_step_rollouts(tmp_path, 20, groups_at(20))
    assert len(store.step_files(tmp_path)) == 3
