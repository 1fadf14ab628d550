import pytest
from msgspec.structs import replace

from gradscope.diagnostics.report.sections import inputs
from gradscope.results.report import QUESTIONS
from gradscope.rollouts.groups import GroupsOfTable, RolloutGroup, reward_table
from gradscope.rollouts.run import Run
from tests.diagnostics.made_up_runs import group_of, run_of, with_fields
from tests.diagnostics.report.sections.made_up_inputs import gram_of, inputs_of, lengths_of

RUN = run_of(group_of([1, 0]), path="runs/my run")


def test_a_command_repeats_its_options_and_the_largest_step_has_the_largest_gradient() -> None:
    options = {"--reader": "trl", "--model": "a b", "--success-threshold": "0.5"}
    inputs = inputs_of(RUN, options=options)
    assert inputs.command("degeneracy") == "gradscope degeneracy 'runs/my run' --reader trl --success-threshold 0.5"
    assert inputs.command("rank", "--step", "3") == "gradscope rank 'runs/my run' --reader trl --model 'a b' --step 3"
    for column in ("--prompt-column", "--reward-column", "--step-column", "--group-column"):
        named = inputs_of(RUN, options=options | {column: "score"})
        assert named.command("degeneracy").endswith(f" {column} score")
        assert (named.command("claims"), named.command("replay"), named.command("spike")) == ("", "", "")
    small, large = gram_of([[1.0, 0.0]], ["a"], step=1), gram_of([[3.0, 0.0]], ["a"], step=2)
    silent = gram_of([[9.0, 0.0]], ["a"], step=3, policy_gram=None)
    assert inputs_of(RUN, grams=[small, large, silent]).largest_step == 2
    assert inputs_of(RUN, grams=[silent, gram_of([[0.0, 0.0]], ["a"])]).largest_step is None


def test_a_text_that_is_too_long_has_its_ends() -> None:
    assert [inputs.excerpt("abcdef", limit) for limit in (6, 4)] == ["abcdef", "ab […] ef"]


@pytest.mark.parametrize(("hint", "missing"), [("Log it.", "It is not there. Log it."), ("", "It is not there.")])
def test_a_section_without_data_says_what_to_log(hint: str, missing: str) -> None:
    section = inputs.missing_section("signal", inputs.Unavailable(reason="It is not there.", hint=hint))
    assert (section.name, section.question, section.missing, section.headline) == (
        "signal",
        QUESTIONS["signal"],
        missing,
        missing,
    )
    assert section.findings == section.tables == section.charts == ()


def test_a_part_that_the_log_lacks_is_a_sentence() -> None:
    section = inputs.missing_part("entropy", inputs_of(RUN).logged.entropy)
    assert section.name == "entropy"
    assert section.missing.startswith("The log has no entropy. TRL and verl log it")
    assert inputs.missing_part("entropy", None, anchor="agreement").name == "agreement"


FIRST = with_fields(group_of([1, 0], step=2, prompt="a"), completion="x", prompt_ids=(), completion_ids=[(5, 6), (5,)])
SECOND = with_fields(
    group_of([0, None], step=1, prompt="b"), completion=["x", ""], prompt_ids=[(), None], completion_ids=[(5,), None]
)


def test_tokens_count_where_every_judged_rollout_has_them_and_else_characters() -> None:
    lengths = lengths_of(run_of(FIRST, SECOND)).all_steps()
    assert (lengths.unit, lengths.values.tolist(), lengths.rewards.tolist()) == ("tokens", [2, 1], [1, 0])
    assert (lengths.steps.tolist(), lengths.samples.tolist(), lengths.names) == ([2, 2], [0, 1], [FIRST.group_id])
    text = with_fields(group_of([1, 1], step=1, prompt="a"), completion=["abc", ""])
    lengths = lengths_of(run_of(FIRST, text)).all_steps()
    assert (lengths.unit, lengths.values.tolist(), lengths.steps.tolist()) == ("characters", [3, 0, 1, 1], [1, 1, 2, 2])
    assert (lengths.groups.tolist(), lengths.prompts.tolist()) == ([0, 0, 1, 1], [0, 0, 0, 0])


@pytest.mark.parametrize(
    ("advantages", "share"), [((1.0, -3.0, None), 0.75), ((1.0, None, 1.0), None), ((0.0, 0.0, 0.0), None)]
)
def test_the_part_of_those_that_were_cut_off(advantages: tuple[float | None, ...], share: float | None) -> None:
    lengths, joined = inputs.Lengths(), inputs.Lengths()
    for status, advantage in zip(("completed", "truncated", "unknown"), advantages, strict=True):
        lengths.add_step([with_fields(group_of([1]), status=status, advantage=advantage)])
    joined.join(lengths)
    for total in (lengths, joined):
        assert (total.num_judged, total.num_cut, total.frac_advantage_cut) == (2, 1, share)


