from __future__ import annotations

import pytest

from gradscope.errors import InputError
from gradscope.rollouts.groups import (
    GroupsOfTable,
    GroupsOnDisk,
    groups_at,
    groups_of_steps,
    holds_rewards_alone,
    num_used,
    reward_table,
    sizes_of,
    steps_of,
)
from gradscope.rollouts.reward_table import RewardTable
from tests.rollouts.build import three_groups


def test_groups_of_a_table_have_its_rewards_and_are_made_once() -> None:
    table = RewardTable.of_groups(three_groups())
    made = GroupsOfTable(table)
    assert len(made) == 3
    assert [(one.step, one.group_id, one.prompt_id, one.rewards) for one in made] == [
        (one.step, one.group_id, one.prompt_id, one.rewards) for one in three_groups()
    ]
    assert made[2].rollouts[0].rewards == {"format": 0.25, "score": None}
    assert (made[1].rollouts[0].seconds, made[0].rollouts[0].seconds) == (2.0, None)
    assert made[0] is made[:1][0]
    assert reward_table(made) is table
    assert reward_table(three_groups()).reward.tolist()[0] == 1.0


@pytest.mark.parametrize("as_table", [False, True])
def test_steps_groups_and_rollouts_of_use_are_told_without_objects(as_table: bool) -> None:
    given = GroupsOfTable(RewardTable.of_groups(three_groups())) if as_table else three_groups()
    assert steps_of(given) == (1, 2)
    assert (num_used(given), num_used(given, needs_reward=False)) == (4, 5)
    chosen = groups_of_steps(given, [2, 3])
    assert isinstance(chosen, GroupsOfTable) == as_table
    assert [one.group_id for one in chosen] == ["2:a"]
    if isinstance(given, GroupsOfTable):
        assert "_groups" not in vars(given)


def on_disk() -> GroupsOnDisk:
    return GroupsOnDisk(RewardTable.of_groups(three_groups()), lambda step: groups_at(three_groups(), step))


def test_groups_on_disk_are_those_that_are_read_back() -> None:
    given = on_disk()
    assert (tuple(given), given[2], given[-3], given[::2]) == (
        three_groups(),
        three_groups()[2],
        three_groups()[0],
        three_groups()[::2],
    )
    assert (len(given), steps_of(given), sizes_of(given), num_used(given)) == (3, (1, 2), (1, 2), 4)
    assert given.at(3) == ()
    with pytest.raises(IndexError):
        given[3]


def test_some_steps_of_groups_on_disk_stay_on_disk() -> None:
    chosen = groups_of_steps(on_disk(), [2])
    assert isinstance(chosen, GroupsOnDisk)
    assert (tuple(chosen), groups_at(chosen, 1)) == (three_groups()[2:], ())


def test_only_groups_of_a_table_lack_the_texts() -> None:
    kinds = (three_groups(), on_disk(), GroupsOfTable(RewardTable.of_groups(three_groups())))
    assert [holds_rewards_alone(kind) for kind in kinds] == [False, False, True]
    assert {sizes_of(kind) for kind in kinds} == {(1, 2)}
    assert [len(groups_at(kind, 1)) for kind in kinds] == [2, 2, 2]


def test_a_step_that_is_not_as_it_was_is_an_error() -> None:
    changed = GroupsOnDisk(RewardTable.of_groups(three_groups()), lambda step: three_groups()[:step])
    with pytest.raises(InputError, match="Step 1 does not have the rollouts any more"):
        changed.at(1)
