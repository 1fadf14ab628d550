"""pass@k of files of samples, unbiased and with intervals; further files are compared with the first.

A file is reduced to two numbers per prompt. A gain at every sampled k is no sign of reach: the best of eight samples of
the first policy gains at every k, and solves no prompt that the first does not.

Legend: n samples of a prompt, c of them correct, k the budget, P prompts.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from filecmp import cmp
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Literal

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from gradscope.diagnostics.passk.comparison import Samples, compare_samples
from gradscope.errors import InputError, UsageError
from gradscope.estimate import Estimate
from gradscope.findings.passk import OTHERWISE, evaluation_findings, passk_findings
from gradscope.metrics.outcomes.forecast import fit_pass_rates
from gradscope.metrics.outcomes.groups import binary_threshold, passes
from gradscope.metrics.outcomes.passk import estimate_pass_table, first_attempts
from gradscope.metrics.uncertainty.bootstrap import bootstrap_means, unit_sums
from gradscope.metrics.uncertainty.intervals import RESAMPLING, Resampling
from gradscope.progress import Progress, ProgressCallback, no_progress, reporter
from gradscope.results import passk as results
from gradscope.results.source import FIRST_ONLY, Source
from gradscope.rollouts.fetch import fetched
from gradscope.rollouts.groups import UNKNOWN, RewardTable, reward_table
from gradscope.rollouts.read_options import ColumnNames, ReadOptions
from gradscope.rollouts.readers.detect import evaluations_below, read_run
from gradscope.rollouts.readers.evaluations.folders import EvaluationLog, evaluations_in, have_different_questions
from gradscope.rollouts.run import Run
from gradscope.rollouts.run_folder import heldout_path, manifest_path
from gradscope.say import names_apart

_WHEN: tuple[Literal["before", "after"], ...] = ("before", "after")


def sample_files(path: str | Path, progress: ProgressCallback = no_progress) -> tuple[Path, ...]:
    """The held-out samples of a run folder, before and after training; of any other path the path itself."""
    folder = fetched(path, progress)
    heldout = tuple(file for when in _WHEN if (file := heldout_path(folder, when)).is_file())
    return heldout or (folder,)


def read_samples(path: str | Path, *, success_threshold: float | None = None) -> Samples:
    """The samples of one file of one policy, counted by prompt."""
    file = fetched(path)
    run = _read_file(file, success_threshold, ReadOptions(), no_progress)
    return samples_of_run(run, name=file.name, success_threshold=success_threshold)


_NOT_READ = "not read"
_read = partial(read_run, rewards_only=True, measured="completions")


def _read_file(file: Path, threshold: float | None, read: ReadOptions, progress: ProgressCallback) -> Run:
    return _read(file, with_own_verdicts(file, read) if threshold is None else read, progress=progress)


def with_own_verdicts(path: Path, read: ReadOptions) -> ReadOptions:
    """How to read held-out samples of a run of ours, which log which are correct; others as they are."""
    folder = path.parent.parent
    is_heldout = manifest_path(folder).is_file() and path in [heldout_path(folder, when) for when in _WHEN]
    if not is_heldout or read.columns != ColumnNames():
        return read
    return replace(read, columns=ColumnNames(reward="correct"))


def samples_of_run(
    run: Run, *, name: str, success_threshold: float | None = None, scorer: str | None = None, policy: str | None = None
) -> Samples:
    """The samples of a run of one step, counted by prompt, or those of one policy, "" for those that name none."""
    if len(run.steps) > 1:
        raise InputError(
            f"{run.source.path} logs {len(run.steps)} training steps, each from another policy: they have no "
            "common pass@k.",
            hint="Give a file with several samples a prompt from one policy. `gradscope degeneracy` reads such a log.",
        )
    table = reward_table(run.groups)
    if policy is None and len(table.policies) > 1:
        raise InputError(
            f"{run.source.path} holds samples of {len(table.policies)} policies, which have no common pass@k.",
            hint=f"Each of them: gradscope passk {shlex.quote(run.source.path)}",
        )
    rewards = table.reward if scorer is None else table.rewards[scorer]
    is_drawn = _is_drawn_from(table, policy)
    is_known = is_drawn & ~np.isnan(rewards)
    reward, prompt = rewards[is_known], np.repeat(table.prompt, table.size)[is_known]
    if not len(reward):
        raise InputError(
            f"{run.source.path} holds no sample with a reward.",
            hint="Name the column of verdicts with --reward-column.",
        )
    threshold = binary_threshold(reward) if success_threshold is None else success_threshold
    is_whole = np.all((reward >= 0) & (reward == np.floor(reward)))
    if threshold is None and is_whole and len(np.unique(prompt)) == len(prompt):
        largest = reward.max()
        raise InputError(
            f"{run.source.path} has one row a prompt, with whole numbers up to {largest:g} as rewards: counts of "
            "correct samples are no verdicts.",
            hint="Name the columns of both counts: --n-column N --c-column C. If they are scores of one sample each, "
            "say which of them pass: --success-threshold 1",
        )
    if threshold is None:
        verdicts = (name for name, scores in table.rewards.items() if binary_threshold(scores[is_drawn]) is not None)
        say = next((f"Name the verdict: --reward-column {shlex.quote(name)}, or say" for name in verdicts), "Say")
        raise InputError(
            f"{run.source.path} has rewards that are neither 0/1 nor -1/1: which samples are correct is not known.",
            hint=f"{say} from which reward on a sample counts as correct: --success-threshold {reward.max():g}",
        )
    is_long = table.num_characters is not None and table.num_characters >= _LONG
    num_copies = int(np.sum(table.repeats[0] & is_known & is_long))
    passing = passes(reward, threshold).astype(np.float64)
    counts, source = unit_sums([passing], prompt, len(reward)).astype(np.int64), run.source
    if (first := first_attempts(counts[:, 1], counts[:, 0])) is not None:
        counts, source = np.column_stack([first, np.ones_like(first)]), run.with_missing(FIRST_ONLY).source
    return Samples(
        name=name,
        source=source,
        prompts=tuple(table.prompts[index] for index in dict.fromkeys(prompt.tolist())),
        num_samples=counts[:, 1],
        num_correct=counts[:, 0],
        num_missing=int(np.sum(is_drawn & ~is_known)),
        num_copies=num_copies if num_copies > _FEW * len(reward) else 0,
    )


_LONG = 64  # characters of a text that two samples hardly have by chance
_FEW = 0.05  # of the samples, up to which copies hardly narrow an interval


def _is_drawn_from(table: RewardTable, policy: str | None) -> NDArray[np.bool_]:
    """Whether each rollout is a policy's, "" for those that name none; None: any."""
    if table.policy is None or policy is None:
        return np.ones(len(table.reward), dtype=np.bool_)
    return np.equal(table.policy, table.policies.index(policy) if policy else UNKNOWN)


