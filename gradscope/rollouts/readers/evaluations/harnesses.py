"""Harnesses: EvalPlus, lm-eval, lighteval, EvalScope, OpenCompass, SkyRL's, NeMo-RL's, Harbor, SWE-bench and others.

A group is a document or task of one evaluation, at step 0; of SkyRL at the step in the folder's name.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, pairwise, zip_longest
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import UNSET
from msgspec.structs import replace

from gradscope.errors import InputError
from gradscope.rollouts.arrays import Counts, Floats
from gradscope.rollouts.groups import REWARD, RewardTable, numbered_policies
from gradscope.rollouts.readers.column_roles import VERDICTS
from gradscope.rollouts.readers.format import IfNoted, Reading, RowFormat, has_keys, has_row, interpreted_by
from gradscope.rollouts.readers.parsing import cells as parse
from gradscope.rollouts.readers.parsing.quarantine import TEXT_ONLY, QuarantineLog
from gradscope.rollouts.readers.parsing.records import list_names
from gradscope.rollouts.readers.parsing.tables import Row, read_rows
from gradscope.rollouts.readers.reduction.columns import Cells, Columns, texts_in
from gradscope.rollouts.readers.reduction.log import ColumnLog
from gradscope.rollouts.readers.reduction.numbers import rewards_of


def _rows_of_tests(results: Cells, if_error: str = "") -> Columns:
    """Rows of which ``rows_of`` made ``test``, ``success`` and more, as most here do."""
    providers = texts_in(results.names("provider"))
    policies, policy = numbered_policies(providers)
    tests, samples = texts_in(results.names("test")), texts_in(results.names("sample"))
    return Columns(
        step=np.zeros(len(results), dtype=np.int64),
        group=["/".join(filter(None, (test and name, test))) for name, test in zip(providers, tests, strict=True)],
        no_group="the test has no name",
        prompts=lambda chosen: [tests[row] for row in chosen],
        texts=lambda chosen: list(map(parse.text_of, results.cells("prompt", chosen))),
        numbers={**rewards_of(results.cells("scores")), "reward": results.numbers("success"), **policy},
        policies=policies,
        no_reward=partial(results.no_reward, "success"),
        samples=[name or None for name in samples] if any(samples) else None,
        noted={if_error: np.array(results.cells("error"))} if if_error else {},
        details=lambda row: {"completion": parse.text_of(results.cell("completion", row))},
    )


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
            samples.append((base, plus, sample.get("solution", sample.get("completion"))))
        for base, plus, solution in samples:
            verdict = base if base is None or plus is None else min(base, plus)
            scores = {"base": base, "plus": plus}
            yield f"{file}:{task}", {"test": task, "completion": solution, "success": verdict, "scores": scores}


def _evalplus_rows(samples: Cells) -> Columns:
    are_base = np.array([scores["plus"] is None for scores in samples.cells("scores")])
    return replace(_rows_of_tests(samples), noted={_BASE: are_base, _PLUS: ~are_base})


EVALPLUS = RowFormat(
    name="evalplus",
    title="EvalPlus results",
    patterns=("*eval_results.json",),
    is_one_file=True,
    recognizes_file=has_row(_has_verdicts),
    rows_of=_evalplus_samples,
    columns=interpreted_by(_evalplus_rows),
    inferred=(_PLUS, _BASE),
)

_SHARE = re.compile(r"(?:\w+_)?(?:pass@(?:1|k:k=1)|avg@n)(?:(?::|:n=|&n=)([0-9]{1,6})(?:_samples)?)?")
"""Scores of a document that are the share of right ones among its responses, or among so many of them."""


def _samples_of_shares(score: str, rows: Cells) -> tuple[list[int], Floats, Counts]:
    """The row, reward and number of the samples of rows with responses; a score that is no share is one."""
    share_of, samples = _SHARE.fullmatch(score), list[tuple[int, float, int]]()
    if share_of is None:
        return list(range(len(rows))), rows.numbers("success"), np.ones(len(rows), int)
    sizes = [len(parse.list_of(responses)) for responses in rows.column("responses")]
    for row, (share, size) in enumerate(zip(rows.numbers("success").tolist(), sizes, strict=True)):
        num = int(share_of[1] or size)
        num_right = round(share * num) if math.isfinite(share) else -1
        if 1 < num <= size and 0 <= num_right <= num and math.isclose(share * num, num_right, abs_tol=1e-6):
            samples += [(row, reward, count) for reward, count in ((1.0, num_right), (0.0, num - num_right)) if count]
        else:
            samples.append((row, share, 1))
    rows_of, rewards, counts = (list(column) for column in zip(*samples, strict=True)) if samples else ([], [], [])
    return rows_of, np.array(rewards, dtype=np.float64), np.array(counts, int)


_ONE_SCORE = "A document has one score: pass@1 alone, unless it is the share of right responses, as avg@n is."
_OTHER_FILTERS = IfNoted(
    "Rows of other filters are the same responses and left out: --reward-column METRIC,FILTER takes these."
)


def _chosen_score(
    reading: Reading, scored: Callable[[Mapping[str, Any]], tuple[str, Any]], usual: Sequence[str] = ()
) -> tuple[str, str, tuple[str, ...]]:
    """The score that counts (named, else the first usual one, else the first number), lm-eval's filter, the others."""
    named, choices = reading.request.columns.reward, dict[str, tuple[str, str]]()
    rows = (cells for file in reading.files for _, cells in reading.rows(file, QuarantineLog()))
    for filter, scores in map(scored, rows):
        for name in parse.numbers_in(scores):
            choices |= {key: (name, filter) for key in (name, f"{name},{filter}".strip(",")) if key not in choices}
        if named in choices or (named is None and not choices.keys().isdisjoint(usual or choices)):
            break
    main = named or next((name for name in usual or choices if name in choices), None)
    if main not in choices:
        wanted = f"score {named!r}" if named else "usual score" if choices else "score that is a number"
        hint = f"Name one with --reward-column: {list_names(choices)}." if choices else "Give a log with scores."
        raise InputError(f"{reading.request.path} has no {wanted}.", hint=hint)
    score, filter = choices[main]
    rest = tuple(dict.fromkeys(name for name, _ in choices.values() if name != score))
    suffix = f" after the filter {filter}" * bool(filter) + f"; others are {list_names(rest)}" * bool(rest)
    reading.inferred.append(f"The score is {score}{suffix}.")
    return score, filter, rest


