"""Ranks by hand: both sides of every threshold, and which matrix each candidate is."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from gradscope.diagnostics.claims import ranks
from gradscope.diagnostics.claims.claim import Judgement
from gradscope.diagnostics.claims.evidence import ADVANTAGE
from gradscope.diagnostics.claims.ranks import RankEvidence, higher_with_token_credit, two_whatever_the_size
from gradscope.diagnostics.rank.collected import Collected
from gradscope.diagnostics.rank.comparison import GroupRank
from gradscope.diagnostics.rank.weights.weight_curve import ALL_WEIGHTS
from gradscope.errors import InputError
from gradscope.estimate import Estimate
from gradscope.metrics.gram.geometry import CHANNELS
from gradscope.results.ranks.curves import NullRank, RankCurvePoint, TokenRankPoint, WeightRankPoint
from tests.diagnostics.claims.made_up_evidence import Given, between
from tests.diagnostics.made_up_runs import group_of, run_of

UNKNOWN = Estimate.undefined_because("no group is live")


def around(value: float) -> Estimate:
    return between(value - 0.01, value + 0.01)


def point(size: int, rank: Estimate, *, step: int = 1, kind: type = RankCurvePoint, **more: object) -> object:
    null = NullRank(effective_rank=around(4.0), difference=UNKNOWN, ratio=around(0.5), two_direction_energy=UNKNOWN)
    fields = {"step": step, "advantage": ADVANTAGE, "group_size": size, "num_groups": 12, "num_dead": 0}
    ranked = {"effective_rank": rank, "stable_rank": rank, "participation_ratio": rank, "two_direction_energy": rank}
    own = dict.fromkeys(("given_prompts", "summed_energy", *CHANNELS), rank) if kind is RankCurvePoint else {}
    nulls = {"gaussian": null} if rank.is_defined else {}
    return kind(**fields, **ranked, **own, **more, nulls=nulls)


def judged(points: list, change: Estimate | None, frac_seen: float = 1.0) -> Judgement:
    found = RankEvidence(points=points, change=change, frac_seen=frac_seen)
    return two_whatever_the_size(lambda _: found, Given())


@pytest.mark.parametrize(
    ("rank", "change", "verdict"),
    [
        (2.0, 0.0, "supported"),
        (1.52, 0.48, "supported"),
        (2.48, -0.48, "supported"),
        (1.5, 0.0, "cannot_tell"),
        (1.48, 0.0, "contradicted"),
        (2.5, 0.0, "cannot_tell"),
        (2.52, 0.0, "contradicted"),
        (2.0, 0.5, "cannot_tell"),
        (2.0, 0.52, "contradicted"),
        (2.0, -0.5, "cannot_tell"),
        (2.0, -0.52, "contradicted"),
    ],
)
def test_about_two_and_whatever_the_size(rank: float, change: float, verdict: str) -> None:
    found = judged([point(2, around(rank - change)), point(8, around(rank))], around(change))
    assert (found.verdict, found.estimate.value, found.null.value) == (verdict, pytest.approx(rank), 4.0)
    assert f"{change:+.2f}" in found.why
    assert "from the smallest to the largest R on the same prompts (20); 0.50 [0.49, 0.51] of unrelated" in found.why


def test_both_numbers_hold_together() -> None:
    """2.24 standard errors to either side: [1.55, 2.45] alone would do."""
    wide = [point(2, around(2.0)), point(8, between(1.55, 2.45))]
    assert judged(wide, around(0.0)).verdict == "cannot_tell"
    assert judged([*wide[:1], point(8, between(1.57, 2.43))], around(0.0)).verdict == "supported"


@pytest.mark.parametrize(
    ("points", "change", "words"),
    [
        ([point(8, around(2.0))], None, "there is one group size"),
        ([point(2, UNKNOWN), point(8, around(2.0))], around(0.0), "there is one group size"),
        ([point(2, around(2.0)), point(8, around(2.0))], None, "no change is stated"),
        ([point(2, around(2.0)), point(8, around(2.0))], UNKNOWN, "no change is stated"),
        ([point(2, UNKNOWN)], None, "No group is live."),
        ([], None, "No group has such a matrix."),
    ],
)
def test_one_size_tells_nothing_of_sizes(points: list, change: Estimate | None, words: str) -> None:
    found = judged(points, change)
    assert found.verdict == "cannot_tell"
    assert words in found.why


def test_one_size_with_another_rank_contradicts() -> None:
    assert judged([point(8, around(3.0))], None).verdict == "contradicted"


def collected(points: list, matrix: str, **more: list) -> Collected:
    """Twelve groups whose rank does not depend on the size, and a step before that says something else."""
    own = [
        GroupRank(
            step=step,
            advantage=ADVANTAGE,
            matrix=name,
            group_size=size,
            group_id=f"g{group}",
            rank=2 + group / 100 + off,
            most=32,
        )
        for step, name, off in ((1, matrix, 1.0), (2, matrix, 0.0), (2, "other", 1.0))
        for size in (2, 4, 8)
        for group in range(12)
    ]
    twist = [replace(one, rank=one.rank + 0.01 * int(one.group_id[1:]) * (one.group_size == 8)) for one in own]
    (kind,) = more
    return Collected(group_ranks=twist, **{kind: [*points, *more[kind]]})


CURVE = [point(8, around(2.0), step=2), point(2, around(2.0), step=2), point(8, around(9.0), step=1)]


def test_rollouts_are_looked_at_at_the_last_step_and_by_size() -> None:
    evidence = Given(found={"gradients": {"hidden": collected(CURVE, "rollout", curve=[])}})
    found = ranks.of_rollouts("hidden")(evidence)
    assert [(one.step, one.group_size) for one in found.points] == [(2, 2), (2, 8)]
    assert found.change.value == pytest.approx(np.mean([0.01 * group for group in range(12)]))
    assert two_whatever_the_size(ranks.of_rollouts("hidden"), evidence).steps == (2,)


def test_drawn_tokens_have_no_change() -> None:
    def found(*seen: float) -> RankEvidence:
        tokens = [
            point(size, around(2.0), step=2, kind=TokenRankPoint, method="exact", num_rows=around(9), frac_seen=share)
            for size, share in zip((2, 8), seen, strict=True)
        ]
        return ranks.of_tokens("token")(
            Given(found={"gradients": {"token": collected([], "token", token_curve=tokens)}})
        )

    assert found(1.0, 1.0).change is not None
    drawn = found(1.0, 0.25)
    assert (drawn.change, drawn.frac_seen) == (None, 0.25)
    assert judged(drawn.points, drawn.change, drawn.frac_seen).why.endswith("25.0 % of the tokens are rows.")
    assert ranks.of_tokens("token")(Given(found={"gradients": {"token": Collected()}})).points == []


def weights(*names: str) -> Given:
    points = [
        point(size, around(rank), step=2, kind=WeightRankPoint, tensor=name, shape=name and (8, 8))
        for rank, name in enumerate((None, *names), start=2)
        for size in (2, 8)
    ]
    return Given(found={"gradients": {"weight": collected(points, ALL_WEIGHTS, weight_curve=[])}})


def test_weights_are_all_of_them_or_the_head() -> None:
    evidence = weights("model.embed_tokens.weight", "lm_head.weight", "model.layers.0.mlp.down_proj.weight")
    everything, head = ranks.of_weights(evidence), ranks.of_head(evidence)
    assert [one.tensor for one in everything.points] == [None, None]
    assert everything.change is not None
    assert [one.tensor for one in head.points] == ["lm_head.weight"] * 2
    assert ranks.of_head(weights("gpt_neox.layers.0", "embed_out.weight")).points[0].tensor == "embed_out.weight"


@pytest.mark.parametrize("names", [(), ("model.embed_tokens.weight", "model.layers.0.mlp.down_proj.weight")])
def test_a_tied_head_is_no_matrix_of_its_own(names: tuple[str, ...]) -> None:
    with pytest.raises(InputError, match="No weight is the output head alone: it is tied to the embedding"):
        ranks.of_head(weights(*names))


def advantage_run(lengths: tuple[int, ...], num_groups: int = 12, size: int = 4) -> Given:
    """Rewards 1, 0, 1, 0; the completions of a group have as many tokens as is said, in turn."""
    groups = []
    for group in range(num_groups):
        made = group_of([float((one + 1) % 2) for one in range(size)], step=1, prompt=f"p{group}")
        rollouts = [
            replace(one, completion_ids=(5,) * lengths[(one.sample // 2) % len(lengths)]) for one in made.rollouts
        ]
        groups.append(replace(made, rollouts=tuple(rollouts)))
    return Given(run=run_of(*groups))


def test_advantages_of_equal_lengths_have_rank_one_at_every_size() -> None:
    found = ranks.of_advantages(advantage_run((3,)))
    assert [one.group_size for one in found.points] == [2, 4]
    assert [one.effective_rank.value for one in found.points] == pytest.approx([1.0, 1.0])
    assert found.change.value == pytest.approx(0.0, abs=1e-6)


def test_advantages_of_two_lengths_have_the_rank_of_their_matrix() -> None:
    found = ranks.of_advantages(advantage_run((3, 1)))
    values = np.linalg.svd(0.5 * np.array([[1, 1, 1], [-1, -1, -1], [1, 0, 0], [-1, 0, 0]]), compute_uv=False)[:2]
    share = values / values.sum()
    assert found.points[-1].effective_rank.value == pytest.approx(np.exp(-np.sum(share * np.log(share))))
    assert found.change.value > 0


def test_advantages_need_tokens_and_groups_of_two() -> None:
    with pytest.raises(InputError, match="number of tokens is not known"):
        ranks.of_advantages(Given())
    alone = two_whatever_the_size(ranks.of_advantages, advantage_run((3,), size=1))
    assert alone.verdict == "cannot_tell"


def credit(ratios: list[float], *, advantages: tuple[str, ...] = ("logged", ADVANTAGE)) -> Given:
    own = [
        GroupRank(step=3, advantage=name, matrix=matrix, group_size=4, group_id=f"g{group}", rank=rank, most=32)
        for group, ratio in enumerate(ratios)
        for matrix in (ALL_WEIGHTS, "lm_head.weight")
        for name, rank in (("logged", 5.0 * ratio), (ADVANTAGE, 5.0))
        if name in advantages
    ]
    found = Collected(group_ranks=own, steps=[SimpleNamespace(step=3)])
    return Given(found={"credited": ("the logged advantages of tokens", found)})


@pytest.mark.parametrize(
    ("ratios", "verdict"),
    [
        ([1.2, 1.3, 1.25, 1.22, 1.28, 1.24], "supported"),
        ([1.0, 1.3, 0.9, 1.1, 0.95, 1.2], "cannot_tell"),
        ([1.0, 1.01, 0.99, 1.02, 1.0, 1.01], "contradicted"),
        ([0.8, 0.7, 0.75, 0.72, 0.78, 0.74], "contradicted"),
        ([1.5, 1.6], "cannot_tell"),
    ],
)
def test_credit_for_tokens_is_a_ratio_paired_by_group(ratios: list[float], verdict: str) -> None:
    found = higher_with_token_credit(credit(ratios))
    assert (found.verdict, found.steps, found.null.value) == (verdict, (3,), 1.0)
    assert found.estimate.value == pytest.approx(np.mean(ratios))
    assert f"with the outcome's, on {len(ratios)} groups" in found.why


def test_credit_needs_groups_that_live_under_both() -> None:
    found = higher_with_token_credit(credit([1.0, 1.2], advantages=("logged",)))
    assert (found.verdict, found.why) == ("cannot_tell", "No group has a gradient under both advantages.")
