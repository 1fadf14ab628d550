"""pass@k of files of samples, unbiased and with intervals; further files are compared with the first.

Legend: n samples of a prompt, c of them correct, k the budget.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from gradscope.diagnostics.passk.comparison import compare_samples
from gradscope.diagnostics.passk.samples import Samples, read_samples, sample_files
from gradscope.errors import UsageError
from gradscope.estimate import Estimate
from gradscope.findings.passk import passk_findings
from gradscope.metrics.outcomes.pass_rates.forecast import fit_pass_rates
from gradscope.metrics.outcomes.passk import estimate_pass_table
from gradscope.metrics.uncertainty.resampling import RESAMPLING, Resampling
from gradscope.progress import Progress, reporter
from gradscope.results.passk import PassAtK, PassAtKForecast, PassAtKReport, PassAtKTable
from gradscope.rollouts.read_options import ReadOptions

USUAL_KS = (5, 10, 20, 50, 100)
"""Budgets that papers report, beside the powers of two."""


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
        *paths: Files of samples; a run folder of ours stands for its held-out samples before and after training.
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
