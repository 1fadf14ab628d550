import pytest

from gradscope.diagnostics.report.sections.inputs import (
    Ends,
    Lengths,
    Unavailable,
    excerpt,
    missing_part,
    missing_section,
)
from gradscope.results.report import QUESTIONS
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
    assert [excerpt("abcdef", limit) for limit in (6, 4)] == ["abcdef", "ab […] ef"]


@pytest.mark.parametrize(("hint", "missing"), [("Log it.", "It is not there. Log it."), ("", "It is not there.")])
def test_a_section_without_data_says_what_to_log(hint: str, missing: str) -> None:
    section = missing_section("signal", Unavailable(reason="It is not there.", hint=hint))
    assert (section.name, section.question, section.missing, section.headline) == (
        "signal",
        QUESTIONS["signal"],
        missing,
        missing,
    )
    assert section.findings == section.tables == section.charts == ()


def test_a_part_that_the_log_lacks_is_a_sentence() -> None:
    section = missing_part("entropy", inputs_of(RUN).logged.entropy)
    assert section.name == "entropy"
    assert section.missing.startswith("The log has no entropy. TRL and verl log it")
    assert missing_part("entropy", None, anchor="agreement").name == "agreement"


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
    ends, joined = Ends(), Ends()
    for status, advantage in zip(("completed", "truncated", "unknown"), advantages, strict=True):
        (rollout,) = with_fields(group_of([1]), status=status, advantage=advantage).rollouts
        ends.add(rollout)
    joined.join(ends)
    for each in (ends, joined):
        assert (each.num_judged, each.num_cut, each.frac_advantage) == (2, 1, share)


@pytest.mark.parametrize("num_first", [0, 1, 3])
def test_repeats_are_those_of_a_group_whose_rewards_are_all_known(num_first: int) -> None:
    texts = (("a", "a", "b", ""), ("a", "a", "a", "b"), ("a", "a", "", ""))
    rewards = ((1.0, 0.0, 1.0, 0.0), (1.0, 1.0, 1.0, 0.0), (1.0, None, 0.0, 1.0))
    groups = [
        with_fields(group_of(of_group, prompt=str(at)), completion=list(texts[at]))
        for at, of_group in enumerate(rewards)
    ]
    first, rest = Lengths(), Lengths()
    for lengths, part in ((first, groups[:num_first]), (rest, groups[num_first:])):
        lengths.add_step(part)
    first.join(rest)
    assert (first.num_texts, first.num_empty, first.num_repeats, first.num_torn) == (7, 1, 3, 1)
    assert first.all_steps().rewards.tolist() == [*rewards[0], *rewards[1]]
