"""Updates of formulations, shares and baselines in tables, figures and files."""

from __future__ import annotations

import dataclasses

import pytest

from gradscope.estimate import Estimate
from gradscope.render.files.csv_tables import tidy_tables
from gradscope.render.registry import draw_figures, render_table
from gradscope.results.rank import BaselineNoise, FormulationUpdate, GroupShare, RankReport
from gradscope.results.update import GradientAndUpdate, UpdateTrajectory, WeightUpdate
from tests.render import examples
from tests.render.printing import printed

NAMES = ("logged", "grpo", "sign", examples.HOSTILE)


def update(name: str, step: int = 41) -> FormulationUpdate:
    return FormulationUpdate(
        step=step,
        advantage=name,
        update_norm=Estimate.exact(0.4123),
        cancellation=Estimate.exact(0.31),
        between_groups=Estimate.exact(0.155),
        class_subspace_energy=Estimate.exact(0.6),
        signal_to_noise=Estimate(value=0.62, low=0.1, high=1.2, num_units=16),
        alignment={
            "pass@1": Estimate(value=0.97, low=0.9, high=1.0, num_units=16),
            "pass@8": Estimate.because("its mean over groups is not above its own noise"),
        },
        cosines={other: Estimate.exact(-0.25 if other == "sign" else 0.87) for other in NAMES if other != name},
    )


def noise() -> BaselineNoise:
    ratio = Estimate(value=0.58, low=0.31, high=0.86, num_units=96)
    names = ("zero", "group_mean", "optimal", "optimal_leave_one_out", "shrinkage")
    return BaselineNoise(
        step=None,
        group_id=None,
        num_groups=96,
        pass_rate=0.7,
        optimal_baseline=Estimate.exact(0.2),
        reward_norm_correlation=Estimate.because("rewards or norms do not vary within any group"),
        relative_noise=dict.fromkeys(names, ratio),
    )


@pytest.fixture
def report() -> RankReport:
    shares = tuple(
        GroupShare(
            step=41,
            group_id=f"{examples.HOSTILE}{group}",
            pass_rate=None if group == 0 else 0.5,
            projection_share=Estimate.exact(share),
            rollouts=(share + 0.1, -0.1, 0.0),
        )
        for group, share in enumerate((0.7, 0.4, -0.1, 0.0))
    )
    return dataclasses.replace(
        examples.rank_report(),
        formulations=tuple(update(name, step) for step in (1, 41) for name in NAMES),
        shares=shares,
        baselines=(noise(),),
    )


def test_tables_fit_80_columns_and_give_reasons(report: RankReport) -> None:
    text = printed(render_table(report))
    assert max(len(line) for line in text.splitlines()) <= 80
    assert "its mean over groups is not above its own noise" in " ".join(text.split())
    assert "0.58 [0.31, 0.86]" in text
    assert "optimal_leave_one_out" in text
    assert "\x1b" not in text


def test_cosines_and_shares_have_figures(report: RankReport) -> None:
    figures = draw_figures(report)
    assert {"rank_cosines", "rank_shares"} <= set(figures)
    words = " ".join(
        text.get_text() for text in figures["rank_shares"].findobj(match=lambda item: hasattr(item, "get_text"))
    )
    assert "+0.70" in words
    assert "mean reward 0.50" in words
    assert "rollout 0: +0.80" in words


def test_a_single_formulation_and_a_dead_step_have_no_such_figure(report: RankReport) -> None:
    bare = dataclasses.replace(report, formulations=report.formulations[-1:], shares=())
    assert not {"rank_cosines", "rank_shares"} & set(draw_figures(bare))


def test_every_table_of_the_report_is_a_csv(report: RankReport) -> None:
    tables = tidy_tables(report)
    assert {"rank_formulations", "rank_shares", "rank_baselines"} <= set(tables)
    assert tables["rank_formulations"][0]["alignment.pass@1_low"] == 0.9


def test_weight_updates_have_tables_of_80_columns() -> None:
    share = Estimate.exact(0.123)
    none = Estimate.because("the base model of the adapter is not on this disk; name it with --model")
    update = WeightUpdate(
        tensor="model.layers.10.self_attn.q_proj.weight",
        first=0,
        last=1000,
        shape=(64, 64),
        update_size=share,
        singular_values=(2.0, 1.0),
        effective_rank=Estimate.exact(31.5),
        gaussian=Estimate.exact(51.5),
        stable_rank=Estimate.exact(3.1),
        top_energy=share,
        principal_overlap=share,
        principal_null=share,
        bfloat16_changed=none,
    )
    whole = UpdateTrajectory(
        tensor=None,
        num_updates=(500, 1000),
        effective_rank=Estimate.exact(1.4),
        top_energy=Estimate.exact(0.94),
        linear_growth=Estimate.exact(0.92),
        walk_effective_rank=Estimate.exact(1.8),
        walk_top_energy=Estimate.exact(0.82),
        walk_linear_growth=Estimate.exact(0.81),
    )
    bare = dataclasses.replace(examples.weight_report(), rows="update", spectra=(), steps=())
    report = dataclasses.replace(
        bare, updates=(update, *[dataclasses.replace(update, first=500)]), trajectories=(whole,)
    )
    text = printed(render_table(report))
    assert max(len(line) for line in text.splitlines()) <= 80
    assert "W_1000 - W_0" in text
    assert "1 more changes" in " ".join(text.split())
    assert "the base model of the adapter is not on this disk" in " ".join(text.split())
    assert tidy_tables(report)["rank_updates"][0]["principal_overlap"] == 0.123
    figures = draw_figures(report)
    assert set(figures) == {"update_layers", "update_trajectory"}
    dead = dataclasses.replace(update, effective_rank=Estimate.because("the matrix is zero"))
    assert draw_figures(dataclasses.replace(report, updates=(dead,))) == {}
    later = dataclasses.replace(update, last=2000)
    assert "update_curve" in draw_figures(dataclasses.replace(report, updates=(update, later)))


def test_a_gradient_stands_beside_the_change_that_followed() -> None:
    pair = GradientAndUpdate(
        step=41,
        tensor="model.layers.0.self_attn.q_proj.weight",
        first=40,
        last=60,
        gradient_rank=Estimate.exact(8.79),
        gradient_top_energy=Estimate.exact(0.463),
        update_rank=Estimate.exact(24.98),
        update_top_energy=Estimate.exact(0.219),
        gaussian=Estimate.exact(51.53),
    )
    pairs = (dataclasses.replace(pair, step=1), *(dataclasses.replace(pair, tensor=f"{n}.weight") for n in range(40)))
    report = dataclasses.replace(examples.weight_report(), gradient_updates=pairs)
    text = printed(render_table(report))
    assert max(len(line) for line in text.splitlines()) <= 80
    assert "W_60 - W_40: rank" in text
    assert "8.79  0.463              24.98  0.219  51.53" in text
    assert "11 more pairs of a gradient and a change" in " ".join(text.split())
    assert "rank_gradient_update" in draw_figures(report)
    nothing = dataclasses.replace(pair, update_rank=Estimate.because("the matrix is zero"))
    assert "rank_gradient_update" not in draw_figures(dataclasses.replace(report, gradient_updates=(nothing,)))
    assert tidy_tables(report)["rank_gradient_updates"][0]["update_rank"] == 24.98


def test_ranks_are_drawn_against_the_group_size_where_there_are_several() -> None:
    report = examples.rank_report()
    assert "rank_sizes" in draw_figures(report)
    of_eight = dataclasses.replace(report, curve=tuple(p for p in report.curve if p.group_size == 8))
    assert "rank_sizes" not in draw_figures(of_eight)
