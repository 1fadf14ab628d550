"""A step's gradient by kinds of tokens, corrections and turns, as tables. Letters: w = p_policy / p_sampler."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.table import Table

from gradscope.render.terminal.answer import evenly
from gradscope.render.terminal.layout import Column, add_row, new_table
from gradscope.render.words.escape import cell, plain
from gradscope.render.words.numbers import (
    FACTS,
    IN_THE_FILES,
    UNDEFINED,
    Footnotes,
    format_estimate,
    format_number,
)
from gradscope.results.ranks.token_parts import (
    CorrectionEffect,
    EntropyChange,
    LogprobChange,
    TokenKind,
    TokenKl,
    TurnShare,
)

_ALONE = "too few groups have such tokens, or it is at the end of its range"
_ENTROPIES = {"top_fifth": "top fifth", "rest": "rest", None: "any"}


def token_kinds_table(kinds: Sequence[TokenKind], notes: Footnotes) -> Table:
    """The last step: how many tokens of each kind there are, their energy, and their part of the gradient."""
    step = max(kind.step for kind in kinds)
    columns: list[Column] = [
        (f"step {step}\nadvantage", "left"),
        ("probability", "left"),
        ("entropy", "left"),
        ("tokens", "right"),
        ("energy", "right"),
        ("along the\ngradient", "left"),
        ("cosine", "right"),
    ]
    table = new_table(columns)
    for kind in (kind for kind in kinds if kind.step == step):
        add_row(
            table,
            {"positive": "above 0", "negative": "below 0", None: "any"}[kind.sign],
            "any" if kind.probability is None else f"{kind.probability[0]:g} to {kind.probability[1]:g}",
            _ENTROPIES[kind.entropy],
            format_estimate(kind.frac_tokens, notes, "share", interval=False),
            format_estimate(kind.energy_share, notes, "share", interval=False),
            format_estimate(kind.gradient_share, notes, "rank", alone=_ALONE),
            format_estimate(kind.cosine, notes, "rank", interval=False),
        )
    notes.remark(IN_THE_FILES)
    return _said_of_other_steps(table, kinds, step, notes)


def corrections_table(effects: Sequence[CorrectionEffect], notes: Footnotes) -> Table:
    """The last step under each correction for the engine that sampled, beside none and beside whole ratios."""
    step = max(effect.step for effect in effects)
    columns: list[Column] = [
        (f"step {step}\ncorrection", "left"),
        ("kept", "right"),
        ("effec-\ntive", "right"),
        ("f^2 - 1", "right"),
        ("norm", "left"),
        ("cosine,\nuncorrected", "left"),
        ("cosine,\nunbiased", "right"),
    ]
    table = new_table(columns)
    for effect in (effect for effect in effects if effect.step == step):
        add_row(
            table,
            effect.correction,
            format_estimate(effect.kept, notes, "share", interval=False),
            format_estimate(effect.ess, notes, "share", interval=False),
            format_estimate(effect.chi2, notes, "share", interval=False),
            format_estimate(effect.norm_ratio, notes, "rank", interval=False),
            format_estimate(effect.cosine, notes, "share", alone=_ALONE),
            format_estimate(effect.unbiased_cosine, notes, "share", interval=False),
        )
    notes.remark("f is what a correction multiplies the gradient of a token, or of a whole sequence, by")
    notes.remark(IN_THE_FILES)
    return _said_of_other_steps(table, effects, step, notes)


def entropy_table(changes: Sequence[EntropyChange], notes: Footnotes) -> Table:
    """Which way each step moves the entropy of its tokens, what became of it, and what was logged."""
    columns: list[Column] = [
        ("step", "right"),
        ("entropy", "right"),
        ("for a unit\nof lr", "right"),
        ("cosine with\nthe update", "left"),
        ("covariance", "right"),
        ("by the next\ncheckpoint", "right"),
        ("logged\nchange", "right"),
    ]
    table = new_table(columns)
    for change in evenly(changes):
        known = change.logged is not None and change.logged_next is not None
        add_row(
            table,
            str(change.step),
            format_estimate(change.entropy, notes, "share", interval=False),
            format_estimate(change.rate, notes, "norm", interval=False),
            format_estimate(change.cosine, notes, "rank", alone=_ALONE),
            format_estimate(change.covariance, notes, "gap", interval=False),
            format_estimate(change.measured, notes, "gap", interval=False),
            format_number((change.logged_next or 0.0) - (change.logged or 0.0), "gap") if known else UNDEFINED,
        )
    notes.remark("Logged change: from the step to the next one, on other prompts")
    notes.remark(FACTS)
    notes.remark(IN_THE_FILES)
    return table


def kl_tables(kls: Sequence[TokenKl], notes: Footnotes) -> Iterator[Table]:
    """Both estimates of the KL at each step, then the tokens of the last that are furthest from the reference."""
    means = new_table([("step", "right"), ("k1", "right"), ("k3", "left"), ("in the top\nhundredth", "right")])
    for kl in evenly(kls):
        add_row(
            means,
            str(kl.step),
            format_estimate(kl.k1, notes, "norm", interval=False),
            format_estimate(kl.k3, notes, "norm", alone=_ALONE),
            format_estimate(kl.top_share, notes, "share", interval=False),
        )
    yield means
    columns: list[Column] = [
        (f"step {kls[-1].step}\nrollout", "left"),
        ("token", "right"),
        ("text", "left"),
        ("log p", "right"),
        ("reference", "right"),
        ("k1", "right"),
        ("k3", "right"),
    ]
    tokens = new_table(columns)
    for token in kls[-1].top:
        numbers = (token.logprob, token.reference, token.k1, token.k3)
        add_row(
            tokens,
            cell(f"{plain(token.group_id, limit=12)} #{token.sample}"),
            str(token.position + 1),
            cell(repr(token.text), limit=16),
            *(format_number(value, "norm") for value in numbers),
        )
    notes.remark(FACTS)
    notes.remark(IN_THE_FILES)
    yield tokens


def turns_table(turns: Sequence[TurnShare], notes: Footnotes) -> Table:
    """The part of each turn in the gradient of the last step."""
    step = max(turn.step for turn in turns)
    columns: list[Column] = [
        (f"step {step}\nturn", "left"),
        ("rollouts", "right"),
        ("tokens", "right"),
        ("along the\ngradient", "left"),
        ("cosine", "left"),
    ]
    table = new_table(columns)
    for turn in (turn for turn in turns if turn.step == step):
        add_row(
            table,
            f"{turn.turn} and later" if turn.and_later else str(turn.turn),
            str(turn.num_rollouts),
            format_estimate(turn.frac_tokens, notes, "share", interval=False),
            format_estimate(turn.gradient_share, notes, "rank", alone=_ALONE),
            format_estimate(turn.cosine, notes, "rank", alone=_ALONE),
        )
    notes.remark(IN_THE_FILES)
    return _said_of_other_steps(table, turns, step, notes)


def logprobs_table(changes: Sequence[LogprobChange], notes: Footnotes) -> Table:
    """How far each step's tokens moved, by sign of their advantage, from its weights to the next checkpoint."""
    columns: list[Column] = [
        ("step", "right"),
        ("updates", "left"),
        ("advan-\ntage > 0", "right"),
        ("advan-\ntage < 0", "right"),
        ("advan-\ntage 0", "right"),
        ("> 0 less\n< 0", "right"),
        ("of like\nprobability", "left"),
    ]
    table = new_table(columns)
    for change in evenly(changes):
        means = (change.positive, change.negative, change.neither)
        add_row(
            table,
            str(change.step),
            f"{change.first} to {change.last}",
            *(format_estimate(mean, notes, "share", interval=False) for mean in (*means, change.difference)),
            format_estimate(change.matched, notes, "share", alone=_ALONE),
        )
    notes.remark("Mean change of log p of the step's own tokens, in nats; on average a policy's own tokens fall")
    notes.remark(IN_THE_FILES)
    return table


def _said_of_other_steps(
    table: Table, parts: Sequence[TokenKind | CorrectionEffect | TurnShare], step: int, notes: Footnotes
) -> Table:
    others = {part.step for part in parts} - {step}
    if others:
        more = f"{len(others)} other step{'s are' if len(others) > 1 else ' is'}"
        notes.remark(f"Parts of a step are those of step {step}; {more} in the JSON and the CSV")
    return table
