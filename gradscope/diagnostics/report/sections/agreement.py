"""Agreement: of sampler and trainer, of the log with what is recomputed from it, and of the run with papers' claims.

Where the log holds the log-probabilities of both, they are compared without a model. Where it holds the sampler's and
gradients were recomputed, these are compared with the recomputed ones. Else what the trainer logged of it is shown.

Claims are judged by what the report has computed already. Those about rows of tokens, about weights and about hidden
states are left to `gradscope claims`.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from operator import methodcaller
from statistics import fmean

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from gradscope.catalog.lookup import metric
from gradscope.copies import copy_of
from gradscope.diagnostics.claims.evidence import Evidence
from gradscope.diagnostics.claims.measure import claims_of
from gradscope.diagnostics.claims.registry import CLAIMS
from gradscope.diagnostics.inputs.steps import MeasuredStep
from gradscope.diagnostics.logged.tokens import NO_SAMPLER
from gradscope.diagnostics.report.sections.inputs import ReportInputs, Unavailable, missing_part, missing_section
from gradscope.findings.rank_parts import correction_findings
from gradscope.metrics.sampler import NAMES
from gradscope.render.views.view import Column, entry, lines_over, table_of_cells, tabulate
from gradscope.results.logged import MismatchNumbers, SamplerMismatch
from gradscope.results.norms import ReplayReport
from gradscope.results.report import ReportSection, ReportTable, SeriesKind, Severity
from gradscope.results.verdicts import ClaimsReport
from gradscope.rollouts.run import Run
from gradscope.say import counted, in_two_digits, number, percent, with_interval, without_numbers

LARGE_GAP = 0.01  # a mean gap of a hundredth is what bfloat16 kernels of two engines differ by; float32 gives 1e-6
FAR_GAP = 0.05  # mixtures of experts in bfloat16 stay below this; stale weights or another temperature do not
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


def logged_agreement(mismatch: SamplerMismatch, overall: MismatchNumbers) -> ReportSection:
    """The section, of a log that has tokens to compare."""
    reasons = [f"{number:,} with {reason}" for reason, number in mismatch.set_aside.items()]
    severity, advice = _verdict(mismatch, overall)
    rows, has_sequences = mismatch.by_step, any(token.sequence for token in mismatch.worst)
    steps = [] if mismatch.is_identical else [row.step or 0 for row in rows]
    gaps = {"mean gap": [row.logprob_gap.value for row in rows]}
    shares = {"sequences": [row.sequence_ess.value for row in rows], "tokens": [row.token_ess.value for row in rows]}
    return ReportSection(
        name="agreement",
        findings=(*_findings(mismatch, overall), *((f"Rows set aside: {', '.join(reasons)}.",) if reasons else ())),
        severity=severity,
        meaning=f"{metric('logprob_gap').meaning} {metric('sampler.sequence_ess').meaning}",
        next_step=advice,
        charts=(
            *lines_over(steps, "Mean gap of a token", gaps, y_label="nats a token"),
            *lines_over(steps, "Effective share", shares, y_label="effective share", y_range=(0.0, 1.0)),
        ),
        tables=(
            *tabulate(
                "The whole log; intervals resample prompts, w = p_trainer / p_sampler",
                (
                    Column("what", lambda row: row[1].title),
                    Column("value [95 % interval]", lambda row: getattr(overall, row[0]), "norm"),
                    Column("formula", lambda row: row[1].formula),
                ),
                [(name, metric(name if name == "logprob_gap" else f"sampler.{name}")) for name in NAMES],
            ),
            *tabulate(
                "Each step, as in the table above; all intervals are in the JSON document",
                _BY_STEP,
                rows if len(rows) > 1 else (),
                by_step=True,
            ),
            *tabulate(
                "The tokens that differ most: row of the step and position in the completion from 0, log-probabilities "
                "of both, w",
                (
                    *(
                        Column(name, name, "count")
                        for name in ("step", "row", *["sequence"] * has_sequences, "position")
                    ),
                    *(Column(name, name, "norm") for name in ("sampler", "trainer")),
                    Column("w", lambda token: math.exp(min(token.trainer - token.sampler, 700.0)), "norm"),
                ),
                mismatch.worst,
            ),
        ),
    )


_BY_STEP = (
    Column("step", "step", "count"),
    Column("tokens", "num_tokens", "count"),
    Column("effective tokens", "token_ess", "share"),
    Column("effective sequences", "sequence_ess", "share"),
    Column("mean gap", "logprob_gap", "norm"),
    Column("k1", "kl_k1.value", "norm"),
    Column("k3", "kl_k3.value", "norm"),
    Column("chi2, tokens", "chi2_token.value", "norm"),
    Column("chi2, sequences", "chi2_sequence.value", "norm"),
    Column("beyond clip", "frac_beyond_clip.value", "share"),
    Column("beyond 2", "frac_beyond_2.value", "share"),
)


def _findings(mismatch: SamplerMismatch, overall: MismatchNumbers) -> tuple[str, ...]:
    if mismatch.is_identical:
        return (_IDENTICAL.format(counted(overall.num_tokens, "token")),)
    named = {
        "KL a token": overall.kl_k3,
        "chi-square of tokens": overall.chi2_token,
        "of sequences": overall.chi2_sequence,
    }
    defined = {title: divergence for title, divergence in named.items() if divergence.is_defined}
    divergences = [f"{title} {with_interval(divergence, '.2g')}" for title, divergence in defined.items()]
    shares = (overall.frac_beyond_clip, overall.frac_beyond_2, overall.frac_clipped)
    beyond_clip, beyond_2, *clipped = [with_interval(share, in_two_digits) for share in shares if share.is_defined]
    by_ppo = f"; PPO's clip would take the gradient of {clipped[0]}" if clipped else ""
    return (
        f"Over {counted(overall.num_tokens, 'token')} of {counted(overall.num_sequences, 'sequence')} the logged "
        f"log-probabilities of sampler and trainer differ by {with_interval(overall.logprob_gap, '.2g')} a token. "
        f"Weighed by their ratios, the tokens are worth {with_interval(overall.token_ess, percent)} of as many, and "
        f"the sequences {with_interval(overall.sequence_ess, percent)}.",
        f"The ratio is outside [0.8, 1.2] at {beyond_clip} of tokens and beyond a factor of two at {beyond_2}{by_ppo}.",
        *((f"Divergences of the trainer from the sampler: {', '.join(divergences)}.",) if divergences else ()),
    )


def _verdict(mismatch: SamplerMismatch, overall: MismatchNumbers) -> tuple[Severity, str]:
    gap, worth = overall.logprob_gap.value, overall.sequence_ess.value
    if mismatch.is_identical:
        return "unknown", "To compare them, have the trainer compute its own before the first update."
    if (gap or 0.0) <= LARGE_GAP and worth is not None and worth < _FEW:
        return ("unknown" if gap is None else "look"), (
            "Tokens agree and sequences do not: correct token by token, or mask sequences, for weights of whole "
            "sequences rest on few of them."
        )
    severity: Severity = "unknown" if gap is None else _severity(gap)
    return severity, _ADVICE_ON_GAP[severity]


def agreement_section(inputs: ReportInputs) -> ReportSection:
    """Sampler against logged or recomputed log-probabilities by step, or the trainer's own metrics of that."""
    gaps: dict[int, NDArray[np.float64]] = {}  # step -> trainer minus sampler, of every token
    if inputs.grams:
        from gradscope.diagnostics.rank.tokens import sampler_gaps

        for gram in inputs.grams:
            pairs = sampler_gaps(inputs.run, gram)
            if pairs and (gap := np.concatenate([gap for _, gap in pairs])).size:
                gaps[gram.step] = gap
    if inputs.logged.sampler.overall is not None:
        section = logged_agreement(inputs.logged.sampler, inputs.logged.sampler.overall)
        if not gaps:
            return section
        extra = _compared(gaps, inputs)
        return replace(section, findings=(*section.findings, *extra.findings), tables=(*section.tables, *extra.tables))
    if gaps:
        return _compared(gaps, inputs)
    if (as_logged := agreement_as_logged(inputs.run)) is not None:
        return as_logged
    if inputs.logged.sampler.set_aside.keys() - {NO_SAMPLER}:
        return missing_part("sampler", inputs.logged.sampler, anchor="agreement")
    hint = (
        "Runs of gradscope train and logs of NeMo-RL, open-instruct and prime-rl keep them; in TRL compare them while "
        "training: use_vllm with vllm_importance_sampling_correction."
    )
    return missing_section("agreement", "The log has no log-probabilities of the sampler.", hint)