def _policies_of(run: Run) -> tuple[str | None, ...]:
    """The policies of a run of several that have a reward, "" for samples that name none; None of a run of one."""
    table = reward_table(run.groups)
    if table.policy is None or len(table.policies) < 2:
        return (None,)
    scored = np.unique(table.policy[~np.isnan(table.reward)]).tolist()
    names = [table.policies[index] for index in scored if index != UNKNOWN]
    return (*names, *[""] * (UNKNOWN in scored)) or ("",)


USUAL_KS = (5, 10, 20, 50, 100)  # budgets that papers report, in addition to the powers of two
_FAILURES = ("is_incorrect", "is_not_attempted")  # of SimpleQA, beside what is correct: to have one is no pass
_NO_VERDICT = "the scores are neither 0/1 nor -1/1, and which of them pass is not known (--success-threshold)"


def measure_pass_at_k(
    *paths: str | Path,
    ks: Sequence[int] = (),
    success_threshold: float | None = None,
    read: ReadOptions | None = None,
    resampling: Resampling = RESAMPLING,
    progress: Progress = False,
) -> results.PassAtKReport:
    """pass@k and pass^k of one or more files of samples.

    Args:
        *paths: Files of samples; a run folder of ours stands for its held-out samples before and after training, a
            folder of evaluations for each of them.
        ks: Budgets; none: powers of two, 5, 10, 20, 50 and 100 up to the largest n, and that n. Budgets beyond n are
            forecast, apart from the estimates.
        success_threshold: A sample is correct when its reward reaches this; None: 1 for rewards of 0/1 or -1/1.
        progress: True for a line on stderr, or a callback, called while files are copied and read.

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
    paths = tuple(below[0].path if len(below) == 1 else path for path, below in zip(paths, evaluations, strict=True))
    if any(len(below) > 1 for below in evaluations):
        logs = [log for path, below in zip(paths, evaluations, strict=True) for log in below or [_log_at(path, read)]]
        logs.sort(key=lambda log: (log.task, log.model))
        score = partial(_evaluation_tables, ks=ks, threshold=success_threshold, read=read, resampling=resampling)
        tables = tuple(table for log in logs for table in score(log, progress=progress))
        if all(table.source.recognized == _NOT_READ for table in tables):
            _read(logs[0].path, replace(read, reader=logs[0].format), progress=progress)  # whose error has a hint
        return results.PassAtKReport(tables=tables, comparison=None, findings=evaluation_findings(tables))
    files = [file for path in paths for file in sample_files(path, progress)]
    runs = [(file.name, _read_file(file, success_threshold, read, progress)) for file in files]
    samples = [
        samples_of_run(run, name=policy or name, success_threshold=success_threshold, policy=policy)
        for name, run in runs
        for policy in _policies_of(run)
    ]
    names = names_apart([policy.name for policy in samples], [policy.source.path for policy in samples])
    copies = [
        f"{second.name} is {first.name}, byte for byte: no sample of it is a new one."
        for first, second in combinations(dict.fromkeys(files), 2)
        if first.is_file() and second.is_file() and cmp(first, second, shallow=False)
    ]
    report = pass_at_k_of_samples(
        [replace(policy, name=name) for policy, name in zip(samples, names, strict=True)], ks=ks, resampling=resampling
    )
    if any(have_different_questions(files[0], file, samples[0].prompts) for file in files[1:]):
        copies = [OTHERWISE, *copies]
    return replace(report, findings=(*report.findings[:1], *copies, *report.findings[1:]))


def pass_at_k_of_samples(
    samples: Sequence[Samples], *, ks: Sequence[int] = (), resampling: Resampling = RESAMPLING
) -> results.PassAtKReport:
    """pass@k of samples that were already read, one entry a policy, at the usual budgets where ``ks`` names none."""
    budgets = sorted(set(ks)) or default_ks(min(int(policy.num_samples.max()) for policy in samples))
    tables = tuple(_table(policy, budgets, resampling=resampling) for policy in samples)
    first, *rest = samples
    # policies of one file are compared where they share prompts; another file without a common prompt is refused
    comparisons = [
        compare_samples(first, other, budgets, resampling=resampling)
        for other in rest
        if other.source.path != first.source.path or not set(first.prompts).isdisjoint(other.prompts)
    ]
    return results.PassAtKReport(
        tables=tables,
        comparison=comparisons[0] if comparisons else None,
        further_comparisons=tuple(comparisons[1:]),
        findings=passk_findings(
            tables, comparisons, [policy.num_missing for policy in samples], [policy.num_copies for policy in samples]
        ),
    )


def _log_at(path: str | Path, read: ReadOptions) -> EvaluationLog:
    """A path given along with a folder of evaluations: an evaluation itself, or samples of an unknown task."""
    file = fetched(path)
    unknown = EvaluationLog(path=file, format=read.reader, task=file.name, model="")
    return next(iter(evaluations_in(file, read)), unknown)


def _evaluation_tables(
    log: EvaluationLog,
    *,
    ks: Sequence[int],
    threshold: float | None,
    read: ReadOptions,
    resampling: Resampling,
    progress: ProgressCallback,
) -> Iterator[results.PassAtKTable]:
    """A table for each scorer of an evaluation; where it cannot be read, one whose numbers say why."""
    named, read = read.columns.reward, replace(read, reader=log.format)
    try:
        run = _read(log.path, read, progress=progress)
        scores = (name for name in reward_table(run.groups).rewards if name not in _FAILURES)
        scorers = (named,) if named else log.scorers or tuple(scores) or (None,)
        for scorer in scorers:
            if scorer not in (None, named, *reward_table(run.groups).rewards):
                columns = replace(read.columns, reward=scorer)
                run = _read(log.path, replace(read, columns=columns), progress=progress)
            for policy in _policies_of(run):
                named_log = replace(log, model=policy or log.model)
                yield _evaluation_table(run, named_log, scorer, policy, ks, threshold=threshold, resampling=resampling)
    except InputError as error:
        if read.strict:
            raise
        source = Source(path=str(log.path), format=log.format or "", recognized=_NOT_READ, files=(str(log.path),))
        yield _without_verdicts(error.message.rstrip(".").removeprefix(f"{log.path} "), log, named, None, source=source)


def _evaluation_table(
    run: Run,
    log: EvaluationLog,
    scorer: str | None,
    policy: str | None,
    ks: Sequence[int],
    *,
    threshold: float | None,
    resampling: Resampling,
) -> results.PassAtKTable:
    rewards = reward_table(run.groups)
    scores = rewards.rewards.get(scorer or "", rewards.reward)
    is_known = ~np.isnan(scores) & _is_drawn_from(rewards, policy)
    scored, prompts = scores[is_known], np.repeat(rewards.prompt, rewards.size)[is_known]
    is_share = bool(np.all((scored >= 0) & (scored <= 1)))
    (mean,) = bootstrap_means(scored[:, None], prompts, resampling=resampling, share=is_share)
    if threshold is None and binary_threshold(scored) is None:
        counted = np.unique(prompts, return_counts=True)[1] if len(scored) else None
        reason = _NO_VERDICT if len(scored) else "no sample has this score"
        return _without_verdicts(reason, log, scorer, policy, source=run.source, mean=mean, counted=counted, run=run)
    samples = samples_of_run(
        run,
        name=_name_of(log, scorer, policy),
        success_threshold=threshold,
        scorer=scorer if scorer in rewards.rewards else None,
        policy=policy,
    )
    table = _table(samples, sorted(set(ks)) or default_ks(int(samples.num_samples.max())), resampling=resampling)
    return replace(table, evaluation=_evaluation(log, scorer, mean, run))


def _without_verdicts(
    reason: str,
    log: EvaluationLog,
    scorer: str | None,
    policy: str | None,
    *,
    source: Source,
    mean: Estimate | None = None,
    counted: NDArray[np.int64] | None = None,
    run: Run | None = None,
) -> results.PassAtKTable:
    unknown = Estimate.undefined_because(reason)
    sizes = (0,) if counted is None else counted
    return results.PassAtKTable(
        name=_name_of(log, scorer, policy),
        source=source,
        num_prompts=0 if counted is None else len(counted),
        num_samples=(int(min(sizes)), int(max(sizes))),
        rows=(results.PassAtK(k=1, pass_at_k=unknown, pass_hat_k=unknown),),
        evaluation=_evaluation(log, scorer, unknown if mean is None else mean, run),
    )


def _name_of(log: EvaluationLog, *parts: str | None) -> str:
    return ":".join((str(log.path), *filter(None, parts)))


def _evaluation(log: EvaluationLog, scorer: str | None, mean: Estimate, run: Run | None) -> results.Evaluation:
    return results.Evaluation(
        task=log.task,
        model=log.model,
        scorer=scorer or log.scalar,
        unfinished="" if run is None else run.source.unfinished,
        mean_score=mean,
    )


def default_ks(num_samples: int) -> list[int]:
    """Powers of two and the usual budgets up to the largest n, and n itself, ascending.

    >>> default_ks(12)
    [1, 2, 4, 5, 8, 10, 12]
    """
    powers = {2**exponent for exponent in range(num_samples.bit_length())}
    return sorted({k for k in powers | set(USUAL_KS) if k <= num_samples} | {num_samples})


def _table(samples: Samples, ks: Sequence[int], *, resampling: Resampling) -> results.PassAtKTable:
    beyond = [k for k in ks if k > int(samples.num_samples.min())]
    estimates = estimate_pass_table(samples.num_samples, samples.num_correct, ks, resampling=resampling)
    return results.PassAtKTable(
        name=samples.name,
        source=samples.source,
        num_prompts=len(samples.prompts),
        num_samples=(int(samples.num_samples.min()), int(samples.num_samples.max())),
        rows=tuple(
            results.PassAtK(k=k, pass_at_k=at_least_one, pass_hat_k=all_of_them)
            for k, (at_least_one, all_of_them) in zip(ks, estimates, strict=True)
        ),
        forecasts=_forecasts(samples, beyond) if beyond else (),
    )


def _forecasts(samples: Samples, ks: Sequence[int]) -> tuple[results.PassAtKForecast, ...]:
    rates = fit_pass_rates(samples.num_samples, samples.num_correct)
    if isinstance(rates, str):
        unknown = Estimate.undefined_because(rates, num_units=len(samples.prompts))
        return tuple(results.PassAtKForecast(k=k, pass_at_k=unknown, pass_hat_k=unknown) for k in ks)
    return tuple(results.PassAtKForecast(k=k, pass_at_k=rates.pass_at_k(k), pass_hat_k=rates.pass_hat_k(k)) for k in ks)
