"""Sparsity of tokens and of weights in tables, figures and files."""

from __future__ import annotations

import dataclasses

from gradscope.estimate import Estimate
from gradscope.render.files.csv_tables import tidy_tables
from gradscope.render.registry import draw_figures, render_table
from gradscope.results.rank import RankReport
from gradscope.results.rank_tokens import GradientSparsity
from tests.render import examples
from tests.render.printing import printed


def sparsity(step: int, tensor: str | None = None) -> GradientSparsity:
    return GradientSparsity(
        step=step,
        parts="tokens" if tensor is None else "entries",
        tensor=tensor,
        num_parts=12_345,
        frac_seen=0.48 if tensor is None else 1.0,
        zero=Estimate.exact(0.25),
        small=Estimate.exact(0.375),
        hoyer=Estimate.exact(0.5) if step < 41 else Estimate.because("every row is zero"),
        gini=Estimate.exact(0.6 + step / 1000),
    )


def of_tokens() -> RankReport:
    bare = dataclasses.replace(examples.rank_report(), rows="token", curve=(), spectra=())
    return dataclasses.replace(bare, sparsity=tuple(sparsity(step) for step in (1, 21, 41)))


def of_weights() -> RankReport:
    report = examples.weight_report()
    names = [str(spectrum.label.tensor) for spectrum in report.spectra]
    return dataclasses.replace(report, sparsity=tuple(sparsity(step, name) for step in (1, 41) for name in names))


def test_tables_fit_80_columns_and_give_definitions() -> None:
    tokens, weights = printed(render_table(of_tokens())), printed(render_table(of_weights()))
    assert max(len(line) for text in (tokens, weights) for line in text.splitlines()) <= 80
    assert "  21  12,345       48%  0.250  0.375  0.500  0.621" in tokens
    assert "every row is zero" in tokens
    assert "0.self_attn.q_proj" in weights
    assert "step 41: entries of" in weights
    assert "x the norm of each token's row" in " ".join(tokens.split())
    assert "each entry of a weight's gradient dL/dW" in " ".join(weights.split())


def test_a_long_list_of_weights_is_cut_and_says_so() -> None:
    report = of_weights()
    many = tuple(sparsity(41, f"model.layers.{layer}.mlp.up_proj.weight") for layer in range(30))
    text = printed(render_table(dataclasses.replace(report, sparsity=many)))
    assert "6 more lines of sparsity are in the JSON and the CSV" in " ".join(text.split())


def test_sparsity_has_a_course_and_a_heat_map() -> None:
    assert "rank_sparsity" in draw_figures(of_tokens())
    assert {"rank_sparsity", "rank_layers", "rank_layers_sparsity"} <= set(draw_figures(of_weights()))
    assert len(tidy_tables(of_weights())["rank_sparsity"]) == len(of_weights().sparsity)


def test_one_step_has_no_course() -> None:
    report = of_tokens()
    once = dataclasses.replace(report, steps=report.steps[:1], sparsity=report.sparsity[:1])
    assert "rank_sparsity" not in draw_figures(once)
