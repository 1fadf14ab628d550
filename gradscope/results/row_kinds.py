"""Which matrix `rank` looks at, and at which step: apart from its records, which no other command needs to load."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

RowKind = Literal["rollout", "group", "token", "weight", "hidden", "logit", "advantage", "update"]
"""Which matrix: rows of ``rollout``, ``group`` and ``token`` are gradients by all parameters, those of ``weight`` the
outputs of one matrix's; ``hidden`` and ``logit`` are gradients by the last hidden state and by the logits, of tokens
and of rollouts; ``advantage`` is the advantages themselves, rollouts by tokens; ``update`` the change of a weight."""


class OfStep(Struct, frozen=True, kw_only=True):
    """A record of one step."""

    step: int  # the trainer's step


class OfAdvantage(OfStep, frozen=True, kw_only=True):
    """A record of one step under one advantage."""

    advantage: str  # ``logged``, or the formulation
