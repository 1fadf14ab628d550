import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.text import Text
from msgspec.structs import replace

from gradscope.diagnostics.degeneracy.group_rewards import By, DegeneracyOptions
from gradscope.diagnostics.degeneracy.measure import degeneracy_of_run
from gradscope.estimate import Estimate
from gradscope.metrics.outcomes.jensen_gap import BasePassRate
from gradscope.render.figures.style import BLUE, ORANGE, name_of, power_of_ten, save_figure
from gradscope.render.files import document_of, tidy_tables
from gradscope.render.registry import draw_figures
from gradscope.results.envelope import render_json
from tests.diagnostics.made_up_runs import group_of, run_of
from tests.render import examples, rank_examples

EXPECTED: dict[str, tuple[object, set[str]]] = {
    "degeneracy": (examples.degeneracy_report(), {"degeneracy", "degeneracy_by_group_size", "pass_rates"}),
    "long": (examples.degeneracy_report(num_steps=300), {"degeneracy", "degeneracy_by_group_size", "pass_rates"}),
    "one step": (examples.degeneracy_report(num_steps=1), {"degeneracy_by_group_size", "pass_rates"}),
    "passk": (examples.passk_report(), {"passk"}),
    "one file": (examples.passk_report(num_files=1), {"passk"}),
    "rank": (examples.rank_report(), {"rank_curve", "rank_nulls", "rank_sizes", "rank_sparsity", "rank_spectrum"}),
    "weights": (examples.weight_report(), {"rank_layers"}),
    "replay": (examples.replay_report(), {"replay"}),
    "spike": (examples.spike_report(), {"spike"}),
    "check": (examples.check_report(), set()),
    "compare": (examples.comparison(), {"compare_curves_1", "compare_curves_2", "compare_forest"}),
    "one cell": (examples.comparison(1), {"compare_curves"}),
    "report": (examples.run_report(), {"signal_1", "signal_2", "signal_3"}),
}

OF_RANK = (
    rank_examples.formulation_report,
    rank_examples.gradient_update_report,
    rank_examples.sparse_weight_report,
    rank_examples.token_report,
    rank_examples.update_report,
    rank_examples.weight_rank_report,
)


@pytest.mark.slow
@pytest.mark.parametrize(("report", "names"), EXPECTED.values(), ids=EXPECTED)
def test_each_result_has_its_figures_with_words_that_fit_and_can_be_read(report: object, names: set[str]) -> None:
    """Eight pixels and more; a title of its finding, which names a number."""
    figures = draw_figures(report)
    assert set(figures) == names
    for name, figure in figures.items():
        figure.canvas.draw()
        bounds = figure.bbox
        for text in figure.texts + [text for axes in figure.axes for text in (*axes.texts, axes.yaxis.label)]:
            extent = text.get_window_extent()
            inside = extent.x0 >= 0 and extent.x1 <= bounds.x1 + 1 and extent.y1 <= bounds.y1 + 1
            assert inside or not text.get_text(), f"{text.get_text()!r} leaves {name}"
        texts = [text for part in (figure, *figure.axes) for text in part.findobj(Text) if text.get_text().strip()]
        smallest = min(texts, key=lambda text: text.get_fontsize())
        assert smallest.get_fontsize() / 72 * 600 / figure.get_figwidth() >= 8, f"{smallest.get_text()!r} in {name}"
        assert re.search(r"\d", figure.texts[0].get_text()), name
    assert_lines_show(report, figures)


def numbers_in(document: object) -> Iterator[float]:
    if isinstance(document, dict | list):
        values = document.values() if isinstance(document, dict) else document
        yield from (number for value in values for number in numbers_in(value))
    elif isinstance(document, int | float) and not isinstance(document, bool):
        yield float(document)


def assert_lines_show(report: object, figures: Mapping[str, Figure]) -> None:
    """No line has a number that the document does not have."""
    expected = np.unique(list(numbers_in(json.loads(render_json(document_of(report))))))
    for name, figure in figures.items():
        for line in (line for axes in figure.axes for line in axes.lines):
            data = line.get_xdata() if name == "rank_gradient_update" else line.get_ydata()  # its rows are weights
            for value in np.asarray(data, dtype=np.float64):
                assert np.isnan(value) or np.abs(expected - value).min() <= 1e-12 * max(1.0, abs(value)), (name, value)


@pytest.mark.slow
@pytest.mark.parametrize("make", OF_RANK)
def test_no_line_shows_a_number_that_the_document_does_not_have(make: Callable[[], object]) -> None:
    assert_lines_show(report := make(), draw_figures(report))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["passk", "replay"])
def test_the_same_result_gives_the_same_bytes(name: str, tmp_path: Path) -> None:
    report = EXPECTED[name][0]
    for stem, figure in draw_figures(report).items():
        first = [path.read_bytes() for path in save_figure(figure, tmp_path / stem)]
        again = save_figure(draw_figures(report)[stem], tmp_path / f"{stem}-again")
        assert [path.read_bytes() for path in again] == first


@pytest.mark.parametrize(("num_steps", "has_whiskers"), [(24, True), (25, False)])
def test_more_than_24_steps_have_no_whiskers(num_steps: int, has_whiskers: bool) -> None:
    figure = draw_figures(examples.degeneracy_report(num_steps=num_steps))["degeneracy"]
    assert any("whiskers" in text.get_text() for text in figure.texts) == has_whiskers


