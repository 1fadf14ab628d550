"""Harnesses: EvalPlus, lm-eval, lighteval, EvalScope, OpenCompass, NeMo-RL's, Harbor, SWE-bench, promptfoo and others.

A group is a document or task of one evaluation, at step 0.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import UNSET
from msgspec.structs import replace
from numpy.typing import NDArray

from gradscope.errors import InputError
from gradscope.rollouts.groups import REWARD, RewardTable, numbered_policies
from gradscope.rollouts.readers.column_roles import VERDICTS
from gradscope.rollouts.readers.format import IfNoted, Reading, RowFormat, has_keys, has_row
from gradscope.rollouts.readers.parsing import cells as parse
from gradscope.rollouts.readers.parsing.quarantine import TEXT_ONLY, QuarantineLog
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
from gradscope.say import counted

_PLUS = IfNoted(
    "The verdict is EvalPlus' stricter one: base and plus tests both pass. `base` and `plus` are kept apart as rewards."
)
_BASE = IfNoted("The file has no plus tests: the verdict is that of the base tests.")


def _has_verdicts(document: Mapping[str, Any]) -> bool:
    first = next(iter(parse.mapping_of(document.get("eval")).values()), None)
    sample = parse.mapping_of(next(iter(parse.list_of(first)), None))
    return "nfiles" in parse.mapping_of(first) or "base_status" in sample or sample.keys() >= {"solution", "status"}


def _evalplus_samples(file: Path, quarantine: QuarantineLog) -> Iterator[Row]:
    """Base and plus verdict and solution of each sample of a task; BigCodeBench has one ``status``."""

    def passed(status: Any) -> float | None:  # None where the tests were not run
        return VERDICTS.get(status, 0.0) if isinstance(status, str) else None

    documents = (parse.mapping_of(document.get("eval")) for _, document in read_rows(file, quarantine))
    for task, cell in chain.from_iterable(document.items() for document in documents):
        # Before 0.2.1 lists of [status, details]; that of plus is empty where its tests were not run.
        lists = (map(parse.list_of, parse.list_of(parse.mapping_of(cell).get(suite))) for suite in ("base", "plus"))
        statuses = ([passed(next(iter(sample), None)) for sample in samples] for samples in lists)
        samples = [(base, plus, "") for base, plus in zip_longest(*statuses)]
        for sample in map(parse.mapping_of, parse.list_of(cell)):
            base, plus = passed(sample.get("base_status", sample.get("status"))), passed(sample.get("plus_status"))
            samples.append((base, plus, parse.text_of(sample.get("solution", sample.get("completion")))))
        for base, plus, solution in samples:
            yield f"{file}:{task}", {"task": task, "base": base, "plus": plus, "solution": solution}


def _evalplus_rows(samples: Cells) -> Columns:
    base, plus = samples.numbers("base"), samples.numbers("plus")
    reward = np.where(np.isnan(plus), base, np.minimum(base, plus))
    return Columns(
        step=np.zeros(len(samples), dtype=np.int64),
        group=samples.cells("task"),
        numbers={"reward": reward, REWARD + "base": base, REWARD + "plus": plus},
        no_reward=lambda _: "base_status is missing",
        noted={_BASE: np.isnan(plus), _PLUS: ~np.isnan(plus)},
        details=lambda at: {"completion": samples.cell("solution", at)},
    )


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
)


_SHARE = re.compile(r"(?:\w+_)?(?:pass@(?:1|k:k=1)|avg@n)(?:(?::|:n=|&n=)([0-9]{1,6})(?:_samples)?)?")
"""Scores of a document that are the share of right ones among its responses, or among so many of them."""


def _samples_of_shares(
    score: str, shares: Sequence[float], sizes: Sequence[int]
) -> tuple[list[int], NDArray[np.float64], NDArray[np.int64]]:
    """The row, reward and number of the samples of rows with so many responses; a score that is no share is one."""
    share_of, samples = _SHARE.fullmatch(score), list[tuple[int, float, int]]()
    for at, (share, size) in enumerate(zip(shares, sizes, strict=True)):
        num = int(share_of[1] or size) if share_of else 1
        right = round(share * num) if math.isfinite(share) else -1
        if 1 < num <= size and 0 <= right <= num and math.isclose(share * num, right, abs_tol=1e-6):
            samples += [(at, reward, count) for reward, count in ((1.0, right), (0.0, num - right)) if count]
        else:
            samples.append((at, share, 1))
    return [at for at, *_ in samples], np.array([of[1] for of in samples]), np.array([of[2] for of in samples], int)


def _one_score(score: str, most: int) -> str:
    if _SHARE.fullmatch(score):
        return f"Which responses are right is not logged, but how many, by {score}: texts go with no verdict."
    return (
        f"Each document has up to {counted(most, 'response')} and one score: only pass@1 can be computed. For more, "
        "score the responses again and give a file with a row a response."
    )


def _lm_eval_survey(rows: Sequence[Row], reading: Reading) -> dict[str, str]:
    filters = [*dict.fromkeys(parse.text_of(cells.get("filter")) for _, cells in rows)] or [""]
    reward = reading.request.columns.reward
    name, _, chosen = (reward or "").rpartition(",")
    filter = chosen if name and chosen in filters else filters[0]
    named = name if filter == chosen else reward
    listed = [named] if named is not None else [of for _, cells in rows for of in parse.list_of(cells.get("metrics"))]
    for metric in dict.fromkeys(map(parse.text_of, listed)):
        if any(parse.is_number(cells.get(metric)) for _, cells in rows):
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
        listed = [parse.text_of(name) for row in first for name in parse.list_of(row.get("metrics"))][:1]
        if reading.request.columns.reward or not any(
            parse.is_number(row.get(name)) for row in first for name in listed
        ):
            return None
        metric, filter = listed[0], parse.text_of(first[0].get("filter"))
    named = {name: None for row in first for name in parse.list_of(row.get("metrics")) if isinstance(name, str)}
    keys = dict.fromkeys(("doc_id", "filter", "metrics", "resps", metric, *named))

    def validate(table: RewardTable) -> RewardTable:
        filters = facts_in(reading.noted, "other filter")
        most = max(facts_in(reading.noted, "number of responses"), default=1)
        left_out = f"; rows of other filters ({', '.join(filters)}) are the same responses and left out" * bool(filters)
        reading.inferred.append(f"The score is {metric} after the filter {filter}{left_out}.")
        reading.missing.append(_one_score(metric, most))
        return table

    to_columns = partial(_lm_eval_rows, metric=metric, filter=filter, listed=frozenset(named))
    return reading.log(to_columns=to_columns, keys=keys, raw=("doc", "filtered_resps"), validate=validate)


def _lm_eval_rows(rows: Cells, *, metric: str, filter: str, listed: frozenset[str]) -> Columns:
    filters = texts_in(rows.names("filter"))
    sizes = [max(map(len, map(parse.list_of, parse.list_of(cell))), default=0) for cell in rows.column("resps")]
    chosen = [at for at, name in enumerate(filters) if name == filter]
    shares = rows.chosen(chosen).numbers(metric).tolist()
    samples, reward, count = _samples_of_shares(metric, shares, [sizes[at] for at in chosen])
    chosen = [chosen[at] for at in samples]
    rows = rows.chosen(chosen)
    metrics = [tuple(map(parse.text_of, parse.list_of(cell))) for cell in rows.cells("metrics")]
    numbers = {"reward": reward}
    for name in dict.fromkeys(chain.from_iterable(dict.fromkeys(metrics))):
        is_listed = {names: name in names for names in dict.fromkeys(metrics)}
        cells = rows.column(name)
        if any(map(parse.is_number, cells)):
            numbers[REWARD + name] = numbers_of(
                [cell if is_listed[names] else None for cell, names in zip(cells, metrics, strict=True)]
            )
    is_usual = {names: listed.issuperset(names) for names in dict.fromkeys(metrics)}
    return Columns(
        row=np.array(chosen, dtype=np.int64),
        count=count,
        notes=[
            *(Fact("other filter", name) for name in dict.fromkeys(filters) if name != filter),
            *(Fact("number of responses", number) for number in set(sizes) if number),
        ],
        step=np.zeros(len(rows), dtype=np.int64),
        group=texts_in(rows.names("doc_id")),
        no_group="doc_id is missing",
        texts=lambda firsts: list(map(parse.text_of, rows.cells("doc", firsts))),
        numbers=numbers,
        no_reward=partial(rows.no_reward, metric),
        is_odd=np.array([not is_usual[names] for names in metrics], dtype=np.bool_),  # other keys are to be read
        details=lambda at: {
            "completion": parse.text_of(next(iter(parse.list_of(rows.cell("filtered_resps", at))), None))
        },
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
    """The documents of a file; older ones have no id, and a row a set of metrics."""
    metric: Any  # score -> its value
    for location, cells in read_rows(file, quarantine):
        if "full_prompt" in cells:
            metric, query = parse.numbers_in(cells.get("metrics")), cells["full_prompt"]
            test, responses = parse.digest(query, *metric), parse.list_of(cells.get("predictions"))
        else:
            metric, document = cells.get("metric"), parse.mapping_of(cells.get("doc"))
            name, query = parse.text_of(document.get("id")), document.get("query")
            test = name and f"{parse.text_of(document.get('task_name'))}/{name}"
            responses = parse.list_of(parse.mapping_of(cells.get("model_response")).get("text"))
        sample = {"test": test, "prompt": parse.text_of(query), "responses": responses, "success": metric}
        yield location, {**sample, "completion": next(iter(responses), None), "scores": metric}


def _survey_scores(rows: Sequence[Row], reading: Reading) -> dict[str, str]:
    metrics = (name for _, cells in rows for name in parse.numbers_in(cells["success"]))
    metric = chosen_name(metrics, reading.request, "metric", "no metric that is a number")
    reading.inferred.append(f"The score is {metric}.")
    if most := max((len(cells.get("responses", ())) for _, cells in rows), default=0):
        reading.missing.append(_one_score(metric, most))
    return {"score": metric}


def _columns_of_score(reading: Reading, score: str | None = None) -> ColumnLog | None:
    """How rows are read whose ``success`` is an object of scores; None until the one that counts is chosen."""

    def rows_with_score(rows: Cells) -> Columns:
        scored = rows.changed("success", lambda cells: [parse.mapping_of(of).get(score, UNSET) for of in cells])
        sizes = [len(parse.list_of(responses)) for responses in rows.column("responses")]
        samples, reward, count = _samples_of_shares(score or "", scored.numbers("success").tolist(), sizes)
        columns = _rows_of_tests(scored.chosen(samples))
        return replace(columns, row=np.array(samples, int), numbers=columns.numbers | {"reward": reward}, count=count)

    return None if score is None else reading.log(to_columns=rows_with_score)


LIGHTEVAL = RowFormat(
    name="lighteval",
    looks_for="details_*.parquet with doc, model_response and metric, or predictions and metrics (lighteval)",
    title="lighteval details",
    patterns=("details_*.parquet",),
    recognizes_file=has_row(lambda row: row.keys() >= _DETAILS or row.keys() >= _OLDER_DETAILS),
    rows_of=_lighteval_details,
    survey=_survey_scores,
    columns=_columns_of_score,
    takes=frozenset({"reward_column"}),
)


def _evalscope_reviews(file: Path, quarantine: QuarantineLog) -> Iterator[Row]:
    for location, review in read_rows(file, quarantine):
        about, talk = parse.mapping_of(review["sample_score"]), parse.cut_conversation(review.get("messages"))
        score, name = parse.mapping_of(about.get("score")), parse.text_of(review.get("index"))
        main, scores = score.get("main_score_name"), parse.mapping_of(score.get("value"))
        sample = {
            "test": parse.text_of(about.get("group_id")) or name,
            "prompt": talk.prompt or parse.text_of(review.get("input")),
            "completion": talk.completion or parse.text_of(score.get("prediction")),
            "success": {main: scores[main], **scores} if main in scores else scores,
            "scores": scores,
            "sample": name,
        }
        yield location, sample


EVALSCOPE = RowFormat(
    name="evalscope",
    looks_for="reviews/*/*.jsonl with index and sample_score (EvalScope)",
    title="EvalScope reviews",
    patterns=("*.jsonl",),
    is_one_file=True,
    recognizes_file=has_keys("index", "sample_score"),
    rows_of=_evalscope_reviews,
    survey=_survey_scores,
    columns=_columns_of_score,
    inferred=("Repeats of a question (its group_id) are the samples of a prompt.",),
    takes=frozenset({"reward_column"}),
)


def _opencompass_details(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    details = map(parse.mapping_of, parse.list_of(document.get("details")))
    return [detail for detail in details if "example_abbr" in detail]


def _opencompass_samples(file: Path, quarantine: QuarantineLog) -> Iterator[Row]:
    for detail in chain.from_iterable(_opencompass_details(document) for _, document in read_rows(file, quarantine)):
        test = parse.text_of(detail["example_abbr"])
        names = (("correct", "is_correct", "cascade_correct"), ("pred", "prediction", "completion"))
        lists = (filter(None, (parse.list_of(detail.get(name)) for name in of_a_kind)) for of_a_kind in names)
        verdicts, texts = (next(of_a_kind, []) for of_a_kind in lists)
        for verdict, text in zip_longest(verdicts or [parse.ABSENT], texts[: len(verdicts)]):
            yield f"{file}:{test}", {"test": test, "completion": parse.text_of(text), "success": verdict}


OPENCOMPASS = RowFormat(
    name="opencompass",
    looks_for="results/*/*.json with details that have an example_abbr (OpenCompass)",
    title="OpenCompass results",
    patterns=("*.json",),
    is_one_file=True,
    recognizes_file=has_row(lambda row: bool(_opencompass_details(row))),
    rows_of=_opencompass_samples,
    columns=lambda reading: reading.log(to_columns=_rows_of_tests),
    inferred=("Runs of an example are the samples of a prompt.",),
)


_FAILED = IfNoted("Trials that ended in an error, without a verdict, count as failed, as in Harbor's mean.")


def harbor_policy(agent_info: Any) -> str:
    """The agent and the model of a trial, as far as it names them."""
    agent = parse.mapping_of(agent_info)
    names = (agent.get("name"), parse.mapping_of(agent.get("model_info")).get("name"))
    return "/".join(filter(None, map(parse.text_of, names)))


def _harbor_trials(file: Path, quarantine: QuarantineLog) -> Iterator[Row]:
    for location, trial in read_rows(file, quarantine):
        scores = parse.mapping_of(parse.mapping_of(trial.get("verifier_result")).get("rewards"))
        main = "reward" if "reward" in scores or len(scores) != 1 else next(iter(scores))
        has_failed = not scores and trial.get("exception_info") is not None
        sample = {
            "test": trial.get("task_name"),
            "provider": harbor_policy(trial.get("agent_info")),
            "success": 0.0 if has_failed else scores.get(main, parse.ABSENT),
            "scores": scores if len(scores) > 1 else None,
            "error": has_failed,
            "sample": trial.get("trial_name"),
        }
        yield location, sample


HARBOR = RowFormat(
    name="harbor",
    looks_for="*/result.json with task_name and verifier_result (a job of Harbor)",
    title="Harbor trials",
    patterns=("*/result.json",),
    recognizes_file=has_keys("task_name", "verifier_result"),
    rows_of=_harbor_trials,
    columns=lambda reading: reading.log(to_columns=partial(_rows_of_tests, if_error=_FAILED)),
    inferred=("Trials of one task by one agent and model are the samples of a prompt.", _FAILED),
)


def _swe_bench_reports(file: Path, quarantine: QuarantineLog) -> Iterator[Row]:
    for _, document in read_rows(file, quarantine):
        for instance, report in document.items():
            yield f"{file}:{instance}", {"test": instance, "success": parse.mapping_of(report).get("resolved")}


SWE_BENCH = RowFormat(
    name="swe-bench",
    looks_for="*/report.json, an instance with resolved each (a model's folder of SWE-bench)",
    title="SWE-bench reports",
    patterns=("*/report.json",),
    recognizes_file=has_row(
        lambda row: any(parse.mapping_of(of).keys() >= {"patch_exists", "resolved"} for of in row.values())
    ),
    rows_of=_swe_bench_reports,
    columns=lambda reading: reading.log(to_columns=_rows_of_tests),
    missing=(
        "Instances without a report.json (an empty patch, an error of the harness) are not counted here; the run's own "
        "report (MODEL.RUN.json) counts them as not resolved.",
    ),
)


_BY_TEST = "Results of one test (its prompt, variables and assertions) by one provider are the samples of a prompt."
_NO_ANSWER = IfNoted("Calls that ended in an error count as failed, as in promptfoo's pass rate.")
_ERROR = 2  # promptfoo's ``failureReason`` of a call that ended in an error; 1 is that of a failed assertion


def _promptfoo_results(document: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """The results of a file as ``--output`` writes it, of its summary alone, or of a line; none of anything else."""
    inner = parse.mapping_of(document.get("results"))
    results = [document] if "promptIdx" in document else parse.list_of(inner.get("results", document.get("results")))
    return [result for result in map(parse.mapping_of, results) if result.keys() >= {"prompt", "vars", "success"}]


def _promptfoo_samples(file: Path, quarantine: QuarantineLog) -> Iterator[Row]:
    for location, document in read_rows(file, quarantine):
        for result in _promptfoo_results(document):
            provider = parse.mapping_of(result.get("provider"))
            sample = {
                "test": parse.digest(
                    result["prompt"], result["vars"], parse.mapping_of(result.get("testCase")).get("assert")
                ),
                "provider": provider.get("label") or provider.get("id") or result.get("provider"),
                "prompt": parse.text_of(parse.mapping_of(result["prompt"]).get("raw")),
                "completion": parse.text_of(parse.mapping_of(result.get("response")).get("output")),
                "success": result["success"],
                "scores": {"score": result.get("score"), **parse.mapping_of(result.get("namedScores"))},
                "error": result.get("failureReason") == _ERROR,
            }
            yield location, sample


def _rows_of_tests(results: Cells, if_error: str = "") -> Columns:
    providers = texts_in(results.names("provider"))
    policies, policy = numbered_policies(providers)
    tests = texts_in(results.names("test"))
    return Columns(
        step=np.zeros(len(results), dtype=np.int64),
        group=["/".join(filter(None, (test and of, test))) for of, test in zip(providers, tests, strict=True)],
        no_group="the test has no name",
        prompts=lambda chosen: [tests[at] for at in chosen],
        texts=lambda chosen: results.cells("prompt", chosen),
        numbers={**rewards_of(results.cells("scores")), "reward": results.numbers("success"), **policy},
        policies=policies,
        no_reward=partial(results.no_reward, "success"),
        samples=[name or None for name in texts_in(results.names("sample"))],
        noted={if_error: np.array(results.cells("error"))} if if_error else {},
        details=lambda at: {"completion": parse.text_of(results.cell("completion", at))},
    )


PROMPTFOO = RowFormat(
    name="promptfoo",
    looks_for="the file of promptfoo eval --output, JSON or JSON lines",
    title="promptfoo results",
    patterns=("*.json", "*.jsonl"),
    is_one_file=True,
    recognizes_file=has_row(lambda row: bool(_promptfoo_results(row))),
    rows_of=_promptfoo_samples,
    columns=lambda reading: reading.log(to_columns=partial(_rows_of_tests, if_error=_NO_ANSWER)),
    inferred=(_BY_TEST, _NO_ANSWER),
)


def _only(row: Mapping[str, Any], key: str) -> Any:
    """The value in a row of NeMo-RL's, which is a batch of one, so that each cell is a list of length 1."""
    return next(iter(parse.list_of(row.get(key))), None)


