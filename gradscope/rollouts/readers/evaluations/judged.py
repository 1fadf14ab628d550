"""Evaluations with a verdict a test: promptfoo, HELM, aider's benchmark and MultiPL-E. A group is a test, at step 0."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from gradscope.errors import InputError
from gradscope.rollouts.groups import numbered_policies
from gradscope.rollouts.readers.format import Reading, RowFormat, has_keys, has_row
from gradscope.rollouts.readers.parsing.cells import digest, list_of, mapping_of, numbers_in, text_of
from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog
from gradscope.rollouts.readers.parsing.records import list_names
from gradscope.rollouts.readers.parsing.tables import Row, read_rows
from gradscope.rollouts.readers.reduction.columns import Cells, Columns, rewards_of, texts_in
from gradscope.rollouts.readers.reduction.log import ColumnLog

_BY_TEST = "Results of one test (its prompt, variables and assertions) by one provider are the samples of a prompt."
_NO_ANSWER = "Calls that ended in an error count as failed, as in promptfoo's pass rate."
_ERROR = 2
"""promptfoo's ``failureReason`` of a call that ended in an error; 1 is that of a failed assertion."""


def _promptfoo_results(document: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """The results of a file as ``--output`` writes it, of its summary alone, or of a line; none of anything else."""
    inner = mapping_of(document.get("results"))
    results = [document] if "promptIdx" in document else list_of(inner.get("results", document.get("results")))
    return [result for result in map(mapping_of, results) if result.keys() >= {"prompt", "vars", "success"}]


def _promptfoo_samples(file: Path, quarantine: QuarantineLog) -> Iterator[Row]:
    for location, document in read_rows(file, quarantine):
        for result in _promptfoo_results(document):
            provider = mapping_of(result.get("provider"))
            sample = {
                "test": digest(result["prompt"], result["vars"], mapping_of(result.get("testCase")).get("assert")),
                "provider": provider.get("label") or provider.get("id") or result.get("provider"),
                "prompt": text_of(mapping_of(result["prompt"]).get("raw")),
                "completion": text_of(mapping_of(result.get("response")).get("output")),
                "success": result["success"],
                "scores": {"score": result.get("score"), **mapping_of(result.get("namedScores"))},
                "error": result.get("failureReason") == _ERROR,
            }
            yield location, sample


def _rows_of_tests(results: Cells, if_error: str = "") -> Columns:
    providers = texts_in(results.names("provider"))
    policies, policy = numbered_policies(providers)
    tests = texts_in(results.names("test"))
    return Columns(
        step=np.zeros(len(results), dtype=np.int64),
        group=[test and f"{provider}/{test}" for provider, test in zip(providers, tests, strict=True)],
        no_group="the test has no name",
        prompts=lambda chosen: [tests[at] for at in chosen],
        texts=lambda chosen: results.cells("prompt", chosen),
        numbers={**rewards_of(results.cells("scores")), "reward": results.numbers("success"), **policy},
        policies=policies,
        no_reward=partial(results.no_reward, "success"),
        noted={if_error: np.array(results.cells("error"))} if if_error else {},
        details=lambda at: {"completion": text_of(results.cell("completion", at))},
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
    if_noted=frozenset({_NO_ANSWER}),
)


_HELM_SCORES = (  # most telling first; beside them are counts of tokens and the like
    *("exact_match", "quasi_exact_match", "prefix_exact_match", "quasi_prefix_exact_match"),
    *("final_number_exact_match", "math_equiv_chain_of_thought", "math_equiv", "test_avg", "strict_acc"),
)


def _helm_instances(file: Path, quarantine: QuarantineLog) -> Iterator[Row]:
    for location, block in read_rows(file, quarantine):
        stats = map(mapping_of, list_of(block.get("stats")))
        means = {text_of(mapping_of(of.get("name")).get("name")): of.get("mean") for of in stats}
        test = filter(None, (text_of(block.get(key)) for key in ("instance_id", "perturbation")))
        yield location, {"test": "/".join(test), "success": means}


def _helm_survey(rows: Sequence[Row], reading: Reading) -> dict[str, str]:
    names = list(dict.fromkeys(chain.from_iterable(numbers_in(row.get("success")) for _, row in rows)))
    named = reading.request.columns.reward
    score = next((of for of in ((named,) if named else _HELM_SCORES) if of in names), None)
    if score is None:
        noun = "usual score" if named is None else f"score {named!r}"
        raise InputError(
            f"{reading.request.path} has no {noun}.", hint=f"Name it: --reward-column NAME, one of {list_names(names)}."
        )
    reading.inferred.append(f"The score is {score}; others are {list_names(of for of in names if of != score)}.")
    return {"score": score}


def _helm_columns(reading: Reading, score: str | None = None) -> ColumnLog | None:
    def to_columns(rows: Cells) -> Columns:
        return _rows_of_tests(rows.changed("success", lambda cells: [mapping_of(of).get(score or "") for of in cells]))

    return None if score is None else reading.log(to_columns=to_columns)


HELM = RowFormat(
    name="helm",
    looks_for="per_instance_stats.json (HELM)",
    title="HELM instances",
    patterns=("per_instance_stats.json",),
    recognizes_file=has_keys("instance_id", "train_trial_index", "stats"),
    rows_of=_helm_instances,
    survey=_helm_survey,
    columns=_helm_columns,
    inferred=("Trials of an instance, with other examples in its prompt, are its samples; perturbed, it is another.",),
    takes=frozenset({"reward_column"}),
)


def _aider_results(file: Path, quarantine: QuarantineLog) -> Iterator[Row]:
    for location, result in read_rows(file, quarantine):
        language = file.resolve().parents[3].name if file.parent.parent.name == "practice" else ""
        tries = list_of(result["tests_outcomes"])  # of which aider ends at the first that passes
        sample = {
            "test": "/".join(filter(None, (language, text_of(result.get("testcase"))))),
            "provider": "/".join(filter(None, (text_of(result.get(key)) for key in ("model", "edit_format")))),
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
        test = "/".join(filter(None, (text_of(problem.get(key)) for key in ("language", "name"))))
        for result in map(mapping_of, list_of(problem.get("results"))):
            has_passed = (result.get("status"), result.get("exit_code")) == ("OK", 0)
            yield location, {"test": test, "completion": text_of(result.get("program")), "success": has_passed}


MULTIPL_E = RowFormat(
    name="multipl-e",
    looks_for="*.results.json.gz, a problem with name and results each (MultiPL-E)",
    title="MultiPL-E results",
    patterns=("*.results.json*",),
    recognizes_file=has_row(
        lambda row: all("exit_code" in mapping_of(of) for of in list_of(row.get("results")) or [0])
    ),
    rows_of=_multipl_e_programs,
    columns=lambda reading: reading.log(to_columns=_rows_of_tests),
)
