import pytest

from gradscope.diagnostics.report.sections.inputs import Unavailable, excerpt, missing_part, missing_section
from gradscope.results.report import QUESTIONS
from tests.diagnostics.made_up_runs import group_of, run_of
from tests.diagnostics.report.sections.made_up_inputs import gram_of, inputs_of

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
