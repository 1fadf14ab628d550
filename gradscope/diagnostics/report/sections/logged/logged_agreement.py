"""Sampler and trainer where the log holds the log-probabilities of both: sentences, course and worst tokens."""

from __future__ import annotations

import math

from gradscope.catalog.lookup import metric
from gradscope.metrics.sampler.mismatch import NAMES
from gradscope.results.logged.mismatch import MismatchNumbers, SamplerMismatch
from gradscope.results.report import Chart, Column, ReportSection, ReportTable, Series, Severity
from gradscope.say import percent, with_interval

NAME = "agreement"
QUESTION = "Do sampler and trainer log-probabilities agree?"
LARGE_GAP = 0.01
"""A mean gap of a hundredth is what bfloat16 kernels of two engines differ by; float32 gives 1e-6."""
WRONG_SIDE = (
    "Find out which side is off: the sampler's weights may be stale, its precision or kernels other, or the "
    "temperature applied on one side only. Until then, correct with importance sampling."
)
"""What to do about a large gap."""

_FEW = 0.5
_IDENTICAL = (
    "The trainer's log-probabilities are the sampler's to the last bit at all of {}: it took them over (as in "
    "verl's bypass mode), or both are one engine."
)
_SHARES = ("token_ess", "sequence_ess", "frac_beyond_2", "frac_beyond_clip", "frac_clipped")


def logged_agreement(mismatch: SamplerMismatch, overall: MismatchNumbers) -> ReportSection:
    """The section, of a log that has tokens to compare."""
    return ReportSection(
        name=NAME,
        question=QUESTION,
        findings=(*_findings(mismatch, overall), *_set_aside(mismatch)),
        severity=_severity(mismatch, overall),
        meaning=f"{metric('logprob_gap').meaning} {metric('sampler.sequence_ess').meaning}",
        next_step=_next_step(mismatch, overall),
        charts=_charts(mismatch),
        tables=(_whole(overall), *_steps(mismatch), *_tokens(mismatch)),
    )


def _findings(mismatch: SamplerMismatch, overall: MismatchNumbers) -> tuple[str, ...]:
    if mismatch.is_identical:
        return (_IDENTICAL.format(_counted(overall.num_tokens, "token")),)
    divergences = [
        f"{title} {with_interval(estimate, '.2g')}"
        for title, estimate in (
            ("KL a token", overall.kl_k3),
            ("chi-square of tokens", overall.chi2_token),
            ("of sequences", overall.chi2_sequence),
        )
        if estimate.is_defined
    ]
    clipped = overall.frac_clipped
    return (
        f"Over {_counted(overall.num_tokens, 'token')} of {_counted(overall.num_sequences, 'sequence')} the logged "
        f"log-probabilities of sampler and trainer differ by {with_interval(overall.logprob_gap, '.2g')} a token. "
        f"Weighed by their ratios, the tokens are worth {with_interval(overall.token_ess, percent)} of as many, and "
        f"the sequences {with_interval(overall.sequence_ess, percent)}.",
        f"The ratio is outside [0.8, 1.2] at {with_interval(overall.frac_beyond_clip, _small)} of tokens and beyond a "
        f"factor of two at {with_interval(overall.frac_beyond_2, _small)}"
        + (f"; PPO's clip would take the gradient of {with_interval(clipped, _small)}." if clipped.is_defined else "."),
        *((f"Divergences of the trainer from the sampler: {', '.join(divergences)}.",) if divergences else ()),
    )


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"


def _small(share: float) -> str:
    """A share in per cent, however small."""
    return f"{100 * share:.2g} %"


def _set_aside(mismatch: SamplerMismatch) -> tuple[str, ...]:
    reasons = [f"{number:,} with {reason}" for reason, number in mismatch.set_aside.items()]
    return (f"Rows set aside: {', '.join(reasons)}.",) if reasons else ()


def _severity(mismatch: SamplerMismatch, overall: MismatchNumbers) -> Severity:
    if mismatch.is_identical or overall.logprob_gap.value is None:
        return "unknown"
    if overall.logprob_gap.value > LARGE_GAP:
        return "problem"
    return "look" if _is_worth_few(overall) else "fine"


