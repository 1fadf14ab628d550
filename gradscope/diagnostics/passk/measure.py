"""pass@k of files of samples, unbiased and with intervals; further files are compared with the first.

Legend: n samples of a prompt, c of them correct, k the budget.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from gradscope.diagnostics.passk.samples import Counts, Samples, read_samples, sample_files, samples_of_run
from gradscope.diagnostics.passk.two_policies import compare_samples
from gradscope.errors import InputError, UsageError
from gradscope.estimate import Estimate
from gradscope.findings.passk import evaluation_findings, passk_findings
from gradscope.metrics.outcomes.groups import binary_threshold
from gradscope.metrics.outcomes.pass_rates.forecast import fit_pass_rates
from gradscope.metrics.outcomes.passk import estimate_pass_table
from gradscope.metrics.uncertainty.bootstrap import bootstrap_means
from gradscope.metrics.uncertainty.resampling import RESAMPLING, Resampling
from gradscope.progress import Progress, ProgressCallback, reporter
from gradscope.results.passk import Evaluation, PassAtK, PassAtKForecast, PassAtKReport, PassAtKTable
from gradscope.results.source import Source
from gradscope.rollouts.groups import reward_table
from gradscope.rollouts.places.fetch import fetched
from gradscope.rollouts.read_options import ReadOptions
from gradscope.rollouts.readers.detect import evaluations_below, read_run
from gradscope.rollouts.readers.evaluations.folders import EvaluationLog, evaluations_in
from gradscope.rollouts.run import Run

USUAL_KS = (5, 10, 20, 50, 100)
"""Budgets that papers report, beside the powers of two."""
_NO_VERDICT = "the scores are neither 0/1 nor -1/1, and which of them pass is not known (--success-threshold)"


def measure_pass_at_k(
    *paths: str | Path,
    ks: Sequence[int] = (),
    success_threshold: float | None = None,
    read: ReadOptions | None = None,
    resampling: Resampling = RESAMPLING,
    progress: Progress = False,
) -> PassAtKReport:
    """pass@k and pass^k of one or more files of samples.

    Args:
        *paths: Files of samples; a run folder of ours stands for its held-out samples before and after training, a
            folder of evaluations for each of them.
        ks: Budgets; none: powers of two, 5, 10, 20, 50 and 100 up to the largest n, and that n. Budgets beyond n are
            forecast, apart from the estimates.
        success_threshold: A sample is correct when its reward reaches this; None: 1 for rewards of 0/1 or -1/1.
        read: How to read the files; None: recognize everything.
        resampling: How often, and from which seed.
        progress: True for a line on stderr, or a callback, told how far copying a URL and reading are.

    Returns:
        The report.

    Raises:
        UsageError: No file was given, or a budget is below 1.
    """
    progress = reporter(progress)
    if not paths:
        raise UsageError("pass@k needs a file of samples.", hint="gradscope passk samples.jsonl")
    if any(k < 1 for k in ks):
        raise UsageError(f"k is at least 1, got {min(ks)}.", hint="Write --k 1")
    read = read or ReadOptions()
    evaluations = [
        evaluations_below(path, read, progress) if sample_files(path, progress) == (fetched(path),) else ()
        for path in paths
    ]
    if any(evaluations):
        logs = [log for path, found in zip(paths, evaluations, strict=True) for log in found or [_log_at(path, read)]]
        logs.sort(key=lambda log: (log.task, log.model))
        score = partial(_tables_of, ks=ks, threshold=success_threshold, read=read, resampling=resampling)
        tables = tuple(table for log in logs for table in score(log, progress=progress))
        return PassAtKReport(tables=tables, comparison=None, findings=evaluation_findings(tables))
    files = [file for path in paths for file in sample_files(path, progress)]
    samples = [read_samples(file, success_threshold=success_threshold, read=read, progress=progress) for file in files]
    return pass_at_k_of_samples(_named_apart(samples), ks=ks, resampling=resampling)


def pass_at_k_of_samples(
    samples: Sequence[Samples], *, ks: Sequence[int] = (), resampling: Resampling = RESAMPLING
) -> PassAtKReport:
    """pass@k of samples that were already read, one entry a policy, at the usual budgets where ``ks`` names none."""
    budgets = sorted(set(ks)) or default_ks(max(int(one.num_samples.max()) for one in samples))
    tables = tuple(_table(one, budgets, resampling=resampling) for one in samples)
    first, *others = samples
    comparisons = [compare_samples(first, other, budgets, resampling=resampling) for other in others]
    return PassAtKReport(
        tables=tables,
        comparison=comparisons[0] if comparisons else None,
        further_comparisons=tuple(comparisons[1:]),
        findings=passk_findings(tables, comparisons, [one.num_missing for one in samples]),
    )


def _log_at(path: str | Path, read: ReadOptions) -> EvaluationLog:
    """A path beside a folder of evaluations: one itself, or samples of nobody knows which task."""
    file = fetched(path)
    unknown = EvaluationLog(path=file, format=read.reader, task=file.name, model="")
    return next(iter(evaluations_in(file, read)), unknown)


def _tables_of(
    log: EvaluationLog,
    *,
    ks: Sequence[int],
    threshold: float | None,
    read: ReadOptions,
    resampling: Resampling,
    progress: ProgressCallback,
) -> Iterator[PassAtKTable]:
    """A table for each scorer of an evaluation; where it cannot be read, one whose numbers say why."""
    named, read = read.columns.reward, replace(read, reader=log.format)
    try:
        run = read_run(log.path, read, rewards_only=True, progress=progress)
        scorers = (named,) if named else log.scorers or tuple(reward_table(run.groups).rewards) or (None,)
        for scorer in scorers:
            if scorer not in (None, named, *reward_table(run.groups).rewards):
                columns = replace(read.columns, reward=scorer)
                run = read_run(log.path, replace(read, columns=columns), rewards_only=True, progress=progress)
            yield _evaluation_table(run, log, scorer, ks, threshold=threshold, resampling=resampling)
    except InputError as error:
        if read.strict:
            raise
        source = Source(path=str(log.path), format=log.format or "", recognized="not read", files=(str(log.path),))
        yield _without_verdicts(error.message.rstrip("."), log, named, source=source)


def _evaluation_table(
    run: Run,
    log: EvaluationLog,
    scorer: str | None,
    ks: Sequence[int],
    *,
    threshold: float | None,
    resampling: Resampling,
) -> PassAtKTable:
    rewards = reward_table(run.groups)
    scores = rewards.rewards.get(scorer or "", rewards.reward)
    is_known = ~np.isnan(scores)
    known, prompts = scores[is_known], np.repeat(rewards.prompt, rewards.size)[is_known]
    is_share = bool(np.all((known >= 0) & (known <= 1)))
    (mean,) = bootstrap_means(known[:, None], prompts, resampling=resampling, share=is_share)
    if threshold is None and binary_threshold(known) is None:
        counted = np.unique(prompts, return_counts=True)[1] if len(known) else np.zeros(1, dtype=np.int64)
        reason = _NO_VERDICT if len(known) else "no sample has this score"
        return _without_verdicts(reason, log, scorer, source=run.source, mean=mean, counted=counted, run=run)
    name = f"{log.path}:{scorer}" if scorer else str(log.path)
    samples = samples_of_run(
        run, name=name, success_threshold=threshold, scorer=scorer if scorer in rewards.rewards else None
    )
    table = _table(samples, sorted(set(ks)) or default_ks(int(samples.num_samples.max())), resampling=resampling)
    return replace(table, evaluation=_evaluation(log, scorer, mean, run))


def _without_verdicts(
    reason: str,
    log: EvaluationLog,
    scorer: str | None,
    *,
    source: Source,
    mean: Estimate | None = None,
    counted: Counts | None = None,
    run: Run | None = None,
) -> PassAtKTable:
    """The table of an evaluation of which nobody knows which samples are correct."""
    unknown = Estimate.undefined_because(reason)
    sizes = (0,) if counted is None else counted
    return PassAtKTable(
        name=f"{log.path}:{scorer}" if scorer else str(log.path),
        source=source,
        num_prompts=0 if counted is None else len(counted),
        num_samples=(int(min(sizes)), int(max(sizes))),
        rows=(PassAtK(k=1, pass_at_k=unknown, pass_hat_k=unknown),),
        evaluation=_evaluation(log, scorer, unknown if mean is None else mean, run),
    )


def _evaluation(log: EvaluationLog, scorer: str | None, mean: Estimate, run: Run | None) -> Evaluation:
    return Evaluation(
        task=log.task,
        model=log.model,
        scorer=scorer or log.scalar,
        unfinished="" if run is None else run.source.unfinished,
        mean_score=mean,
    )


def default_ks(num_samples: int) -> list[int]:
    """The budgets that are shown when none is asked for.

    Args:
        num_samples: The largest n.

    Returns:
        Powers of two and the usual budgets up to n, and n itself, ascending.

    Example:
        >>> default_ks(12)
        [1, 2, 4, 5, 8, 10, 12]
    """
    powers = {2**exponent for exponent in range(num_samples.bit_length())}
    return sorted({k for k in powers | set(USUAL_KS) if k <= num_samples} | {num_samples})


def _table(samples: Samples, ks: Sequence[int], *, resampling: Resampling) -> PassAtKTable:
    beyond = [k for k in ks if k > int(samples.num_samples.min())]
    estimates = estimate_pass_table(samples.num_samples, samples.num_correct, ks, resampling=resampling)
    return PassAtKTable(
        name=samples.name,
        source=samples.source,
        num_prompts=len(samples.prompts),
        num_samples=(int(samples.num_samples.min()), int(samples.num_samples.max())),
        rows=tuple(
            PassAtK(k=k, pass_at_k=at_least_one, pass_hat_k=all_of_them)
            for k, (at_least_one, all_of_them) in zip(ks, estimates, strict=True)
        ),
        forecasts=_forecasts(samples, beyond) if beyond else (),
    )


def _forecasts(samples: Samples, ks: Sequence[int]) -> tuple[PassAtKForecast, ...]:
    rates = fit_pass_rates(samples.num_samples, samples.num_correct)
    if isinstance(rates, str):
        unknown = Estimate.undefined_because(rates, num_units=len(samples.prompts))
        return tuple(PassAtKForecast(k=k, pass_at_k=unknown, pass_hat_k=unknown) for k in ks)
    return tuple(PassAtKForecast(k=k, pass_at_k=rates.pass_at_k(k), pass_hat_k=rates.pass_hat_k(k)) for k in ks)


def _named_apart(samples: Sequence[Samples]) -> list[Samples]:
    # Two files of one name in two folders: tables then show their paths.
    names = [one.name for one in samples]
    return [replace(one, name=one.source.path) if names.count(one.name) > 1 else one for one in samples]
