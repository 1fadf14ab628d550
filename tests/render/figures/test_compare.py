from pathlib import Path

from matplotlib.text import Text
from msgspec.structs import replace

from gradscope.diagnostics.compare.measure import compare_runs
from gradscope.render.registry import draw_figures
from tests.render.examples import comparison
from tests.rollouts.readers.lines import write_lines


def test_each_metric_of_the_forest_has_an_axis_of_its_own() -> None:
    """Beside lengths in tokens differences of rewards were points at zero."""
    report = comparison()
    costs = [
        replace(pair, metric="kilotokens_per_step", difference=pair.difference.map(lambda share: 1000 * share))
        for pair in report.pairs
        if pair.metric == "pass@1"
    ]
    both = replace(report, metrics=(*report.metrics, "kilotokens_per_step"), pairs=(*report.pairs, *costs))
    panels = draw_figures(both)["compare_forest"].axes
    assert [axes.get_title(loc="left") for axes in panels] == ["pass@1", "mean train reward", "1000 tokens a step"]
    assert panels[2].get_xlim()[1] > 100 * panels[0].get_xlim()[1]


def test_a_single_pair_is_named_once_in_the_subtitle() -> None:
    report = comparison()
    first, second = report.pairs[0].first, report.pairs[0].second
    alone = replace(report, pairs=tuple(of for of in report.pairs if (of.first, of.second) == (first, second)))
    figure = draw_figures(alone)["compare_forest"]
    words = [text.get_text() for text in figure.findobj(Text)]
    assert sum(" - " in text for text in words) == 1
    assert not any("x0a" in text for text in words)


def write_metrics(path: Path, name: str, course: list[float]) -> Path:
    return write_lines(path, *({"step": step, name: value} for step, value in enumerate(course, start=101)))


def test_runs_that_state_no_formulation_share_a_figure_with_what_they_log(tmp_path: Path) -> None:
    courses = {"a": [0.1, 0.2, 0.3, 0.4], "b": [0.4, 0.3, 0.2, 0.15]}
    for metric, title in (("reward", "mean reward"), ("frac_reward_zero_std", "degenerate groups")):
        logs = [write_metrics(tmp_path / f"{name}.jsonl", metric, course) for name, course in courses.items()]
        figure = draw_figures(compare_runs(*logs))["compare_curves"]
        assert [axes.get_ylabel() for axes in figure.axes] == [title]
        assert [line.get_xdata()[-1] for line in figure.axes[0].lines[:2]] == [104, 104]
        words = " ".join(text.get_text() for text in figure.findobj(Text))
        assert f"{title.capitalize()} at the end: 0.40 a.jsonl, 0.15 b.jsonl Mean of each twentieth" in words


def test_steps_are_whole_numbers() -> None:
    figure = draw_figures(comparison(1))["compare_curves"]
    figure.canvas.draw()
    assert all(float(tick).is_integer() for tick in figure.axes[-1].get_xticks())
