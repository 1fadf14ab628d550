"""Which tokens hold the energy, from made-up groups."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from gradscope.diagnostics.claims.claim import Judgement
from gradscope.diagnostics.claims.entropy import NO_TOKENS
from gradscope.diagnostics.claims.tokens import MOST, holds_most, moves_as_asked
from gradscope.diagnostics.rank.collected import Collected
from gradscope.diagnostics.rank.tokens.followed_tokens import FollowedTokens
from gradscope.diagnostics.rank.tokens.kind_energy import UNDECIDED, UNLIKELY, KindEnergy
from gradscope.diagnostics.rank.tokens.token_changes import TokenChange
from gradscope.errors import InputError
from gradscope.metrics.gram.part_sums import ratio_over_groups
from gradscope.metrics.sampler.token_cells import TokenCell
from tests.diagnostics.claims.made_up_evidence import Given
from tests.diagnostics.rank.tokens.made_up_parts import made_up


def of_step(shares: list[float], *, step: int = 1, kind: TokenCell = UNDECIDED, scale: float = 1.0) -> KindEnergy:
    """Groups of energies 1, 2, ... of which the kind has these shares, and a fifth of ten tokens each."""
    energy = scale * np.arange(1.0, len(shares) + 1)
    return KindEnergy(
        step=step,
        kind=kind,
        tokens=np.full(len(shares), 2.0),
        all_tokens=np.full(len(shares), 10.0),
        energy=energy * shares,
        all_energy=energy,
    )


def judged(*energies: KindEnergy, kind: TokenCell = UNDECIDED) -> Judgement:
    return holds_most(kind)(Given(found={"gradients": {"token": Collected(energies=list(energies))}}))


@pytest.mark.parametrize(
    ("shares", "verdict"),
    [
        ([0.9, 0.92, 0.88, 0.91], "supported"),
        ([0.52, 0.53, 0.51, 0.52], "supported"),
        ([0.3, 0.9, 0.5, 0.6], "cannot_tell"),
        ([0.48, 0.47, 0.49, 0.48], "contradicted"),
        ([0.9, 0.9], "cannot_tell"),
    ],
)
def test_most_is_half_of_the_energy(shares: list[float], verdict: str) -> None:
    found = judged(of_step(shares), of_step([0.0] * len(shares), kind=UNLIKELY))
    assert MOST == 0.5
    assert found.verdict == verdict
    weights = np.arange(1.0, len(shares) + 1)
    assert found.estimate == ratio_over_groups(weights * shares, weights)
    assert found.null.value == pytest.approx(0.2)
    assert found.steps == (1,)


def test_groups_of_all_steps_count_by_their_energy() -> None:
    found = judged(of_step([0.9] * 3), of_step([0.1, 0.11, 0.12], step=6, scale=100.0))
    assert found.verdict == "contradicted"
    assert found.estimate.num_units == 6
    assert found.steps == (1, 6)
    assert (
        found.why == "Such tokens are 20.0 % of those of 6 groups at 2 steps; groups weigh as much as they have energy."
    )


def test_without_such_tokens_or_steps_nobody_can_tell() -> None:
    none = judged(of_step([0.0] * 4, kind=UNLIKELY), kind=UNLIKELY)
    assert (none.verdict, none.estimate.value) == ("cannot_tell", 0.0)
    assert none.why == "No token of probability below 0.25 has a gradient."
    assert judged().why == "No step has a gradient and a logged advantage of every token."
    with pytest.raises(InputError, match="nobody asked"):
        holds_most(UNDECIDED)(Given(no_gradients="nobody asked"))


def moved(slope: float, *, seed: int = 0, signs: bool = True, missing: dict[int, str] | None = None) -> Judgement:
    """Two steps whose tokens moved by as much as their advantage, plus noise."""
    rng, weighed, changes = np.random.default_rng(seed), {}, {}
    for step in (1, 6):
        found = made_up(step, num_groups=8).found
        advantages = rng.choice([-1.0, 1.0], len(found.tokens.groups)) if signs else np.ones(len(found.tokens.groups))
        weighed[step] = dataclasses.replace(found, tokens=dataclasses.replace(found.tokens, advantages=advantages))
        own = slope * advantages + 0.1 * found.tokens.logprobs + 0.1 * rng.normal(size=len(advantages))
        changes[step] = TokenChange(first=step - 1, last=step + 4, logprobs=own, entropies=0.0 * own)
    given = FollowedTokens(weighed=weighed, changes={} if missing else changes, missing=missing or {})
    return moves_as_asked(Given(found={"followed_tokens": given}))


@pytest.mark.parametrize(("slope", "verdict"), [(0.2, "supported"), (0.0, "cannot_tell"), (-0.2, "contradicted")])
def test_tokens_move_as_asked_where_like_ones_part_by_their_advantage(slope: float, verdict: str) -> None:
    found = moved(slope)
    assert (found.verdict, found.null.value, found.steps) == (verdict, 0.0, (1, 6))
    assert found.estimate.value == pytest.approx(2 * slope, abs=0.03)
    assert "over 288 tokens of 16 groups; updates on other prompts lie between the two" in found.why


def test_where_no_tokens_can_be_compared_nobody_can_tell() -> None:
    assert moved(0.2, signs=False).why == "No tokens of positive and of negative advantage are of like probability."
    assert moved(0.2, missing={1: "no weights"}).why == "No weights."
    none = FollowedTokens(weighed={}, changes={}, missing={})
    found = moves_as_asked(Given(found={"followed_tokens": none}))
    assert (found.verdict, found.why) == ("cannot_tell", f"{NO_TOKENS}.")
    with pytest.raises(InputError, match="nobody asked"):
        moves_as_asked(Given(no_gradients="nobody asked"))