def _nemo_rl_samples(file: Path, quarantine: QuarantineLog) -> Iterator[Row]:
    for location, row in read_rows(file, quarantine):
        parts, reward = parse.cut_conversation(_only(row, "content")), _only(row, "rewards")
        test = parts.prompt and parse.digest(parts.prompt)
        yield location, {"test": test, "prompt": parts.prompt, "completion": parts.completion, "success": reward}


NEMO_RL = RowFormat(
    name="nemo-rl-val",
    looks_for="val_data_step*.jsonl with content and rewards (NeMo-RL)",
    title="NeMo-RL validation",
    patterns=("val_data_step*.jsonl",),
    is_one_file=True,
    recognizes_file=has_row(lambda row: "rewards" in row and parse.is_list_of_objects(_only(row, "content"))),
    rows_of=_nemo_rl_samples,
    columns=lambda reading: reading.log(to_columns=_rows_of_tests),
    inferred=("Responses to one prompt are a group; equal prompts merge.",),
    missing=(TEXT_ONLY,),
)


_HELM_SCORES = (  # most telling first; beside them are counts of tokens and the like
    *("exact_match", "quasi_exact_match", "prefix_exact_match", "quasi_prefix_exact_match"),
    *("final_number_exact_match", "math_equiv_chain_of_thought", "math_equiv", "test_avg", "strict_acc"),
)