@pytest.mark.parametrize("num_first", [0, 1, 3])
def test_repeats_are_those_of_a_group_whose_rewards_are_all_known(num_first: int) -> None:
    texts = (("a", "a", "b", ""), ("a", "a", "a", "b"), ("a", "a", "", ""))
    rewards = ((1.0, 0.0, 1.0, 0.0), (1.0, 1.0, 1.0, 0.0), (1.0, None, 0.0, 1.0))
    groups = [
        with_fields(group_of(group_rewards, prompt=str(index)), completion=list(texts[index]))
        for index, group_rewards in enumerate(rewards)
    ]
    first, rest = inputs.Lengths(), inputs.Lengths()
    for lengths, part in ((first, groups[:num_first]), (rest, groups[num_first:])):
        lengths.add_step(part)
    first.join(rest)
    assert (first.num_texts, first.num_empty, first.num_repeats, first.num_torn) == (7, 1, 3, 1)
    assert first.all_steps().rewards.tolist() == [*rewards[0], *rewards[1]]


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
    assert inputs.kind_of(group_of(rewards), 1.0) == kind


def test_rewards_that_differ_where_the_main_reward_ties_are_side_rewards() -> None:
    group = group_of([0.5, 1.0])
    for named, kind in (
        ([1.0, 1.0], "side reward"),
        ([0.3, 0.1 + 0.2], "side reward"),
        ([0.0, 1.0], "mixed"),
        ([None, None], "mixed"),
    ):
        assert (
            inputs.kind_of(with_fields(group, rewards=[{"accuracy": reward} for reward in named]), 1.0, "accuracy")
            == kind
        )
    assert inputs.kind_of(group, 1.0, "absent") == "mixed"
    assert inputs.kind_of(group_of([0.5, 0.5]), None) == "tied"  # without a threshold
    assert inputs.kind_of(group_of([1]), 1.0) == "tied"


def test_without_gradients_the_first_the_middle_and_the_last_step_are_shown() -> None:
    pages = inputs.read_groups(run_with(9, 2, 2), (), 1.0)
    assert sorted({group.step for group in pages}) == [1, 5, 9]
    assert [rollout.share for group in pages for rollout in group.rollouts] == [None] * 12
    assert pages[0].rollouts[1].completion == "text 1"


def test_no_text_of_a_step_is_shown_that_would_take_gigabytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "MAX_READ_BACK", 4)
    assert {group.step for group in inputs.read_groups(run_with(3, 2, 2), (), 1.0)} == {1, 2, 3}
    assert inputs.read_groups(run_with(3, 3, 2), (), 1.0) == ()


def test_every_kind_of_a_step_is_there_and_then_the_largest_parts() -> None:
    rewards = {"dead": [0.0] * 48, "small": [1.0, 0.0] * 24, "large": [1.0, 0.0] * 24}
    run = run_of(*(written(group_of(values, step=1, prompt=name)) for name, values in rewards.items()))
    rows = [[scale] for scale in (0.0, 0.1, 1.0) for _ in range(48)]
    gram = gram_of(rows, [f"1/{name}" for name in rewards for _ in range(48)], step=1)
    shown = inputs.read_groups(run, [gram], 1.0)
    assert [group.prompt for group in shown] == ["dead", "large"]
    assert shown[1].rollouts[0].share == pytest.approx(1 / (48 * 1.1), rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 64, 200])
def test_a_page_holds_few_rollouts_and_whole_groups(size: int) -> None:
    pages = inputs.read_groups(run_with(3, 60, size), (), 1.0)
    assert sum(len(group.rollouts) for group in pages) <= max(inputs.MAX_ROLLOUTS, 3 * size)
    assert {len(group.rollouts) for group in pages} == {size}
    assert {group.step for group in pages} == {1, 2, 3}


def test_long_texts_keep_both_ends_and_absent_ones_leave_nothing_to_read() -> None:
    pages = inputs.read_groups(run_with(1, 200, 8, "word " * 20_000), (), 1.0)
    lengths = [len(rollout.completion) for group in pages for rollout in group.rollouts]
    assert sum(lengths) < 130_000
    assert min(lengths) >= inputs.MIN_CHARACTERS
    assert pages[0].rollouts[3].completion.endswith("word  3")
    run = run_with(1, 2, 2)
    assert inputs.read_groups(replace(run, groups=GroupsOfTable(reward_table(run.groups))), (), 1.0) == ()
    assert inputs.read_groups(run_of(replace(group_of([1, 0], prompt=""))), (), 1.0) == ()