def test_text_from_a_log_is_neither_mathematics_nor_a_missing_glyph(tmp_path: Path) -> None:
    report = examples.passk_report()
    tables = (replace(report.tables[0], name=r"$\frac{$ 提示"), report.tables[1])
    for stem, figure in draw_figures(replace(report, tables=tables)).items():
        assert save_figure(figure, tmp_path / stem)


def test_a_result_without_numbers_has_no_figure() -> None:
    report = examples.passk_report(num_files=1)
    nothing = Estimate.undefined_because("no samples")
    rows = tuple(replace(row, pass_at_k=nothing) for row in report.tables[0].rows)
    assert draw_figures(replace(report, tables=(replace(report.tables[0], rows=rows),))) == {}
    replay = examples.replay_report()
    silent = tuple(replace(step, logged={}) for step in replay.steps)
    assert draw_figures(replace(replay, steps=silent)) == {}


def test_names_are_shortened_and_powers_spelled_out() -> None:
    assert name_of("提示", limit=10) == r"\u63d0\u7…"
    assert power_of_ten(0.001) == "10⁻³"


def test_a_logged_norm_that_is_not_finite_is_marked_in_the_figure() -> None:
    report = examples.replay_report()
    first = replace(report.steps[0], logged={"grad_norm": float("nan")})
    (above, _) = draw_figures(replace(report, steps=(first, *report.steps[1:])))["replay"].axes
    assert "logged as NaN or infinity" in [text.get_text() for text in above.texts]
    _, errors = draw_figures(report)["replay"].axes
    drawn = [
        report.tolerance,
        *(of["grad_norm"] for step in report.steps if "grad_norm" in (of := step.relative_error)),
    ]
    assert errors.get_ylim()[0] < min(drawn) <= max(drawn) < errors.get_ylim()[1]
    only = replace(report, steps=(replace(first, recomputed={}, relative_error={}),))
    assert set(draw_figures(only)) == {"replay"}


def test_a_step_of_which_nothing_was_logged_has_no_figure_and_one_without_gradients_has_a_course() -> None:
    report = examples.spike_report()
    assert draw_figures(replace(report, course={}, metrics=())) == {}
    alone, of_metrics = (
        draw_figures(replace(report, removals=(), metrics=metrics))["spike"] for metrics in ((), report.metrics)
    )
    assert len(alone.axes) == 1
    assert "against the other steps" in str([text.get_text() for text in alone.findobj(Text)])
    assert "14.2 at step 37, and 1.2 around it" in str([text.get_text() for text in of_metrics.findobj(Text)])


def drawn(axes: Axes, label: str) -> list[float]:
    """The heights of the line of a color."""
    (line,) = (line for line in axes.lines if to_hex(line.get_color()) == label)
    return [float(value) for value in np.asarray(line.get_ydata())]


@pytest.mark.slow
@pytest.mark.parametrize(("base", "by"), [(None, "step"), (0.3, "window"), ("step", "step")])
def test_figures_of_dead_groups_show_the_numbers_of_their_tables_and_name_their_p(base: BasePassRate, by: By) -> None:
    """Groups of unequal size, whose pass rate rises from step to step: each choice of p gives another prediction."""
    chance = np.random.default_rng(0)
    run = run_of(
        *(
            group_of(
                [float(chance.random() < 0.1 + 0.06 * step) for _ in range(4 + index % 3)],
                step=step,
                prompt=f"{step}:{index}",
            )
            for step in range(1, 13)
            for index in range(12)
        )
    )
    report = degeneracy_of_run(run, group_sizes=(2, 3), options=DegeneracyOptions(base_pass_rate=base, by=by))
    tables, figures = tidy_tables(report), draw_figures(report)
    names = ("degeneracy", "degeneracy_by_group_size", "pass_rates")
    over_steps, by_size, rates = (figures[name].axes[0] for name in names)
    course, sizes = tables["by_step"], tables["by_group_size"]
    assert drawn(over_steps, ORANGE) == [row["iid_prediction"] for row in course]
    bars = np.array([bar.get_height() for bar in over_steps.patches]).reshape(-1, len(course)).sum(axis=0)
    assert bars == pytest.approx([row["frac_reward_zero_std"] for row in course])
    assert sorted(drawn(by_size, ORANGE)) == sorted(row["iid_prediction"] for row in sizes)
    assert sorted(drawn(by_size, BLUE)) == sorted(row["degeneracy"] for row in sizes)
    assert drawn(rates, ORANGE) == [row["binomial"] for row in tables["histogram"]]
    assert rates.get_xticks()[[0, -1]].tolist() == [0.0, len(tables["histogram"]) - 1.0]
    output = {name: " ".join(text.get_text() for text in figure.texts) for name, figure in figures.items()}
    assert f"p: {report.course_pass_rate_origin}" in output["degeneracy"]
    assert f"p: {report.pass_rate_origin}" in output["degeneracy_by_group_size"]
    assert f"p = {report.pass_rate.value:.3g}" in output["pass_rates"]


@pytest.mark.parametrize(("size", "named"), [(8, range(9)), (16, (0, 4, 8, 12, 16))])
def test_bars_of_pass_rates_are_named_as_far_as_there_is_room(size: int, named: Iterable[int]) -> None:
    rewards = [[float(sample < group % (size + 1)) for sample in range(size)] for group in range(20)]
    run = run_of(*(group_of(row, prompt=str(number)) for number, row in enumerate(rewards)))
    rates = draw_figures(degeneracy_of_run(run))["pass_rates"].axes[0]
    assert [label.get_text() for label in rates.get_xticklabels()] == [f"{bar}/{size}" for bar in named]