def _compared(gaps: dict[int, NDArray[np.float64]], inputs: ReportInputs) -> ReportSection:
    from gradscope.diagnostics.rank.tokens import sequence_corrections

    means = {step: float(np.abs(gap).mean()) for step, gap in gaps.items()}
    worst = max(means, key=means.__getitem__)
    corrections = {gram.step: sequence_corrections(inputs.run, gram) for gram in inputs.grams if gram.step in gaps}
    cosines = {step: [effect.cosine for effect in effects] for step, effects in corrections.items() if effects}
    smallest = {
        step: min(estimates, key=lambda cosine: 1.0 if cosine.value is None else cosine.value)
        for step, estimates in cosines.items()
    }
    columns = [
        Column("step", lambda step: step, "count"),
        Column("tokens", lambda step: gaps[step].size, "count"),
        Column("mean gap", means.get, "norm"),
        Column("largest gap", lambda step: float(np.abs(gaps[step]).max()), "norm"),
        Column("mean p ratio", lambda step: float(np.exp(gaps[step]).mean()), "norm"),
    ]
    caption, corrected = f"mean gap = {metric('logprob_gap').formula}", tuple[str, ...]()
    if smallest:
        columns.append(Column("cosine by sequence", smallest.get, "norm"))
        caption += (
            ". Cosine by sequence: the least of truncating, masking and plainly weighing whole sequences, "
            f"{metric('corrections.cosine').formula}"
        )
        turned = min(smallest, key=lambda step: smallest[step].value or 0.0)
        corrected = correction_findings(corrections[turned], " by sequence")
    return ReportSection(
        name="agreement",
        findings=(
            f"Over {len(gaps)} recomputed steps the log-probabilities of the sampler differ from those of the weights "
            f"by {means[worst]:.2g} a token at most (mean of step {worst}).",
            *corrected,
        ),
        severity=_severity(means[worst]),
        meaning=metric("logprob_gap").meaning,
        next_step=_ADVICE_ON_GAP[_severity(means[worst])],
        command=inputs.command("rank", "--step", str(worst)),
        tables=tabulate(caption, columns, gaps),
    )


