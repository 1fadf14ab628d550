from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gradscope.rollouts.groups import holds_rewards_alone
from gradscope.rollouts.read_options import ColumnNames, ReadOptions
from gradscope.rollouts.readers.detect import read_run
from gradscope.rollouts.readers.reduction import log
from gradscope.rollouts.run import Run
from tests.conftest import REPOSITORY
from tests.rollouts.readers.lines import rewards_of, set_aside
from tests.rollouts.readers.same_table import assert_reduced_alike
from tests.rollouts.readers.slime.test_rollouts import archive

ABSENT = object()
ODD: dict[str, Sequence[Any]] = {
    "group_index": (1, 2.0, "3", None, True, 0.5, float("nan"), [0], ABSENT, 1 << 60, -1),
    "index": (0, 1, "1", 1.0, None, ABSENT, [1], 1 << 60, float("inf")),
    "tokens": (None, ABSENT, [], [5], [5, True, 2], [5, 9.0, 2], ["5", 9, 2], "592", (5, 9, 2), {"ids": [5]}),
    "response_length": (0, 1, 3, 4, -1, "2", 2.0, 1.5, None, ABSENT, True),
    "loss_mask": (None, [1, 1], [0, 1], [0, 0], [1], [], "11", [True, False], [[], [0]], 1),
    "rollout_log_probs": (None, [-0.1, -0.2], [-0.1], [None, "x"], [], "xx", 0.5, {}),
    "reward": (
        *(0.0, 1, True, -0.0, 0.5, None, ABSENT, float("nan"), float("inf"), "1.0", [1.0], {}, 10**400),
        *({"a": 1.0, "b": 0.0}, {"b": 1.0}, {"a": "x"}, {"a": None, "b": True}, {"a": float("nan")}, {"c": [1]}),
    ),
    "prompt": ("other", "", None, ABSENT, [{"role": "user", "content": "q"}], [1], {"text": "q"}),
    "response": ("other", "", None, ABSENT, ["a"], {"text": "a"}, "\ud800"),
}


@pytest.fixture(autouse=True)
def every_log_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "MIN_ON_DISK", 0)


def sample(index: int, /, **cells: Any) -> dict[str, Any]:
    plain = {
        **{"group_index": index // 2, "index": index, "tokens": [5, 9, 2], "response_length": 2},
        **{"reward": 1.0, "prompt": f"p{index // 2}", "response": f"r{index}"},
    }
    return {name: cell for name, cell in {**plain, **cells}.items() if cell is not ABSENT}


@st.composite
def samples(draw: st.DrawFn) -> Any:
    """A sample, some of whose cells are others; now and then it is none."""
    if draw(st.integers(0, 15)) == 0:
        return draw(st.sampled_from([None, [], "x", {}, 3.0]))
    odd = draw(st.lists(st.sampled_from(sorted(ODD)), max_size=2))
    return sample(draw(st.integers(0, 5)), **{name: draw(st.sampled_from(ODD[name])) for name in odd})


@pytest.mark.slow
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    documents=st.lists(
        st.tuples(st.sampled_from([0, 0, 1, 1, 2, "2", 5, None, "x"]), st.lists(samples(), max_size=8)),
        min_size=1,
        max_size=3,
    ),
    named=st.sampled_from([None, None, None, "b"]),
)
def test_messy_dumps_have_the_answers_of_the_row_reader(
    tmp_path_factory: pytest.TempPathFactory, documents: list[tuple[Any, list[Any]]], named: str | None
) -> None:
    folder = tmp_path_factory.mktemp("log")
    for number, (step, found) in enumerate(documents):
        archive(folder / "rollout_data" / f"{number}.pt", {"rollout_id": step, "samples": found})
    assert_reduced_alike(folder, ReadOptions(columns=ColumnNames(reward=named)))


@pytest.mark.parametrize(("name", "cell"), [(name, cell) for name, cells in ODD.items() for cell in cells])
def test_each_odd_cell_alone_has_the_answer_of_the_row_reader(tmp_path: Path, name: str, cell: Any) -> None:
    odd = [sample(1, **{name: cell}), sample(2, **{name: cell})]
    file = archive(tmp_path / "0.pt", {"rollout_id": 0, "samples": [sample(0), *odd, sample(3), *odd]})
    assert_reduced_alike(file)


def test_the_sample_of_the_format() -> None:
    run = assert_reduced_alike(REPOSITORY / "fixtures" / "logs" / "slime")
    assert isinstance(run, Run)
    assert rewards_of(run) == {"0": (1.0, 0.0), "1": (0.0, 0.0), "1:2": (1.0, 1.0)}
    assert holds_rewards_alone(run.groups)
    assert run.groups[0].rollouts[0].completion == ""


def test_small_dumps_keep_their_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "MIN_ON_DISK", 1 << 20)
    run = read_run(REPOSITORY / "fixtures" / "logs" / "slime", rewards_only=True)
    assert run.groups[0].rollouts[0].completion


def test_samples_that_return_count_once_and_not_at_all_where_they_contradict_each_other(tmp_path: Path) -> None:
    found = [sample(0), sample(1), sample(0), sample(1, reward=0.0), sample(1, reward=0.0), sample(2), sample(2)]
    first = {"rollout_id": 0, "samples": found}
    archive(tmp_path / "rollout_data" / "0.pt", first)
    archive(tmp_path / "rollout_data" / "1.pt", {**first, "samples": [sample(2, response="else")]})
    run = assert_reduced_alike(tmp_path)
    assert isinstance(run, Run)
    assert rewards_of(run) == {"0": (1.0, None), "1": (None,)}
    assert set_aside(run) == {
        "the row repeats an earlier one of the same sample": 2,
        "the row contradicts an earlier one of the same sample, so that neither counts": 5,
    }


def test_which_reward_counts_is_known_only_at_the_end(tmp_path: Path) -> None:
    archive(tmp_path / "0.pt", {"rollout_id": 0, "samples": [sample(0), sample(1, reward={"a": "x"})]})
    archive(tmp_path / "1.pt", {"rollout_id": 1, "samples": [sample(0, reward={"a": 0.5})]})
    run = assert_reduced_alike(tmp_path)
    assert isinstance(run, Run)
    assert rewards_of(run) == {"0": (None, None), "1:0": (0.5,)}
    assert set_aside(run) == {"the reward is missing": 1, "the reward is text": 1}
    assert "no reward 'z'" in str(assert_reduced_alike(tmp_path, ReadOptions(columns=ColumnNames(reward="z"))))