def _helm_instances(file: Path, quarantine: QuarantineLog) -> Iterator[Row]:
    for location, block in read_rows(file, quarantine):
        stats = map(parse.mapping_of, parse.list_of(block.get("stats")))
        means = {parse.text_of(parse.mapping_of(of.get("name")).get("name")): of.get("mean") for of in stats}
        test = filter(None, (parse.text_of(block.get(key)) for key in ("instance_id", "perturbation")))
        yield location, {"test": "/".join(test), "success": means}


def _helm_survey(rows: Sequence[Row], reading: Reading) -> dict[str, str]:
    names = list(dict.fromkeys(chain.from_iterable(parse.numbers_in(row.get("success")) for _, row in rows)))
    named = reading.request.columns.reward
    score = next((of for of in ((named,) if named else _HELM_SCORES) if of in names), None)
    if score is None:
        noun = "usual score" if named is None else f"score {named!r}"
        raise InputError(
            f"{reading.request.path} has no {noun}.", hint=f"Name it: --reward-column NAME, one of {list_names(names)}."
        )
    reading.inferred.append(f"The score is {score}; others are {list_names(of for of in names if of != score)}.")
    return {"score": score}


HELM = RowFormat(
    name="helm",
    looks_for="per_instance_stats.json (HELM)",
    title="HELM instances",
    patterns=("per_instance_stats.json",),
    recognizes_file=has_keys("instance_id", "train_trial_index", "stats"),
    rows_of=_helm_instances,
    survey=_helm_survey,
    columns=_columns_of_score,
    inferred=("Trials of an instance, with other examples in its prompt, are its samples; perturbed, it is another.",),
    takes=frozenset({"reward_column"}),
)


