"""Which rollouts are shown: whole groups, every kind, the largest parts first, and never more than a page bears."""

import pytest
from msgspec.structs import replace

from gradscope.diagnostics.report.rollouts import MAX_ROLLOUTS, MIN_CHARACTERS, kind_of, read_groups
from gradscope.rollouts.groups import GroupsOfTable, RolloutGroup, reward_table
from gradscope.rollouts.run import Run
from tests.diagnostics.made_up_runs import group_of, run_of, with_fields
from tests.diagnostics.report.sections.made_up_inputs import gram_of


def written(group: RolloutGroup, text: str = "text") -> RolloutGroup:
    return with_fields(group, completion=[f"{text} {sample}" for sample in range(group.size)])


def run_with(num_steps: int, num_groups: int, size: int, text: str = "text") -> Run:
    groups = [
        written(group_of([1, 0] * (size // 2), step=step, prompt=f"p{index}"), text)
        for step in range(1, num_steps + 1)
        for index in range(num_groups)
    ]
    return run_of(*groups)


@pytest.mark.parametrize(
    ("kind", "rewards"), [("all fail", [0, 0]), ("all pass", [1, 1]), ("mixed", [1, 0]), ("not known", [None, 1])]
)
def test_groups_are_classified_by_their_rewards(kind: str, rewards: list[float | None]) -> None:
    assert kind_of(group_of(rewards), 1.0) == kind


def test_rewards_that_differ_where_the_main_reward_ties_are_side_rewards() -> None:
    group = group_of([0.5, 1.0])
    for named, kind in (
        ([1.0, 1.0], "side reward"),
        ([0.3, 0.1 + 0.2], "side reward"),
        ([0.0, 1.0], "mixed"),
        ([None, None], "mixed"),
    ):
        assert kind_of(with_fields(group, rewards=[{"accuracy": one} for one in named]), 1.0, "accuracy") == kind
    assert kind_of(group, 1.0, "absent") == "mixed"
    assert kind_of(group_of([0.5, 0.5]), None) == "tied"  # without a threshold
    assert kind_of(group_of([1]), 1.0) == "tied"


def test_without_gradients_the_first_the_middle_and_the_last_step_are_shown() -> None:
    pages = read_groups(run_with(9, 2, 2), (), 1.0)
    assert sorted({group.step for group in pages}) == [1, 5, 9]
    assert [rollout.share for group in pages for rollout in group.rollouts] == [None] * 12
    assert pages[0].rollouts[1].completion == "text 1"


def test_every_kind_of_a_step_is_there_and_then_the_largest_parts() -> None:
    rewards = {"dead": [0.0] * 48, "small": [1.0, 0.0] * 24, "large": [1.0, 0.0] * 24}
    run = run_of(*(written(group_of(values, step=1, prompt=name)) for name, values in rewards.items()))
    rows = [[scale] for scale in (0.0, 0.1, 1.0) for _ in range(48)]
    gram = gram_of(rows, [f"1/{name}" for name in rewards for _ in range(48)], step=1)
    shown = read_groups(run, [gram], 1.0)
    assert [group.prompt for group in shown] == ["dead", "large"]
    assert shown[1].rollouts[0].share == pytest.approx(1 / (48 * 1.1), rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 64, 200])
def test_a_page_holds_few_rollouts_and_whole_groups(size: int) -> None:
    pages = read_groups(run_with(3, 60, size), (), 1.0)
    assert sum(len(group.rollouts) for group in pages) <= max(MAX_ROLLOUTS, 3 * size)
    assert {len(group.rollouts) for group in pages} == {size}
    assert {group.step for group in pages} == {1, 2, 3}


def test_long_texts_keep_both_ends_and_absent_ones_leave_nothing_to_read() -> None:
    pages = read_groups(run_with(1, 200, 8, "word " * 20_000), (), 1.0)
    lengths = [len(rollout.completion) for group in pages for rollout in group.rollouts]
    assert sum(lengths) < 130_000
    assert min(lengths) >= MIN_CHARACTERS
    assert pages[0].rollouts[3].completion.endswith("word  3")
    run = run_with(1, 2, 2)
    assert read_groups(replace(run, groups=GroupsOfTable(reward_table(run.groups))), (), 1.0) == ()
    assert read_groups(run_of(replace(group_of([1, 0], prompt=""))), (), 1.0) == ()
