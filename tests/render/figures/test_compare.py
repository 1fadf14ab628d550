from msgspec.structs import replace

from gradscope.render.registry import draw_figures
from tests.render.examples import comparison


def test_what_a_step_costs_has_another_unit_than_the_forest() -> None:
    report = comparison()
    cost = [replace(pair, metric="kilotokens_per_step") for pair in report.pairs if pair.metric == "pass@1"]
    both = replace(report, metrics=(*report.metrics, "kilotokens_per_step"), pairs=(*report.pairs, *cost))
    titles = [axes.get_title(loc="left") for axes in draw_figures(both)["compare_forest"].axes]
    assert titles == ["pass@1", "mean train reward"]


def test_steps_are_whole_numbers() -> None:
    figure = draw_figures(comparison(1))["compare_curves"]
    figure.canvas.draw()
    assert all(float(tick).is_integer() for tick in figure.axes[-1].get_xticks())