def _is_worth_few(overall: MismatchNumbers) -> bool:
    return overall.sequence_ess.value is not None and overall.sequence_ess.value < _FEW


def _next_step(mismatch: SamplerMismatch, overall: MismatchNumbers) -> str:
    if mismatch.is_identical:
        return "To compare them, have the trainer compute its own before the first update."
    if (overall.logprob_gap.value or 0.0) > LARGE_GAP:
        return WRONG_SIDE
    if _is_worth_few(overall):
        return (
            "Tokens agree and sequences do not: correct token by token, or mask sequences, for weights of whole "
            "sequences rest on few of them."
        )
    return "Nothing to do: the sampler's policy is the one that was updated."


def _charts(mismatch: SamplerMismatch) -> tuple[Chart, ...]:
    if len(mismatch.by_step) < 2 or mismatch.is_identical:
        return ()
    places = tuple(row.step or 0 for row in mismatch.by_step)
    shares = [
        Series(name=name, values=tuple(getattr(row, field).value for row in mismatch.by_step))
        for name, field in (("sequences", "sequence_ess"), ("tokens", "token_ess"))
    ]
    gaps = Series(name="mean gap", values=tuple(row.logprob_gap.value for row in mismatch.by_step))
    return (
        Chart(title="Mean gap of a token", kind="lines", places=places, series=(gaps,), y_label="nats a token"),
        Chart(
            title="Effective share",
            kind="lines",
            places=places,
            series=tuple(shares),
            y_label="effective share",
            y_range=(0.0, 1.0),
        ),
    )


def _whole(overall: MismatchNumbers) -> ReportTable:
    entries = [(name, metric(name if name == "logprob_gap" else f"sampler.{name}")) for name in NAMES]
    return ReportTable(
        caption="The whole log; intervals resample prompts, w = p_trainer / p_sampler",
        columns=(Column(title="what"), Column(title="value [95 % interval]", style="norm"), Column(title="formula")),
        rows=tuple((entry.title, getattr(overall, name), entry.formula) for name, entry in entries),
    )


def _steps(mismatch: SamplerMismatch) -> tuple[ReportTable, ...]:
    if len(mismatch.by_step) < 2:
        return ()
    return (
        ReportTable(
            caption="Each step, as in the table above; all intervals are in the JSON document",
            by_step=True,
            columns=(
                Column(title="step", style="count"),
                Column(title="tokens", style="count"),
                *(
                    Column(title=title, style="share" if name in _SHARES else "norm")
                    for name, title in (
                        ("token_ess", "effective tokens"),
                        ("sequence_ess", "effective sequences"),
                        ("logprob_gap", "mean gap"),
                        ("kl_k1", "k1"),
                        ("kl_k3", "k3"),
                        ("chi2_token", "chi2, tokens"),
                        ("chi2_sequence", "chi2, sequences"),
                        ("frac_beyond_clip", "beyond clip"),
                        ("frac_beyond_2", "beyond 2"),
                    )
                ),
            ),
            rows=tuple(
                (
                    row.step,
                    row.num_tokens,
                    *(row.token_ess, row.sequence_ess, row.logprob_gap),
                    *(row.kl_k1.value, row.kl_k3.value, row.chi2_token.value, row.chi2_sequence.value),
                    *(row.frac_beyond_clip.value, row.frac_beyond_2.value),
                )
                for row in mismatch.by_step
            ),
        ),
    )


def _tokens(mismatch: SamplerMismatch) -> tuple[ReportTable, ...]:
    if not mismatch.worst:
        return ()
    several = any(token.sequence for token in mismatch.worst)
    places = ("step", "row", *(("sequence",) if several else ()), "position")
    return (
        ReportTable(
            caption="The tokens that differ most: row of the step and position in the completion from 0, "
            "log-probabilities of both, w",
            columns=(
                *(Column(title=name, style="count") for name in places),
                *(Column(title=name, style="norm") for name in ("sampler", "trainer", "w")),
            ),
            rows=tuple(
                (
                    *(getattr(token, place) for place in places),
                    *(token.sampler, token.trainer, math.exp(min(token.trainer - token.sampler, 700.0))),
                )
                for token in mismatch.worst
            ),
        ),
    )
