from dataclasses import replace
from pathlib import Path

import pytest

from gradscope.render.figures.style import save_figure
from gradscope.render.registry import draw_figures
from tests.render.examples import comparison


@pytest.mark.parametrize("num_cells", [1, 2, 4])
def test_no_text_leaves_a_figure(num_cells: int) -> None:
    figures = draw_figures(comparison(num_cells))
    curves = {"compare_curves"} if num_cells == 1 else {"compare_curves_1", "compare_curves_2"}
    assert set(figures) == curves | ({"compare_forest"} if num_cells > 1 else set())
    for figure in figures.values():
        figure.canvas.draw()
        for text in figure.texts + [text for axes in figure.axes for text in axes.texts]:
            extent = text.get_window_extent()
            assert extent.x0 >= 0
            assert extent.x1 <= figure.bbox.x1 + 1, text.get_text()
            assert extent.y1 <= figure.bbox.y1 + 1


def test_the_figures_are_saved(tmp_path: Path) -> None:
    for stem, figure in draw_figures(comparison()).items():
        assert all(path.stat().st_size > 0 for path in save_figure(figure, tmp_path / stem))


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