_ADVICE_ON_GAP: dict[Severity, str] = {
    "unknown": "Log the mean difference as well: the largest of a step says little about the others.",
    "fine": "Nothing to do: the sampler's policy is the one that was updated.",
    "look": WRONG_SIDE,
    "problem": WRONG_SIDE,
}
_LOGGED_GAPS = (
    (
        r"(sampling_logp_difference/mean|vllm_vs_local_logprob_diff_mean|logprobs?_abs_diff(_mean)?|"
        r"rollout_probs_diff_mean)$",  # a probability differs by no more than its logarithm
        *(LARGE_GAP, FAR_GAP),
    ),
    (r"(mismatch_kl(/\w+)?/mean|mismatch_kl|rollout_corr/kl|gen_kl_error|reverse_kl|kl_sample_train_v\d)$", 0.01, 0.1),
    (r"token_mult_prob_error$", 1.05, 1.1),  # the mean of exp(|difference of log p|)
)
"""What trainers log of their sampler's policy against their own: the name's end, and from where on it is large and far.

The bounds of the last two are those of NeMo-RL's own tests; prime-rl, verl and Tinker log the KL of the second.
"""


def agreement_as_logged(run: Run) -> ReportSection | None:
    """What the trainer's own metrics say of the last fifth of steps; None where it logged none."""
    bounds = {
        name: (large, far)
        for name in run.step_metrics.columns
        for ending, large, far in _LOGGED_GAPS
        if re.search(ending, name)
    }
    names = sorted(name for name in run.step_metrics.columns if name in bounds or _SAMPLING_GAP in name)
    logged = {name: run.step_metrics.by_step(name) for name in names}
    logged = {name: values for name, values in logged.items() if any(values.values())}  # verl's 0: unknown
    steps = sorted(set().union(*logged.values()) & set(run.steps or run.every_step))
    if not steps:
        return None
    late = steps[-max(len(steps) // 5, 1) :]
    late_values = {name: [values[step] for step in late if step in values] for name, values in logged.items()}
    means = {name: fmean(values) for name, values in late_values.items() if values}
    kinds: list[Severity] = [_severity(abs(means[name]), *bounds[name]) for name in means.keys() & bounds.keys()]
    severity: Severity = max(kinds, key=("fine", "look", "problem").index, default="unknown")
    shown = ", ".join(f"{name} = {number(mean, '.4g')}" for name, mean in means.items())
    span = f"at step {late[0]}" if len(late) == 1 else f"on average at steps {late[0]} to {late[-1]}"
    return ReportSection(
        name="agreement",
        findings=(f"The trainer logged {span}: {shown}.",),
        severity=severity,
        meaning=metric("logprob_gap").meaning,
        next_step=_ADVICE_ON_GAP[severity],
        charts=lines_over(
            steps,
            "Sampler against trainer, as logged",
            {name: [logged[name].get(step) for step in steps] for name in [*logged][:4]},
            y_label="difference",  # of log-probabilities, or as the name says
        ),
    )


_SAMPLING_GAP = "sampling_logp"  # TRL's largest difference, next to the mean


def _severity(gap: float, large: float = LARGE_GAP, far: float = FAR_GAP) -> Severity:
    """How much a mean difference asks for; NaN is far."""
    return "fine" if gap <= large else "look" if gap <= far else "problem"


_SEVERITIES: dict[str, Severity] = {"mismatch": "problem", "match": "fine", "cannot": "unknown"}
_KINDS: dict[str, SeriesKind] = {"logged": "logged", "recomputed": "recomputed"}
_REMEDIES = {
    "inferred from": "log exact token ids, or give them with --completion-ids",
    "--run-config": "give the trainer's arguments with --run-config",
    "--initial": "give the weights before the first update with --initial",
    "not on disk": "save a checkpoint before each step that matters",
    "the trainer logged no": "log each step (logging_steps=1 in TRL)",
    "other weights, ids": "check that --run-config holds this run's arguments, and that no checkpoint was replaced",
    "the log says": "look for rows that were changed, or lost, after the trainer logged the step",
    "an advantage differs": "check the formulation in the trainer's arguments",
}
"""Words of a cause -> what to do about it."""


def replay_section(inputs: ReportInputs) -> ReportSection:
    """The replay of every step: verdicts with their causes."""
    report = inputs.replay
    if isinstance(report, Unavailable):
        return missing_section("replay", report)
    return replay_answer(report, inputs.command("replay"))


def replay_answer(report: ReplayReport, command: str = "") -> ReportSection:
    """The same of steps that were replayed already; ``command`` looks closer."""
    names = ("reward", "advantage", "frac_reward_zero_std", "grad_norm")
    steps = [step.step for step in report.steps]
    norms = {name: [getattr(step, name).get("grad_norm") for step in report.steps] for name in _KINDS}
    return ReportSection(
        name="replay",
        findings=(" ".join(report.findings),)
        if report.verdict == "cannot"
        else (f"Replay: {report.headline}.", *report.findings),
        severity=_SEVERITIES[report.verdict],
        meaning=metric("replay_grad_norm_error").meaning,
        next_step=_replay_next(report),
        command="" if report.verdict == "cannot" else command,
        charts=()
        if all(norm is None for norm in norms["logged"])
        else lines_over(steps, "Gradient norm", norms, y_label="grad_norm", kinds=_KINDS),
        tables=(
            *tabulate(
                f"Verdicts by step; grad_norm matches within a relative error of {report.tolerance:g}",
                (
                    Column("step", "step", "count"),
                    *(Column(name, methodcaller("verdict_on", name)) for name in names),
                    Column("logged grad_norm", entry("logged", "grad_norm"), "norm"),
                    Column("recomputed", entry("recomputed", "grad_norm"), "norm"),
                    Column("error", entry("relative_error", "grad_norm"), "norm"),
                ),
                report.steps,
                by_step=True,
            ),
            *_causes(report),
        ),
    )


def _replay_next(report: ReplayReport) -> str:
    """What the causes of this run's verdict ask for, those of mismatches first."""
    if report.verdict == "match" and all(step.verdict != "cannot" for step in report.steps):
        return "Nothing to do: weights, tokens and loss are the trainer's own, so the gradient sections stand on them."
    wanted = "mismatch" if report.verdict == "mismatch" else "cannot"
    quantities = (quantity for step in report.steps for quantity in step.quantities)
    causes = [quantity.cause for quantity in quantities if quantity.verdict == wanted and quantity.cause]
    remedies = [remedy for words, remedy in _REMEDIES.items() if any(words in cause for cause in causes)]
    advice = f"{'; '.join(remedies)}." if remedies else "Read the cause of the first such step below."
    return f"{advice[:1].upper()}{advice[1:]}"


def _causes(report: ReplayReport) -> tuple[ReportTable, ...]:
    """Each cause once: those that differ in their numbers only share a row, worded as at the first of its steps."""
    rows: dict[tuple[str, str, str], tuple[str, list[int]]] = {}
    for step in report.steps:
        for quantity in step.quantities:
            if quantity.cause:
                key = (quantity.name, quantity.verdict, without_numbers(quantity.cause))
                rows.setdefault(key, (quantity.cause, []))[1].append(step.step)
    return table_of_cells(
        "Causes and remarks, as they are worded at the first of their steps",
        [("first step", "count"), ("steps", "count"), ("quantity", "text"), ("verdict", "text"), ("cause", "text")],
        ((steps[0], len(steps), name, verdict, cause) for (name, verdict, _), (cause, steps) in rows.items()),
    )


def claims_section(inputs: ReportInputs) -> ReportSection:
    """A row a claim: the number, what it is held against, and the verdict."""
    run, results = inputs.run, {"degeneracy": inputs.degeneracy, "passk": inputs.passk}
    evidence = Evidence(
        run=run,
        steps=tuple(gram.step for gram in inputs.grams),
        no_gradients=inputs.no_grams.reason.rstrip("."),
        is_restricted=True,
        cache={name: result for name, result in results.items() if not isinstance(result, Unavailable)},
    )
    if inputs.parts.weighed:
        evidence.cache["weighed_tokens"] = inputs.parts.weighed
    if inputs.grams:
        from gradscope.diagnostics.rank.measure import Collected, examine_step

        collected = Collected(source=run.source, kind="rollout")
        for step, gram in zip(evidence.steps, inputs.grams, strict=True):
            groups, weights = run.groups_at(step), run.weights_before(step)
            measured = MeasuredStep(step=step, groups=groups, weights=weights, gram=gram, reason=None)
            examine_step(run, measured, evidence.request("rollout"), collected)
        evidence.cache["kinds"] = {"rollout": collected}
    report = claims_of(evidence)
    files = {samples.source.path: copy_of(samples.source.path) for samples in inputs.samples}
    outside_run = [name for name, file in files.items() if run.path not in (file, *file.parents)]
    samples = [word for name in outside_run for word in ("--samples", name)]  # those of the run itself are found anyway
    answer = claims_answer(report, inputs.command("claims", *samples))
    unmeasured = (
        f"gradscope claims measures {len(CLAIMS) - len(report.claims)} more, which need rows of tokens, weights or "
        "hidden states, or later weights of every step, that this page does not look at."
    )
    next_step = answer.next_step if inputs.grams or not inputs.no_grams.hint else inputs.no_grams.hint
    return replace(answer, findings=(*answer.findings, unmeasured), next_step=next_step)


def claims_answer(report: ClaimsReport, command: str = "") -> ReportSection:
    """The same of claims that were judged already; ``command`` looks closer."""
    next_step = "Repeat the run with another seed: a verdict is about this run alone."
    if unsettled := Counter(row.settle for row in report.claims if row.verdict == "cannot_tell"):
        (settle, number), *remaining = unsettled.most_common()
        rest = " The command says what would settle the others." if remaining else ""
        next_step = f"What would settle {number} of the {unsettled.total()} that cannot be told: {settle}{rest}"
    steps = f"gradients of steps {', '.join(map(str, report.steps))}" if report.steps else "no gradient was recomputed"
    return ReportSection(
        name="claims",
        findings=report.findings,
        severity="fine" if any(claim.verdict != "cannot_tell" for claim in report.claims) else "unknown",
        meaning="A claim is supported or contradicted where the whole 95 % interval says so. It was made about other "
        "models and tasks, and may hold there where it does not here.",
        next_step=next_step,
        command=command,
        tables=tabulate(
            f"Claims; {steps}. Beside each number: what chance gives, or what the claim compares it with",
            (
                Column("claim", lambda row: f"{row.claim} {row.source.partition(' (')[0]}"),
                Column("what is measured", "metric"),
                Column("measured", "estimate", "rank"),
                Column("beside", "null", "rank"),
                Column("verdict", "words"),
            ),
            report.claims,
        ),
    )
