import numpy as np
import pyarrow as pa
import pytest
from msgspec.structs import asdict, replace

from gradscope.rollouts import groups
from tests.rollouts.build import group, three_groups


def test_a_group_has_its_rollouts_rewards_which_are_not_changed() -> None:
    made = group(rewards=(1.0, None, 0.0))
    assert (made.rewards, made.size) == ((1.0, None, 0.0), 3)
    with pytest.raises(AttributeError, match="immutable"):
        made.rollouts[0].reward = 2.0  # type: ignore[misc]


def test_each_sequence_of_a_rollout_is_a_rollout_of_its_own() -> None:
    before = groups.Tokens(prompt_ids=(5,), completion_ids=(7, 8), mask=(True, False), logprobs=(-1.0, 0.0))
    rollout = replace(group().rollouts[0], prompt_ids=(5, 7), completion_ids=(9,), mask=(True,), logprobs=None)
    branched = replace(rollout, earlier=(before,))
    first, last = branched.sequences
    assert (first.prompt_ids, first.completion_ids, first.mask) == ((5,), (7, 8), (True, False))
    assert first.logprobs == (-1.0, 0.0)
    assert (first.reward, first.earlier, last) == (rollout.reward, (), rollout)
    assert (branched.num_tokens, rollout.num_tokens, rollout.sequences) == (3, 1, (rollout,))
    assert group().rollouts[0].num_tokens is None


def test_what_a_log_does_not_tell_is_none_or_unknown() -> None:
    bare = groups.Rollout(group_id="g", sample=0, row=0, prompt="", completion="", reward=None)
    unknown = {name for name, value in asdict(bare).items() if value is None}
    assert {"completion_ids", "logprobs", "mask", "seconds", "policy"} <= unknown
    assert (bare.status, bare.rewards) == ("unknown", {})


def test_the_table_of_groups_has_all_of_their_numbers() -> None:
    table = groups.RewardTable.from_groups(three_groups())
    assert len(table) == 3
    assert (table.step.tolist(), table.size.tolist(), table.starts.tolist()) == ([1, 1, 2], [2, 1, 2], [0, 2, 3])
    assert table.ids() == ("1:a", "1:b", "2:a")
    assert [table.prompts[index] for index in table.prompt] == ["a", "b", "b"]
    np.testing.assert_array_equal(table.reward, [1.0, np.nan, 0.5, 0.0, 1.0])
    np.testing.assert_array_equal(table.rewards["format"], [np.nan, np.nan, np.nan, 0.25, 0.25])
    assert np.isnan(table.rewards["score"]).all()
    assert table.num_tokens is not None
    assert table.num_tokens.tolist() == [-1, -1, 3, -1, -1]
    assert table.policy is not None
    assert table.policy.tolist() == [-1, -1, 0, -1, -1]
    assert table.policies == ("base",)
    np.testing.assert_array_equal(table.seconds, [np.nan, np.nan, 2.0, np.nan, np.nan])


def test_advantages_and_the_texts_of_prompts_are_there_where_they_were_logged() -> None:
    first, second, third = three_groups()
    rollouts = tuple(replace(old, advantage=value) for old, value in zip(first.rollouts, (0.5, None), strict=True))
    table = groups.RewardTable.from_groups([replace(first, rollouts=rollouts), second, third])
    assert table.advantage is not None
    np.testing.assert_array_equal(table.advantage, [0.5, np.nan, np.nan, np.nan, np.nan])
    assert table.prompt_texts == tuple(group.rollouts[0].prompt for group in (first, second))
    chosen = table.select(np.array([True, False, True]))
    assert chosen.advantage is not None
    assert (len(chosen.advantage), chosen.prompt_texts) == (4, table.prompt_texts)


def test_what_was_nowhere_logged_is_none() -> None:
    table = groups.RewardTable.from_groups([group()])
    assert (table.num_tokens, table.seconds, table.policy, table.policies) == (None, None, None, ())
    assert table.advantage is None


def test_sums_spreads_and_sizes_are_those_of_each_group() -> None:
    table = groups.RewardTable.from_groups(three_groups())
    assert table.sums(table.reward == 1.0).tolist() == [1, 0, 1]
    np.testing.assert_array_equal(table.sums(table.reward), [np.nan, 0.5, 1.0])
    np.testing.assert_array_equal(table.spread(table.reward), [np.nan, 0.0, 1.0])
    blocks = [(indices.tolist(), values.tolist()) for indices, values in table.by_size(np.arange(5))]
    assert blocks == [([0, 2], [[0, 1], [3, 4]]), ([1], [[2]])]
    even = groups.RewardTable.from_groups(three_groups()[::2])
    assert [values.tolist() for _, values in even.by_size(np.arange(4))] == [[[0, 1], [2, 3]]]


def test_a_group_is_dead_where_all_its_rewards_are_known_and_equal() -> None:
    cases = [(1.0, 1.0), (0.5, 0.5 + 1e-9), (1.0, 0.0), (1.0, None), (1.0,)]
    table = groups.RewardTable.from_groups([group(rewards=rewards) for rewards in cases])
    assert table.is_dead.tolist() == [True, True, False, False, False]
    assert table.is_complete.tolist() == [True, True, True, False, True]