def _rows_of_score(rows: Cells, score: str, filter: str = "") -> Columns:
    """Rows of documents of which ``success`` is the score."""
    filters = texts_in(rows.names("filter"))
    chosen = [index for index, name in enumerate(filters) if name == filter]
    scored = rows.chosen(chosen)
    samples, reward, count = _samples_of_shares(score, scored)
    columns = _rows_of_tests(scored.chosen(samples))
    if count.sum() > len(scored):  # other scores are of a document, and which texts are right is not known
        numbers = {"reward": reward, REWARD + score: reward}
        columns = replace(columns, numbers=numbers, count=count, details=lambda _: {"completion": ""})
    row, has_others = np.array([chosen[index] for index in samples], int), len(chosen) < len(filters)
    return replace(columns, row=row, notes=[_OTHER_FILTERS] if has_others else [])


def _columns_of_score(reading: Reading, usual: Sequence[str] = ()) -> ColumnLog:
    """How rows are read whose ``success`` is an object of scores, of which one counts."""
    score, *_ = _chosen_score(reading, lambda cells: ("", cells["success"]), usual)

    def to_columns(rows: Cells) -> Columns:
        scores = rows.changed("success", lambda cells: [parse.mapping_of(cell).get(score, UNSET) for cell in cells])
        return _rows_of_score(scores, score)

    return reading.log(to_columns=to_columns)


def _lm_eval_columns(reading: Reading) -> ColumnLog:
    """How its rows are read: those of one score and one filter as columns of documents."""

    def scored(cells: Mapping[str, Any]) -> tuple[str, Any]:
        metrics = map(parse.text_of, parse.list_of(cells.get("metrics")))
        return parse.text_of(cells.get("filter")), {metric: cells[metric] for metric in metrics if metric in cells}

    score, filter, rest = _chosen_score(reading, scored)

    def to_columns(rows: Cells) -> Columns:
        metrics = [tuple(map(parse.text_of, parse.list_of(cell))) for cell in rows.cells("metrics")]
        columns, decoded = _rows_of_score(_lm_eval_documents(rows, score, metrics), score, filter), set(rows.keys)
        is_irregular = np.array(
            [not decoded.issuperset(names) for names in metrics], bool
        )  # others are to be read, too
        return replace(columns, is_irregular=is_irregular[columns.row])

    keys = ("doc_id", "filter", "metrics", score, *rest)
    return reading.log(to_columns=to_columns, keys=keys, raw=("doc", "resps", "filtered_resps"))


