"""The tables of every kind of rank report, right at 80 columns."""

from __future__ import annotations

import dataclasses

import pytest

from gradscope.render.registry import render_table
from gradscope.results.rank import RankReport
from tests.render import examples
from tests.render.printing import printed
from tests.render.rank_examples import (
    formulation_report,
    gradient_update_report,
    sparse_weight_report,
    sparsity,
    token_report,
    update_report,
    weight_rank_report,
)


def words(report: RankReport) -> str:
    return " ".join(printed(render_table(report)).split())


@pytest.mark.parametrize(
    "report",
    [
        formulation_report(),
        gradient_update_report(),
        sparse_weight_report(),
        token_report(),
        update_report(),
        weight_rank_report(),
    ],
    ids=["formulations", "gradients and updates", "sparse weights", "tokens", "updates", "weights by group"],
)
def test_every_kind_of_row_fits_80_columns(report: RankReport) -> None:
    text = printed(render_table(report))
    assert max(len(line) for line in text.splitlines()) <= 80
    assert "\x1b" not in text


def test_formulations_and_baselines_stand_with_their_reasons() -> None:
    text = words(formulation_report())
    assert "its mean over groups is not above its own noise" in text
    assert "0.58 [0.31, 0.86]" in text
    assert "optimal_leave_one_out" in text


def test_formulations_refused_for_one_reason_share_a_note() -> None:
    refused = {"sign": "'sign' needs 0 and 1", "tasa": "'tasa' needs 0 and 1", "max_rl": "needs a group"}
    text = words(dataclasses.replace(examples.rank_report(), refused=refused))
    assert "left out: sign, tasa. such needs 0 and 1" in text
    assert "left out: max_rl. needs a group" in text


def test_sparsity_of_tokens_and_weights_has_its_definitions() -> None:
    tokens, weights = printed(render_table(token_report())), printed(render_table(sparse_weight_report()))
    assert "  21  12,345       48%  0.250  0.375  0.500  0.621" in tokens
    assert "every row is zero" in tokens
    assert "0.self_attn.q_proj" in weights
    assert "step 41: entries of" in weights
    assert "x the norm of each token's row" in " ".join(tokens.split())
    assert "each entry of a weight's gradient dL/dW" in " ".join(weights.split())


def test_a_long_list_of_weights_is_cut_and_says_so() -> None:
    report = sparse_weight_report()
    many = tuple(sparsity(41, f"model.layers.{layer}.mlp.up_proj.weight") for layer in range(30))
    text = printed(render_table(dataclasses.replace(report, sparsity=many)))
    assert "6 more lines of sparsity are in the JSON and the CSV" in " ".join(text.split())


def test_changes_of_weights_stand_beside_their_nulls() -> None:
    text = words(update_report())
    assert "W_1000 - W_0" in text
    assert "1 more changes" in text
    assert "energy in one direction 0.940 0.820" in text
    assert "the base model of the adapter is not on this disk" in text


def test_a_gradient_stands_beside_the_change_that_followed() -> None:
    text = printed(render_table(gradient_update_report()))
    assert "W_60 - W_40: rank" in text
    assert "8.79  0.463              24.98  0.219  51.53" in text
    assert "11 more pairs of a gradient and a change" in " ".join(text.split())


def test_dl_dw_of_a_group_has_a_line_a_size_and_a_column_a_size() -> None:
    text = words(weight_rank_report())
    assert "logged (1) 2 12/16 2.02 [1.50, 4.00]" in text
    assert "grpo, " in text
    assert ": the same, up to one factor a group" in text
    assert "R = 2 R = 8 R = 32" in text
    assert "more weights are in the JSON and the CSV" in text