def test_very_many_groups_of_a_size_come_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradscope.rollouts.groups._AT_ONCE", 3)
    size = np.array([2, 2, 2, 2, 3, 2, 2, 2])
    values = np.arange(int(size.sum()))
    table = groups.RewardTable(
        step=np.zeros(8, dtype=np.int64),
        names=tuple("abcdefgh"),
        prompt=np.zeros(8, dtype=np.int64),
        prompts=("p",),
        size=size,
        reward=values.astype(np.float64),
    )
    blocks = list(table.by_size(values))
    assert [indices.tolist() for indices, _ in blocks] == [[0, 1, 2], [3, 5, 6], [7], [4]]
    assert [block.tolist() for _, block in blocks] == [
        [[0, 1], [2, 3], [4, 5]],
        [[6, 7], [11, 12], [13, 14]],
        [[15, 16]],
        [[8, 9, 10]],
    ]
    assert [np.shares_memory(block, values) for _, block in blocks] == [True, False, True, True]


def test_no_groups_are_a_table_too() -> None:
    table = groups.RewardTable.from_groups(())
    assert (len(table), table.ids(), list(table.by_size(table.reward))) == (0, (), [])
    assert table.sums(np.zeros(0, dtype=np.bool_)).dtype == np.int64
    assert table.spread(table.reward).shape == (0,)


@pytest.mark.parametrize("by_name", [True, False])
def test_some_of_the_groups_keep_all_of_theirs(by_name: bool) -> None:
    table = groups.RewardTable.from_groups(three_groups())
    if by_name:
        table = replace(table, names=pa.array(["a", "b", "a"]))
    selected = table.select(np.array([False, True, True]))
    assert selected.ids() == ("1:b", "2:a")
    assert selected.reward.tolist() == [0.5, 0.0, 1.0]
    assert selected.rewards["format"].tolist()[1:] == [0.25, 0.25]
    assert selected.num_tokens is not None
    assert selected.num_tokens.tolist() == [3, -1, -1]
    assert selected.policy is not None
    assert selected.policy.tolist() == [0, -1, -1]
    assert selected.seconds is not None
    assert selected.seconds.tolist()[0] == 2.0
    assert [selected.prompts[index] for index in selected.prompt] == ["b", "b"]
    assert table.select(np.ones(3, dtype=np.bool_)) is table


def test_groups_of_a_table_are_made_step_by_step(monkeypatch: pytest.MonkeyPatch) -> None:
    made = groups.GroupsOfTable(groups.RewardTable.from_groups(three_groups()))
    for at_once in (1, 2, 3):
        monkeypatch.setattr(groups, "_BUILT_AT_ONCE", at_once)
        by_step = dict(made.build_by_step())
        assert list(by_step) == list(groups.steps_of(made))
        assert tuple(group for step_groups in by_step.values() for group in step_groups) == tuple(made)
    assert not list(groups.GroupsOfTable(groups.RewardTable.from_groups(())).build_by_step())


def test_groups_of_a_table_have_its_rewards_and_are_made_once() -> None:
    table = groups.RewardTable.from_groups(three_groups())
    made = groups.GroupsOfTable(table)
    assert len(made) == 3
    assert [(group.step, group.group_id, group.prompt_id, group.rewards) for group in made] == [
        (group.step, group.group_id, group.prompt_id, group.rewards) for group in three_groups()
    ]
    assert made[2].rollouts[0].rewards == {"format": 0.25, "score": None}
    assert (made[1].rollouts[0].seconds, made[0].rollouts[0].seconds) == (2.0, None)
    assert made[0] is made[:1][0]
    assert groups.reward_table(made) is table
    assert groups.reward_table(three_groups()).reward.tolist()[0] == 1.0


@pytest.mark.parametrize("as_table", [False, True])
def test_steps_groups_and_usable_rollouts_are_counted_without_objects(as_table: bool) -> None:
    read = groups.GroupsOfTable(groups.RewardTable.from_groups(three_groups())) if as_table else three_groups()
    assert groups.steps_of(read) == (1, 2)
    assert (groups.num_used(read), groups.num_used(read, needs_reward=False)) == (4, 5)
    chosen = groups.groups_of_steps(read, [2, 3])
    assert isinstance(chosen, groups.GroupsOfTable) == as_table
    assert [group.group_id for group in chosen] == ["2:a"]
    if isinstance(read, groups.GroupsOfTable):
        assert "_groups" not in vars(read)


def on_disk() -> groups.GroupsOnDisk:
    return groups.GroupsOnDisk(
        groups.RewardTable.from_groups(three_groups()), lambda step: groups.groups_at(three_groups(), step)
    )


def test_groups_on_disk_are_those_that_are_read_back() -> None:
    read = on_disk()
    assert (tuple(read), read[2], read[-3], read[::2]) == (
        three_groups(),
        three_groups()[2],
        three_groups()[0],
        three_groups()[::2],
    )
    assert (len(read), groups.steps_of(read), groups.sizes_of(read), groups.num_used(read)) == (3, (1, 2), (1, 2), 4)
    assert read.at_step(3) == ()
    with pytest.raises(IndexError):
        read[3]


def test_some_steps_of_groups_on_disk_stay_on_disk() -> None:
    chosen = groups.groups_of_steps(on_disk(), [2])
    assert isinstance(chosen, groups.GroupsOnDisk)
    assert (tuple(chosen), groups.groups_at(chosen, 1)) == (three_groups()[2:], ())


def test_only_groups_of_a_table_lack_the_texts() -> None:
    kinds = (three_groups(), on_disk(), groups.GroupsOfTable(groups.RewardTable.from_groups(three_groups())))
    assert [groups.holds_rewards_alone(kind) for kind in kinds] == [False, False, True]
    assert {groups.sizes_of(kind) for kind in kinds} == {(1, 2)}
    assert [len(groups.groups_at(kind, 1)) for kind in kinds] == [2, 2, 2]