def _lm_eval_documents(rows: Cells, score: str, metrics: Sequence[Sequence[str]]) -> Cells:
    """Rows under the names of documents, each column made where it is asked for."""

    def column(key: str | None) -> Any:
        match key:
            case "scores":
                cells = {name: rows.column(name) for name in {*chain.from_iterable(metrics)}.intersection(rows.keys)}
                return [
                    {name: cells[name][index] for name in names if name in cells and cells[name][index] is not UNSET}
                    for index, names in enumerate(metrics)
                ]
            case "completion":
                return [next(iter(parse.list_of(cell)), None) for cell in rows.cells("filtered_resps")]
            case "responses":
                lists = map(parse.list_of, rows.cells("resps"))
                return [max(map(parse.list_of, responses), key=len, default=[]) for responses in lists]
        return rows.column({"test": "doc_id", "prompt": "doc", "success": score}.get(key or "", key))

    return Cells(rows.path, len(rows), rows.keys, column)


LM_EVAL = RowFormat(
    name="lm-eval",
    title="lm-eval samples",
    patterns=("samples_*.jsonl", "*/samples_*.jsonl"),
    recognizes_file=has_keys("doc_id", "doc", "resps", "filter"),
    columns=_lm_eval_columns,
    inferred=(_OTHER_FILTERS,),
    missing=(_ONE_SCORE,),
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


LIGHTEVAL = RowFormat(
    name="lighteval",
    title="lighteval details",
    patterns=("details_*.parquet",),
    recognizes_file=has_row(lambda row: row.keys() >= _DETAILS or row.keys() >= _OLDER_DETAILS),
    rows_of=_lighteval_details,
    columns=_columns_of_score,
    missing=(_ONE_SCORE,),
    takes=frozenset({"reward_column"}),
)


def _evalscope_reviews(file: Path, quarantine: QuarantineLog) -> Iterator[Row]:
    for location, review in read_rows(file, quarantine):
        sample_score, parts = parse.mapping_of(review["sample_score"]), parse.cut_conversation(review.get("messages"))
        score, name = parse.mapping_of(sample_score.get("score")), parse.text_of(review.get("index"))
        main, scores = parse.text_of(score.get("main_score_name")), parse.mapping_of(score.get("value"))
        sample = {
            "test": parse.text_of(sample_score.get("group_id")) or name,
            "prompt": parts.prompt or parse.text_of(review.get("input")),
            "completion": parts.completion or parse.text_of(score.get("prediction")),
            "success": {main: scores[main], **scores} if main in scores else scores,
            "scores": scores,
            "sample": name,
        }
        yield location, sample


EVALSCOPE = RowFormat(
    name="evalscope",
    title="EvalScope reviews",
    patterns=("*.jsonl",),
    is_one_file=True,
    recognizes_file=has_keys("index", "sample_score"),
    rows_of=_evalscope_reviews,
    columns=_columns_of_score,
    inferred=("Repeats of a question (its group_id) are the samples of a prompt.",),
    takes=frozenset({"reward_column"}),
)


def _opencompass_samples(file: Path, quarantine: QuarantineLog) -> Iterator[Row]:
    details = (parse.list_of(document.get("details")) for _, document in read_rows(file, quarantine))
    for detail in map(parse.mapping_of, chain.from_iterable(details)):
        test = parse.text_of(detail.get("example_abbr"))
        names = (("correct", "is_correct", "cascade_correct"), ("pred", "prediction", "completion"))
        lists = (filter(None, (parse.list_of(detail.get(name)) for name in keys)) for keys in names)
        verdicts, texts = (next(keys, []) for keys in lists)
        for verdict, text in zip_longest(verdicts or [parse.ABSENT], texts[: len(verdicts)]):
            yield f"{file}:{test}", {"test": test, "completion": parse.text_of(text), "success": verdict}


OPENCOMPASS = RowFormat(
    name="opencompass",
    title="OpenCompass results",
    patterns=("*.json",),
    is_one_file=True,
    recognizes_file=has_row(
        lambda row: any("example_abbr" in parse.mapping_of(cell) for cell in parse.list_of(row.get("details"))[:1])
    ),
    rows_of=_opencompass_samples,
    columns=interpreted_by(_rows_of_tests),
    inferred=("Runs of an example are the samples of a prompt.",),
)

_SKYRL_STEP = re.compile(r"^global_step_([0-9]+)(?:_evals$|\.|$)")
_SKYRL_SUMMED = IfNoted(
    "Scores that are lists hold a reward a token, and count as their sum, as SkyRL's own mean reward does."
)


def _if_no_turns(table: RewardTable) -> RewardTable | None:
    """A table of prompts none of which begins with another, as that of a later turn does."""
    prompts = sorted(table.prompt_texts or ())
    return None if any(second.startswith(first) for first, second in pairwise(prompts)) else table


def _refuse_turns(rows: Sequence[Row], reading: Reading) -> dict[str, Any]:
    """Refuse rows that are turns: the prompt of one continues the response of another."""
    texts = [(parse.text_of(row.get("input_prompt")), parse.text_of(row.get("output_response"))) for _, row in rows]
    prompts = sorted({prompt for prompt, _ in texts})
    for (location, _), (prompt, response) in zip(rows, texts, strict=True):
        so_far = prompt + response
        index = bisect_left(prompts, so_far)
        if response and index < len(prompts) and prompts[index].startswith(so_far):
            raise InputError(
                f"{location} is a turn of a trajectory that another row continues: which rows belong together is "
                "not logged.",
                hint="Evaluate with generator.step_wise_trajectories off, so that a row is a whole trajectory.",
            )
    return {"needs_texts": False}


def _skyrl_rows(rows: Cells) -> Columns:
    step = parse.number_in_name(_SKYRL_STEP, rows.path.resolve()) or 0
    sums = [isinstance(cell, list) for cell in rows.column("score")]
    scored = rows.changed("score", lambda cells: list(map(_skyrl_total, cells))) if any(sums) else rows
    prompts, sources = rows.prompt_ids("input_prompt"), rows.names("data_source")
    return Columns(
        step=np.full(len(rows), step, dtype=np.int64),
        group=[prompt and f"{source}/{prompt}" for source, prompt in zip(sources, prompts, strict=True)],
        no_group="input_prompt is missing",
        texts=lambda chosen: list(map(parse.text_of, rows.cells("input_prompt", chosen))),
        numbers={"reward": scored.numbers("score"), "truncated": rows.truncated("stop_reason")},
        no_reward=partial(scored.no_reward, "score"),
        noted={_SKYRL_SUMMED: np.array(sums)},
        details=lambda row: {"completion": parse.text_of(rows.cell("output_response", row))},
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
    return next((cell for cell in score if isinstance(parse.parse_reward(cell), str)), total)


SKYRL = RowFormat(
    name="skyrl-eval",
    title="SkyRL evaluation",
    patterns=("dumped_evals/*/*.jsonl", "*_evals/*.jsonl", "eval_only/*.jsonl", "*.jsonl"),
    keeps_file=lambda file: file.name != "aggregated_results.jsonl",
    recognizes_file=has_keys("input_prompt", "output_response", "score"),
    survey=_refuse_turns,
    columns=lambda reading, **until_surveyed: reading.log(
        to_columns=_skyrl_rows,
        keys=("score", "data_source", "stop_reason"),
        raw=("input_prompt", "output_response"),
        looks_at_path=True,
        **(until_surveyed or {"needs_texts": True, "validate": _if_no_turns}),
    ),
    inferred=("Responses to one prompt of one data source are a group; equal prompts merge.", _SKYRL_SUMMED),
    missing=(TEXT_ONLY,),
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
    title="Harbor trials",
    patterns=("*/result.json",),
    recognizes_file=has_keys("task_name", "verifier_result"),
    rows_of=_harbor_trials,
    columns=interpreted_by(partial(_rows_of_tests, if_error=_FAILED)),
    inferred=("Trials of one task by one agent and model are the samples of a prompt.", _FAILED),
)


def _swe_bench_reports(file: Path, quarantine: QuarantineLog) -> Iterator[Row]:
    for _, document in read_rows(file, quarantine):
        for instance, report in document.items():
            yield f"{file}:{instance}", {"test": instance, "success": parse.mapping_of(report).get("resolved")}


SWE_BENCH = RowFormat(
    name="swe-bench",
    title="SWE-bench reports",
    patterns=("*/report.json",),
    recognizes_file=has_row(
        lambda row: any(parse.mapping_of(cell).keys() >= {"patch_exists", "resolved"} for cell in row.values())
    ),
    rows_of=_swe_bench_reports,
    columns=interpreted_by(_rows_of_tests),
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


PROMPTFOO = RowFormat(
    name="promptfoo",
    title="promptfoo results",
    patterns=("*.json", "*.jsonl"),
    is_one_file=True,
    recognizes_file=has_row(lambda row: bool(_promptfoo_results(row))),
    rows_of=_promptfoo_samples,
    columns=interpreted_by(partial(_rows_of_tests, if_error=_NO_ANSWER)),
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
    title="NeMo-RL validation",
    patterns=("val_data_step*.jsonl",),
    is_one_file=True,
    recognizes_file=has_row(lambda row: "rewards" in row and parse.is_list_of_objects(_only(row, "content"))),
    rows_of=_nemo_rl_samples,
    columns=interpreted_by(_rows_of_tests),
    inferred=("Responses to one prompt are a group; equal prompts merge.",),
    missing=(TEXT_ONLY,),
)

_HELM_SCORES = (  # most telling first; next to them are counts of tokens and the like
    *("exact_match", "quasi_exact_match", "prefix_exact_match", "quasi_prefix_exact_match"),
    *("final_number_exact_match", "math_equiv_chain_of_thought", "math_equiv", "test_avg", "strict_acc"),
)


def _helm_instances(file: Path, quarantine: QuarantineLog) -> Iterator[Row]:
    for location, block in read_rows(file, quarantine):
        stats = map(parse.mapping_of, parse.list_of(block.get("stats")))
        means = {parse.text_of(parse.mapping_of(stat.get("name")).get("name")): stat.get("mean") for stat in stats}
        test = filter(None, (parse.text_of(block.get(key)) for key in ("instance_id", "perturbation")))
        yield location, {"test": "/".join(test), "success": means}


HELM = RowFormat(
    name="helm",
    title="HELM instances",
    patterns=("per_instance_stats.json",),
    recognizes_file=has_keys("instance_id", "train_trial_index", "stats"),
    rows_of=_helm_instances,
    columns=partial(_columns_of_score, usual=_HELM_SCORES),
    inferred=("Trials of an instance, with other examples in its prompt, are its samples; perturbed, it is another.",),
    takes=frozenset({"reward_column"}),
)


def _aider_results(file: Path, quarantine: QuarantineLog) -> Iterator[Row]:
    for location, result in read_rows(file, quarantine):
        language = file.resolve().parents[3].name if file.parent.parent.name == "practice" else ""
        outcomes = parse.list_of(result["tests_outcomes"])  # of which aider ends at the first that passes
        sample = {
            "test": "/".join(filter(None, (language, parse.text_of(result.get("testcase"))))),
            "provider": "/".join(filter(None, (parse.text_of(result.get(key)) for key in ("model", "edit_format")))),
            "success": outcomes[-1] if outcomes else False,
            "scores": {"first_try": outcomes[0] if outcomes else False},
        }
        yield location, sample


AIDER = RowFormat(
    name="aider",
    title="aider results",
    patterns=tuple(f"{x}.aider.results.json" for x in ("*/exercises/practice/*/", "exercises/practice/*/", "*/", "")),
    recognizes_file=has_keys("testcase", "tests_outcomes"),
    rows_of=_aider_results,
    columns=interpreted_by(_rows_of_tests),
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
    title="MultiPL-E results",
    patterns=("*.results.json*",),
    recognizes_file=has_row(
        lambda row: all("exit_code" in parse.mapping_of(cell) for cell in parse.list_of(row.get("results")) or [0])
    ),
    rows_of=_multipl_e_programs,
    columns=interpreted_by(_rows_of_tests),
)

FILE_FORMATS = (EVALPLUS, LM_EVAL, LIGHTEVAL, EVALSCOPE, OPENCOMPASS, SKYRL, NEMO_RL, PROMPTFOO, HELM)
TRIAL_FORMATS = (HARBOR, SWE_BENCH)
"""Formats of which each file is an evaluation, and those of which a folder of folders is one, a trial each."""
