from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from gradscope.render.figures.save import save_figure
from gradscope.render.files.document import document_of
from gradscope.render.files.write import write_files
from gradscope.render.registry import draw_figures, render_table
from gradscope.render.words.compare_labels import pair_label
from tests.render.compare_example import comparison


def printed(num_cells: int = 4) -> str:
    stream = io.StringIO()
    Console(file=stream, width=80, color_system=None).print(render_table(comparison(num_cells)))
    return stream.getvalue()


def test_the_table_fits_80_columns_and_escapes_what_it_shows() -> None:
    text = printed()
    assert max(len(line.rstrip()) for line in text.splitlines()) <= 80
    assert "\x1b" not in text
    assert "\u202e" not in text


def test_the_table_has_cells_differences_p_values_and_reasons() -> None:
    text = printed()
    assert "learning_rate 0.0002 - 0.0001 +0.020 —(1) —(1) 1.000" in " ".join(text.split())
    for part in (
        "4 cells, 7 tests",
        "0.500 [0.46, 0.54]  0.500 [0.46, 0.54]",
        "+0.100 [+0.06, +0.14]  0.001  0.007  0.062",
        "learning_rate 0.0002 - 0.0001",
        "(1) one pair does not tell how much pairs differ by chance",
        "p corrected = ",
    ):
        assert part in text
    assert text.count("  at grpo") == 2


def test_one_cell_has_no_table_of_differences() -> None:
    text = printed(1)
    assert "Holm  flips" not in text


def test_a_pair_is_called_by_what_differs() -> None:
    report = comparison()
    by_rate, by_form = report.pairs[0], report.pairs[2]
    assert pair_label(by_rate, report) == "learning_rate 0.0002 - 0.0001\n  at grpo"
    assert pair_label(by_form, report).endswith("\n  at learning_rate 0.0001")


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


def test_the_same_comparison_gives_the_same_files(tmp_path: Path) -> None:
    report = comparison()
    for name in ("first", "again"):
        (tmp_path / name).mkdir()
        write_files(report, document_of(report) | {"created_at": "now"}, tmp_path / name)
    files = sorted(path.name for path in (tmp_path / "first").iterdir())
    assert [name for name in files if name.endswith(".csv")] == [
        "compare_cells.csv",
        "compare_curves.csv",
        "compare_pairs.csv",
    ]
    assert all((tmp_path / "first" / name).read_bytes() == (tmp_path / "again" / name).read_bytes() for name in files)


def test_the_figures_are_saved(tmp_path: Path) -> None:
    for stem, figure in draw_figures(comparison()).items():
        assert all(path.stat().st_size > 0 for path in save_figure(figure, tmp_path / stem))


def test_what_a_step_costs_has_another_unit_than_the_forest() -> None:
    report = comparison()
    cost = [replace(pair, metric="kilotokens_per_step") for pair in report.pairs if pair.metric == "pass@1"]
    both = replace(report, metrics=(*report.metrics, "kilotokens_per_step"), pairs=(*report.pairs, *cost))
    titles = [axes.get_title(loc="left") for axes in draw_figures(both)["compare_forest"].axes]
    assert titles == ["pass@1", "mean train reward"]
