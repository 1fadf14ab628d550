import re

import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text
from msgspec.structs import replace

from gradscope.estimate import Estimate
from gradscope.render.figures import style
from gradscope.render.figures.rank import _curve
from gradscope.render.figures.rank_spectra import _null_line, heat_map_cell
from gradscope.render.registry import draw_figures
from gradscope.results.source import RowKind
from tests.render import examples, rank_examples

ZERO = Estimate.undefined_because("the matrix is zero")


def words_of(figure: Figure) -> str:
    return " ".join(text.get_text() for text in figure.findobj(Text))


@pytest.mark.slow
def test_cosines_and_shares_have_figures() -> None:
    figures = draw_figures(rank_examples.formulation_report())
    assert {"rank_cosines", "rank_shares"} <= set(figures)
    words = words_of(figures["rank_shares"])
    assert all(part in words for part in ("+0.70", "mean reward 0.50", "rollout 0: +0.80"))


@pytest.mark.slow
def test_cosines_are_counted_in_the_title_and_without_any_there_is_no_figure() -> None:
    report = rank_examples.formulation_report()
    words = words_of(draw_figures(report)["rank_cosines"])
    assert re.search(r"\d of \d formulations give the \w+ update, (1 pulls|[^1] pull) against it", words)
    gone = dict.fromkeys(report.formulations[0].cosines, ZERO)
    dead = tuple(replace(update, cosines=gone) for update in report.formulations)
    assert "rank_cosines" not in draw_figures(replace(report, formulations=dead))


def test_the_rank_has_its_course_and_every_advantage_beside_it() -> None:
    report = examples.rank_report()
    figure = draw_figures(report)["rank_curve"]
    last = max(point.step for point in report.curve)
    assert re.search(rf"A group's gradient spans [\d.]+ of \d+ directions at step {last}", words_of(figure))
    assert len(figure.axes) == 1 + (len({point.advantage for point in report.curve}) > 1)
    none = tuple(replace(point, effective_rank=ZERO) for point in report.curve)
    assert "No group has a rank" in words_of(_curve(replace(report, curve=none)))


def test_of_many_advantages_those_of_the_lowest_and_the_highest_ranks_are_drawn() -> None:
    report = examples.rank_report()
    point = next(point for point in report.curve if point.effective_rank.is_defined)
    many = tuple(
        replace(point, advantage=f"mine_{number:02}", effective_rank=Estimate.exact(1 + number / 10))
        for number in range(40)
    )
    words = words_of(draw_figures(replace(report, curve=many))["rank_curve"])
    assert [number for number in (1, 11, 12, 27, 28, 39) if f"mine_{number:02}" in words] == [1, 11, 28, 39]
    assert "16 more advantages in the tables" in " ".join(words.split())


def test_a_single_formulation_and_a_dead_step_have_no_such_figure() -> None:
    report = rank_examples.formulation_report()
    bare = replace(report, formulations=report.formulations[-1:], shares=())
    assert not {"rank_cosines", "rank_shares"} & set(draw_figures(bare))


@pytest.mark.slow
def test_ranks_are_drawn_against_the_group_size_where_there_are_several() -> None:
    report = examples.rank_report()
    assert "rank_sizes" in draw_figures(report)
    of_eight = replace(report, curve=tuple(p for p in report.curve if p.group_size == 8))
    assert "rank_sizes" not in draw_figures(of_eight)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rows", "legend"),
    [("token", "its rows are the gradients of its tokens (8 to 8 x"), ("rollout", "a thin line a group (matrix 8 x")],
)
def test_the_legend_of_spectra_says_what_a_row_is(rows: RowKind, legend: str) -> None:
    report = replace(examples.rank_report(), rows=rows)
    assert legend in " ".join(" ".join(map(words_of, draw_figures(report).values())).split())


def test_sparsity_has_a_course_over_steps_and_a_heat_map_without_weights_that_have_no_gradient() -> None:
    tokens, report = rank_examples.token_report(), rank_examples.sparse_weight_report()
    assert "rank_sparsity" in draw_figures(tokens)
    once = replace(tokens, steps=tokens.steps[:1], sparsity=tokens.sparsity[:1])
    assert "rank_sparsity" not in draw_figures(once)
    *rest, last = sorted((point for point in report.sparsity if point.tensor is not None), key=lambda point: point.step)
    report = replace(report, sparsity=(*rest, replace(last, gini=ZERO)))
    figures = draw_figures(report)
    assert {"rank_sparsity", "rank_layers"} <= set(figures)
    axes = figures["rank_layers_sparsity"].axes[0]
    cells = [text for text in axes.texts if re.fullmatch(r"0\.\d\d", text.get_text())]
    assert len(cells) == sum(point.step == last.step for point in rest) > 0


def test_changes_of_weights_have_a_curve_only_over_several_checkpoints() -> None:
    report = rank_examples.update_report()
    assert set(draw_figures(report)) == {"update_layers", "update_trajectory"}
    change = report.updates[0]
    assert "update_curve" in draw_figures(replace(report, updates=(change, replace(change, last=2000))))
    assert draw_figures(replace(report, updates=(replace(change, effective_rank=ZERO),))) == {}


@pytest.mark.slow
def test_a_gradient_is_drawn_beside_a_change_where_both_have_a_rank() -> None:
    report = rank_examples.gradient_update_report()
    assert "rank_gradient_update" in draw_figures(report)
    nothing = replace(report.gradient_updates[0], update_rank=ZERO)
    assert "rank_gradient_update" not in draw_figures(replace(report, gradient_updates=(nothing,)))


def test_spectra_and_nulls_are_drawn_where_any_group_lives() -> None:
    report = examples.rank_report()
    flat = tuple(replace(spectrum, singular_values=(0.0,) * 8) for spectrum in report.spectra)
    dead = tuple(replace(point, profile=(), nulls={}) for point in report.curve)
    assert {"rank_spectrum", "rank_nulls"} <= set(draw_figures(report))
    assert not {"rank_spectrum", "rank_nulls"} & set(draw_figures(replace(report, spectra=flat, curve=dead)))


@pytest.mark.parametrize(
    ("tensor", "index"),
    [
        ("model.layers.11.mlp.up_proj.weight", ("11", "up_proj")),
        ("transformer.h.3.attn.c_attn.weight", ("3", "c_attn")),
        ("base.layers.0.q_proj.lora_A.default.weight", ("0", "q_proj.lora_A")),
        ("lm_head.weight", ("outside", "lm_head")),
    ],
)
def test_a_tensor_stands_in_its_layer_and_module(tensor: str, index: tuple[str, str]) -> None:
    assert heat_map_cell(tensor) == index


def test_the_label_of_a_null_stands_at_the_end_of_its_line() -> None:
    _, (axes,) = style.new_figure("a", "b")
    assert _null_line(axes, [0.5, 0.3, 0.2, 0.0]) == 0.2
    assert list(axes.lines[0].get_ydata()) == [0.5, 0.3, 0.2]
