"""Harnesses: EvalPlus, lm-eval, lighteval, SkyRL's, verifiers, Harbor and SWE-bench.

A group is a document or task of one evaluation, at step 0; of SkyRL at the step in the folder's name.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, pairwise, zip_longest
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace

from gradscope.errors import InputError
from gradscope.rollouts.groups import REWARD, RewardTable, numbered_policies
from gradscope.rollouts.readers.column_roles import VERDICTS
from gradscope.rollouts.readers.format import Reading, RowFormat, has_keys, has_row
from gradscope.rollouts.readers.parsing.cells import (
    ABSENT,
    digest,
    is_number,
    list_of,
    mapping_of,
    number_in_name,
    numbers_in,
    parse_reward,
    text_of,
)
from gradscope.rollouts.readers.parsing.quarantine import TEXT_ONLY, QuarantineLog, UnusableRowError
from gradscope.rollouts.readers.parsing.records import chosen_name, list_names, peek
from gradscope.rollouts.readers.parsing.tables import Row, read_rows
from gradscope.rollouts.readers.reduction.columns import (
    Cells,
    Columns,
    Fact,
    facts_in,
    numbers_of,
    rewards_of,
    texts_in,
)
from gradscope.rollouts.readers.reduction.log import ColumnLog
from gradscope.rollouts.readers.trainers.prime_rl_episode import (
    AGENTS,
    AgentRollout,
    EpisodeLayout,
    columns_of,
    is_standalone,
    names_by_agent,
    read_trace,
)
from gradscope.say import counted

_PLUS = (
    "The verdict is EvalPlus' stricter one: base and plus tests both pass. `base` and `plus` are kept apart as rewards."
)
_BASE = "The file has no plus tests: the verdict is that of the base tests."


def _has_verdicts(document: Mapping[str, Any]) -> bool:
    first = next(iter(mapping_of(document.get("eval")).values()), None)
    sample = mapping_of(next(iter(list_of(first)), None))
    return "nfiles" in mapping_of(first) or "base_status" in sample or sample.keys() >= {"solution", "status"}


def _evalplus_samples(file: Path, quarantine: QuarantineLog) -> Iterator[Row]:
    """Base and plus verdict and solution of each sample of a task; BigCodeBench has one ``status``."""
    documents = (mapping_of(document.get("eval")) for _, document in read_rows(file, quarantine))
    for task, cell in chain.from_iterable(document.items() for document in documents):
        # Before 0.2.1 lists of [status, details]; that of plus is empty where its tests were not run.
        lists = (map(list_of, list_of(mapping_of(cell).get(suite))) for suite in ("base", "plus"))
        statuses = ([_passed(next(iter(sample), None)) for sample in samples] for samples in lists)
        samples = [(base, plus, "") for base, plus in zip_longest(*statuses)]
        for sample in map(mapping_of, list_of(cell)):
            base, plus = _passed(sample.get("base_status", sample.get("status"))), _passed(sample.get("plus_status"))
            samples.append((base, plus, text_of(sample.get("solution", sample.get("completion")))))
        for base, plus, solution in samples:
            yield f"{file}:{task}", {"task": task, "base": base, "plus": plus, "solution": solution}


def _evalplus_rows(samples: Cells) -> Columns:
    base, plus = samples.numbers("base"), samples.numbers("plus")
    return Columns(
        step=np.zeros(len(samples), dtype=np.int64),
        group=samples.cells("task"),
        numbers={
            "reward": np.where(np.isnan(plus), base, np.minimum(base, plus)),
            REWARD + "base": base,
            REWARD + "plus": plus,
        },
        no_reward=lambda _: "base_status is missing",
        noted={_BASE: np.isnan(plus), _PLUS: ~np.isnan(plus)},
        details=lambda at: {"completion": samples.cell("solution", at)},
    )


def _passed(status: Any) -> float | None:
    """1 for ``pass`` or, formerly, ``success``, 0 for ``fail``, ``timeout``, ...; None where the tests were not run."""
    return VERDICTS.get(status, 0.0) if isinstance(status, str) else None


EVALPLUS = RowFormat(
    name="evalplus",
    looks_for="*eval_results.json (EvalPlus)",
    title="EvalPlus results",
    patterns=("*eval_results.json",),
    is_one_file=True,
    recognizes_file=has_row(_has_verdicts),
    rows_of=_evalplus_samples,
    columns=lambda reading: reading.log(to_columns=_evalplus_rows),
    inferred=(_PLUS, _BASE),
    if_noted=frozenset({_PLUS, _BASE}),
)


def _one_score(most: int, harness: str, responses: str) -> str:
    return (
        f"Each document has up to {counted(most, 'response')}. {harness}, not one a response: only pass@1 can be "
        f"computed, and groups have one rollout. For more, score {responses} again and give a file with a row a "
        "response."
    )


def _lm_eval_survey(rows: Sequence[Row], reading: Reading) -> dict[str, str]:
    filters = [*dict.fromkeys(text_of(cells.get("filter")) for _, cells in rows)] or [""]
    reward = reading.request.columns.reward
    name, _, chosen = (reward or "").rpartition(",")
    filter = chosen if name and chosen in filters else filters[0]
    named = name if filter == chosen else reward
    listed = [named] if named is not None else [of for _, cells in rows for of in list_of(cells.get("metrics"))]
    for metric in dict.fromkeys(map(text_of, listed)):
        if any(is_number(cells.get(metric)) for _, cells in rows):
            return {"metric": metric, "filter": filter}
    keys = list_names(dict.fromkeys(key for _, cells in rows for key in cells))
    path = reading.request.path
    raise InputError(
        f"{path} has no score {named!r}." if named else f"{path} lists no metric that is a number.",
        hint=f"Name the score with --reward-column; the columns are {keys}.",
    )


def _lm_eval_columns(reading: Reading, metric: str | None = None, filter: str = "") -> ColumnLog | None:
    """How its rows are read; None where the first ones do not tell which score counts."""
    first = next((rows for file in reading.files if (rows := peek(file))), [])
    if metric is None:
        listed = [text_of(name) for row in first for name in list_of(row.get("metrics"))][:1]
        if reading.request.columns.reward or not any(is_number(row.get(name)) for row in first for name in listed):
            return None
        metric, filter = listed[0], text_of(first[0].get("filter"))
    named = {name: None for row in first for name in list_of(row.get("metrics")) if isinstance(name, str)}
    keys = dict.fromkeys(("doc_id", "filter", "metrics", "resps", metric, *named))

    def validate(table: RewardTable) -> RewardTable:
        filters = facts_in(reading.noted, "other filter")
        most = max(facts_in(reading.noted, "number of responses"), default=1)
        left_out = f"; rows of other filters ({', '.join(filters)}) are the same responses and left out" * bool(filters)
        reading.inferred.append(f"The score is {metric} after the filter {filter}{left_out}.")
        reading.missing.append(_one_score(most, "lm-eval logs one score a document, after its filter", "`resps`"))
        return table

    to_columns = partial(_lm_eval_rows, metric=metric, filter=filter, listed=frozenset(named))
    return reading.log(to_columns=to_columns, keys=keys, raw=("doc", "filtered_resps"), validate=validate)


def _lm_eval_rows(rows: Cells, *, metric: str, filter: str, listed: frozenset[str]) -> Columns:
    filters = texts_in(rows.names("filter"))
    responses = (len(first) for cell in rows.column("resps") for first in list_of(cell) if isinstance(first, list))
    chosen = [at for at, name in enumerate(filters) if name == filter]
    rows = rows.chosen(chosen)
    metrics = [tuple(map(text_of, list_of(cell))) for cell in rows.cells("metrics")]
    numbers = {"reward": rows.numbers(metric)}
    for name in dict.fromkeys(chain.from_iterable(dict.fromkeys(metrics))):
        is_listed = {names: name in names for names in dict.fromkeys(metrics)}
        cells = rows.column(name)
        if any(map(is_number, cells)):
            numbers[REWARD + name] = numbers_of(
                [cell if is_listed[names] else None for cell, names in zip(cells, metrics, strict=True)]
            )
    is_usual = {names: listed.issuperset(names) for names in dict.fromkeys(metrics)}
    return Columns(
        row=np.array(chosen, dtype=np.int64),
        notes=[
            *(Fact("other filter", name) for name in dict.fromkeys(filters) if name != filter),
            *(Fact("number of responses", number) for number in set(responses)),
        ],
        step=np.zeros(len(rows), dtype=np.int64),
        group=texts_in(rows.names("doc_id")),
        no_group="doc_id is missing",
        texts=lambda firsts: list(map(text_of, rows.cells("doc", firsts))),
        numbers=numbers,
        no_reward=partial(rows.no_reward, metric),
        is_odd=np.array([not is_usual[names] for names in metrics], dtype=np.bool_),  # other keys are to be read
        details=lambda at: {"completion": text_of(next(iter(list_of(rows.cell("filtered_resps", at))), None))},
    )


LM_EVAL = RowFormat(
    name="lm-eval",
    looks_for="samples_*.jsonl with doc_id, resps and filter (lm-eval)",
    title="lm-eval samples",
    patterns=("samples_*.jsonl", "*/samples_*.jsonl"),
    recognizes_file=has_keys("doc_id", "doc", "resps", "filter"),
    survey=_lm_eval_survey,
    columns=_lm_eval_columns,
    takes=frozenset({"reward_column"}),
)


_DETAILS, _OLDER_DETAILS = {"doc", "model_response", "metric"}, {"full_prompt", "predictions", "metrics"}


def _lighteval_details(file: Path, quarantine: QuarantineLog) -> Iterator[Row]:
    """The documents of a file as lighteval writes them now; older ones have no id, and a row a set of metrics."""
    for location, cells in read_rows(file, quarantine):
        if "full_prompt" in cells:
            metric, query = numbers_in(cells.get("metrics")), cells["full_prompt"]
            document = {"id": digest(query, *metric), "query": query}
            cells = {"doc": document, "model_response": {"text": cells.get("predictions")}, "metric": metric}
        yield location, cells


def _lighteval_survey(rows: Sequence[Row], reading: Reading) -> dict[str, str]:
    metrics = (name for _, cells in rows for name in numbers_in(cells.get("metric")))
    metric = chosen_name(metrics, reading.request, "metric", "no metric that is a number")
    responses = (list_of(mapping_of(cells.get("model_response")).get("text")) for _, cells in rows)
    most = max(map(len, responses), default=1)
    reading.inferred.append(f"The score is {metric}.")
    reading.missing.append(_one_score(most, "lighteval logs one value a document and metric", "the responses"))
    return {"metric": metric}


def _lighteval_rows(cells: Cells, *, metric: str) -> Columns:
    rows = cells.with_entries(("doc.id", "doc.task_name", "doc.query", "model_response.text"))
    scores = list(map(mapping_of, rows.cells("metric")))
    names = zip(texts_in(rows.names("doc.task_name")), texts_in(rows.names("doc.id")), strict=True)
    return Columns(
        step=np.zeros(len(rows), dtype=np.int64),
        group=[name and f"{task}/{name}" for task, name in names],
        no_group="doc.id is missing",
        texts=lambda chosen: list(map(text_of, rows.cells("doc.query", chosen))),
        numbers={**rewards_of(scores), "reward": numbers_of([of_row.get(metric) for of_row in scores])},
        no_reward=lambda at: str(parse_reward(scores[at].get(metric, ABSENT))),
        details=lambda at: {"completion": text_of(next(iter(list_of(rows.cell("model_response.text", at))), None))},
    )


LIGHTEVAL = RowFormat(
    name="lighteval",
    looks_for="details_*.parquet with doc, model_response and metric, or predictions and metrics (lighteval)",
    title="lighteval details",
    patterns=("details_*.parquet",),
    recognizes_file=has_row(lambda row: row.keys() >= _DETAILS or row.keys() >= _OLDER_DETAILS),
    rows_of=_lighteval_details,
    survey=_lighteval_survey,
    columns=lambda reading, metric=None: (
        None if metric is None else reading.log(to_columns=partial(_lighteval_rows, metric=metric))
    ),
    takes=frozenset({"reward_column"}),
)


_SKYRL_STEP = re.compile(r"^global_step_([0-9]+)(?:_evals$|\.|$)")
_SKYRL_BY_PROMPT = "Responses to one prompt of one data source are a group; equal prompts merge."
_SKYRL_SUMMED = "Scores that are lists hold a reward a token, and count as their sum, as SkyRL's own mean reward does."


def _skyrl_columns(reading: Reading, *, is_surveyed: bool = False) -> ColumnLog:
    return reading.log(
        to_columns=_skyrl_rows,
        keys=("score", "data_source", "stop_reason"),
        raw=("input_prompt", "output_response"),
        looks_at_path=True,
        **({} if is_surveyed else {"needs_texts": True, "validate": _if_apart}),
    )


def _if_apart(table: RewardTable) -> RewardTable | None:
    """A table of prompts none of which begins with another, as that of a later turn does."""
    prompts = sorted(table.prompt_texts or ())
    return None if any(second.startswith(first) for first, second in pairwise(prompts)) else table


def _refuse_turns(rows: Sequence[Row], reading: Reading) -> dict[str, Any]:
    """Refuse rows that are turns: the prompt of one continues the response of another."""
    texts = [(text_of(cells.get("input_prompt")), text_of(cells.get("output_response"))) for _, cells in rows]
    prompts = sorted({prompt for prompt, _ in texts})
    for (location, _), (prompt, response) in zip(rows, texts, strict=True):
        so_far = prompt + response
        at = bisect_left(prompts, so_far)
        if response and at < len(prompts) and prompts[at].startswith(so_far):
            raise InputError(
                f"{location} is a turn of a trajectory that another row continues: which rows belong together is "
                "not logged.",
                hint="Evaluate with generator.step_wise_trajectories off, so that a row is a whole trajectory.",
            )
    return {"is_surveyed": True}


def _skyrl_rows(rows: Cells) -> Columns:
    step = number_in_name(_SKYRL_STEP, rows.path.resolve()) or 0
    sums = [isinstance(cell, list) for cell in rows.column("score")]
    scored = rows.changed("score", lambda cells: list(map(_skyrl_total, cells))) if any(sums) else rows
    prompts, sources = rows.prompt_ids("input_prompt"), rows.names("data_source")
    return Columns(
        step=np.full(len(rows), step, dtype=np.int64),
        group=[prompt and f"{source}/{prompt}" for source, prompt in zip(sources, prompts, strict=True)],
        no_group="input_prompt is missing",
        texts=lambda chosen: list(map(text_of, rows.cells("input_prompt", chosen))),
        numbers={"reward": scored.numbers("score"), "truncated": rows.truncated("stop_reason")},
        no_reward=partial(scored.no_reward, "score"),
        noted={_SKYRL_SUMMED: np.array(sums)},
        details=lambda at: {"completion": text_of(rows.cell("output_response", at))},
    )


def _skyrl_total(score: Any) -> Any:
    """The sum of a list of numbers; its first element that is no number, or a cell that is no list, as it is."""
    if not isinstance(score, list) or not score:
        return score
    try:
        total = math.fsum(score)
    except (OverflowError, TypeError, ValueError):
        total = math.inf
    if math.isfinite(total):
        return total
    return next((cell for cell in score if isinstance(parse_reward(cell), str)), total)


SKYRL = RowFormat(
    name="skyrl-eval",
    looks_for="dumped_evals/*/*.jsonl with input_prompt, output_response and score (SkyRL)",
    title="SkyRL evaluation",
    patterns=("dumped_evals/*/*.jsonl", "*_evals/*.jsonl", "eval_only/*.jsonl", "*.jsonl"),
    keeps_file=lambda file: file.name != "aggregated_results.jsonl",
    recognizes_file=has_keys("input_prompt", "output_response", "score"),
    survey=_refuse_turns,
    columns=_skyrl_columns,
    inferred=(_SKYRL_BY_PROMPT, _SKYRL_SUMMED),
    if_noted=frozenset({_SKYRL_SUMMED}),
    missing=(TEXT_ONLY,),
)


_BY_TASK = "Episodes of one task (task.key, else task.hash) of an environment are the samples of a prompt."


def _verifiers_columns(reading: Reading) -> ColumnLog:
    def to_columns(rollouts: Sequence[AgentRollout], _: Path) -> Columns:
        step = np.zeros(len(rollouts), dtype=np.int64)
        columns = columns_of(rollouts, step, lambda at: read_trace(rollouts[at].plain), reading.noted.add)
        ids = [rollout.trace.id if isinstance(rollout.trace.id, str) else None for rollout in rollouts]
        return replace(
            columns, prompts=lambda chosen: [_verifiers_prompt(rollouts[at].line) for at in chosen], samples=ids
        )

    return reading.log(
        to_columns=EpisodeLayout(names=names_by_agent, group=_verifiers_prompt, to_columns=to_columns).columns_of_cells
    )


def _verifiers_prompt(episode: Mapping[str, Any]) -> str:
    if not is_standalone(episode):
        raise UnusableRowError("the episode is not of an evaluation")
    task, environment = mapping_of(episode.get("task")), mapping_of(episode.get("env"))
    name = text_of(task.get("key")) or text_of(task.get("hash")) or (digest(task["data"]) if task.get("data") else "")
    if not name:
        raise UnusableRowError("task.key, task.hash and task.data are missing")
    return f"{text_of(environment.get('name')) or text_of(environment.get('id'))}/{name}"


VERIFIERS = RowFormat(
    name="verifiers",
    looks_for="traces.jsonl of a run of type eval (verifiers)",
    title="verifiers evaluation",
    patterns=("traces.jsonl",),
    recognizes_file=has_row(is_standalone),
    columns=_verifiers_columns,
    inferred=(_BY_TASK, AGENTS),
    if_noted=frozenset({AGENTS}),
)


_FAILED = "Trials that ended in an error, without a verdict, count as failed, as in Harbor's mean."
_BY_TRIAL = "Trials of one task by one agent and model are the samples of a prompt."


def harbor_policy(agent_info: Any) -> str:
    """The agent and the model of a trial, as far as it names them."""
    agent = mapping_of(agent_info)
    names = (agent.get("name"), mapping_of(agent.get("model_info")).get("name"))
    return "/".join(filter(None, map(text_of, names)))


def _harbor_rows(trials: Cells) -> Columns:
    scores = [mapping_of(mapping_of(cell).get("rewards")) for cell in trials.cells("verifier_result")]
    main = ["reward" if "reward" in of or len(of) != 1 else next(iter(of)) for of in scores]
    has_failed = [
        not of and error is not None for of, error in zip(scores, trials.cells("exception_info"), strict=True)
    ]
    rewards = [0.0 if has else of.get(name) for has, of, name in zip(has_failed, scores, main, strict=True)]
    policies = list(map(harbor_policy, trials.cells("agent_info")))
    names, policy = numbered_policies(policies)
    tasks = texts_in(trials.names("task_name"))
    return Columns(
        step=np.zeros(len(trials), dtype=np.int64),
        group=[task and f"{policy}/{task}" for policy, task in zip(policies, tasks, strict=True)],
        no_group="task_name is missing",
        prompts=lambda chosen: [tasks[at] for at in chosen],
        numbers={**rewards_of([of if len(of) > 1 else None for of in scores]), "reward": numbers_of(rewards), **policy},
        policies=names,
        no_reward=lambda _: "verifier_result has no reward",
        samples=texts_in(trials.names("trial_name")),
        noted={_FAILED: np.array(has_failed)},
        details=lambda _: {"completion": ""},  # which another file of the trial's has
    )


HARBOR = RowFormat(
    name="harbor",
    looks_for="*/result.json with task_name and verifier_result (a job of Harbor)",
    title="Harbor trials",
    patterns=("*/result.json",),
    recognizes_file=has_keys("task_name", "verifier_result"),
    columns=lambda reading: reading.log(
        to_columns=_harbor_rows,
        keys=("task_name", "trial_name", "verifier_result", "agent_info", "exception_info"),
    ),
    inferred=(_BY_TRIAL, _FAILED),
    if_noted=frozenset({_FAILED}),
)


_NO_REPORT = (
    "Instances without a report.json (an empty patch, an error of the harness) are not counted here; the run's own "
    "report (MODEL.RUN.json) counts them as not resolved."
)


def _swe_bench_reports(file: Path, quarantine: QuarantineLog) -> Iterator[Row]:
    for _, document in read_rows(file, quarantine):
        for instance, report in document.items():
            yield f"{file}:{instance}", {"instance": instance, **mapping_of(report)}


def _swe_bench_rows(reports: Cells) -> Columns:
    return Columns(
        step=np.zeros(len(reports), dtype=np.int64),
        group=reports.names("instance"),
        numbers={"reward": reports.numbers("resolved")},
        no_reward=partial(reports.no_reward, "resolved"),
        details=lambda _: {"completion": ""},  # which patch.diff has
    )


SWE_BENCH = RowFormat(
    name="swe-bench",
    looks_for="*/report.json, an instance with resolved each (a model's folder of SWE-bench)",
    title="SWE-bench reports",
    patterns=("*/report.json",),
    recognizes_file=has_row(
        lambda row: any(mapping_of(of).keys() >= {"patch_exists", "resolved"} for of in row.values())
    ),
    rows_of=_swe_bench_reports,
    columns=lambda reading: reading.log(to_columns=_swe_bench_rows),
    missing=(_NO_REPORT,),
)