def _aider_results(file: Path, quarantine: QuarantineLog) -> Iterator[Row]:
    for location, result in read_rows(file, quarantine):
        language = file.resolve().parents[3].name if file.parent.parent.name == "practice" else ""
        tries = parse.list_of(result["tests_outcomes"])  # of which aider ends at the first that passes
        sample = {
            "test": "/".join(filter(None, (language, parse.text_of(result.get("testcase"))))),
            "provider": "/".join(filter(None, (parse.text_of(result.get(key)) for key in ("model", "edit_format")))),
            "success": tries[-1] if tries else False,
            "scores": {"first_try": tries[0] if tries else False},
        }
        yield location, sample


AIDER = RowFormat(
    name="aider",
    looks_for="*/exercises/practice/*/.aider.results.json (aider's benchmark)",
    title="aider results",
    patterns=tuple(f"{of}.aider.results.json" for of in ("*/exercises/practice/*/", "exercises/practice/*/", "*/", "")),
    recognizes_file=has_keys("testcase", "tests_outcomes"),
    rows_of=_aider_results,
    columns=lambda reading: reading.log(to_columns=_rows_of_tests),
    inferred=("An exercise passed if its last try did; the first is a reward of its own.",),
)


def _multipl_e_programs(file: Path, quarantine: QuarantineLog) -> Iterator[Row]:
    for location, problem in read_rows(file, quarantine):
        test = "/".join(filter(None, (parse.text_of(problem.get(key)) for key in ("language", "name"))))
        for result in map(parse.mapping_of, parse.list_of(problem.get("results"))):
            has_passed = (result.get("status"), result.get("exit_code")) == ("OK", 0)
            yield location, {"test": test, "completion": parse.text_of(result.get("program")), "success": has_passed}


MULTIPL_E = RowFormat(
    name="multipl-e",
    looks_for="*.results.json.gz, a problem with name and results each (MultiPL-E)",
    title="MultiPL-E results",
    patterns=("*.results.json*",),
    recognizes_file=has_row(
        lambda row: all("exit_code" in parse.mapping_of(of) for of in parse.list_of(row.get("results")) or [0])
    ),
    rows_of=_multipl_e_programs,
    columns=lambda reading: reading.log(to_columns=_rows_of_tests),
)
