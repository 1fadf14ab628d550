import pytest
from msgspec.structs import replace

from gradscope.estimate import Estimate
from gradscope.render.registry import render_table
from gradscope.results.compare import Comparison
from tests.render.examples import comparison
from tests.render.printing import printed


def shown(report: Comparison | int = 4, *show: str) -> str:
    return printed(render_table(comparison(report) if isinstance(report, int) else report, show))


def test_the_answer_is_what_is_decided_and_the_differences_that_say_most() -> None:
    lines = shown().splitlines()
    assert lines[0].startswith("train_reward: ")
    first, common, *_ = lines[lines.index(next(line for line in lines if "verdict" in line)) + 2 :]
    assert (first.split()[0], first.split()[-1]) == ("train_reward", "decides")
    assert common.strip() == "at learning_rate 0.0001"
    text = " ".join(shown().split())
    assert "4 cells, 7 tests" in text
    assert "2 more differences: --show pairs." in text
    assert "--show adds cells, pairs; or all." in text


def test_further_tables_have_cells_differences_p_values_and_reasons() -> None:
    text = shown(4, "all")
    assert "learning_rate 0.0002 - 0.0001 +0.020 —¹ —¹ —¹" in " ".join(text.split())
    for part in (
        "0.500 [0.46, 0.54]  0.500 [0.46, 0.54]",
        "+0.100 [+0.06, +0.14]  0.001  0.007  0.016",
        "learning_rate 0.0002 - 0.0001",
        "¹ one pair does not tell how much pairs differ by chance",
    ):
        assert part in text
    assert text.count("  at grpo") >= 2


def test_a_difference_without_an_interval_says_why() -> None:
    alone = replace(comparison(), pairs=tuple(pair for pair in comparison().pairs if pair.undefined))
    text = shown(alone)
    assert "+0.020¹" in text
    assert "¹ no interval: one pair does not tell how much pairs differ by chance" in text


@pytest.mark.parametrize(
    ("difference", "words"),
    [(0.0, "the two agree in it"), (-0.006, "too few steps or prompts"), (0.1, "too few steps")],
)
def test_a_difference_of_two_runs_without_an_interval_says_why(difference: float, words: str) -> None:
    report = comparison()
    pairs = tuple(replace(pair, within_runs=Estimate.exact(difference)) for pair in report.pairs)
    assert f"no interval: {words}" in shown(replace(report, pairs=pairs))


def test_of_two_cells_what_cannot_be_compared_is_a_line_with_its_reason() -> None:
    report = comparison(2)
    first, *rest = report.pairs
    lost = replace(first, difference=Estimate.undefined_because("no seed"), within_runs=None, undefined="no seed")
    text = shown(replace(report, pairs=(lost, *rest)))
    assert f"Not compared: {first.metric} (no seed)." in text
    assert not any(line.startswith(f"{first.metric} ") for line in text.splitlines())


def test_one_cell_has_no_table_of_differences() -> None:
    assert "difference" not in shown(1)
    assert "mean train reward" in shown(1)
    assert "There is no table of pairs in this result." in shown(1, "pairs")


def test_a_mean_without_an_interval_says_why() -> None:
    report = comparison(1)
    (alone,) = (replace(cell, metrics={name: Estimate.exact(0.5) for name in cell.metrics}) for cell in report.cells)
    for cell, why in ((alone, "all runs have this very value"), (replace(alone, seeds=(0,)), "one run does not tell")):
        text = shown(replace(report, cells=(cell,)))
        assert "0.500¹" in text
        assert f"¹ no interval: {why}" in text


def test_few_pairs_have_no_corrected_sign_flips_but_a_note() -> None:
    few = replace(comparison(), pairs=tuple(replace(pair, sign_flip_p_holm=None) for pair in comparison().pairs))
    assert "fewer than 8 pairs: sign flips cannot decide" in shown(few, "pairs")
