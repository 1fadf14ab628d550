import json
import re
from collections import Counter
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from gradscope.diagnostics.passk import measure as passk
from gradscope.errors import InputError, UsageError
from gradscope.estimate import Estimate
from gradscope.metrics.uncertainty.intervals import Resampling
from gradscope.render.terminal.passk import pass_at_k_table
from gradscope.results.passk import PassAtKDifference
from gradscope.rollouts.groups import RolloutGroup
from gradscope.rollouts.read_options import ColumnNames, ReadOptions
from gradscope.rollouts.run_folder import heldout_path
from tests.conftest import REPOSITORY
from tests.diagnostics.compared_runs import write_run
from tests.diagnostics.made_up_runs import FIRST, SECOND, group_of, humaneval, run_of, samples, tau_bench
from tests.render.printing import printed
from tests.rollouts.readers.evaluations.test_inspect_ai import archive
from tests.rollouts.readers.lines import write_lines


def test_second_file_is_paired_by_prompt() -> None:
    report = passk.pass_at_k_of_samples([FIRST, SECOND], ks=(4, 1))
    comparison = report.comparison
    third = samples("third", {"a": [0, 0, 0, 0]})
    further = passk.pass_at_k_of_samples([FIRST, SECOND, third]).further_comparisons
    assert [(pair.first, pair.second) for pair in further] == [("first", "third")]
    assert (comparison.num_prompts, comparison.num_unpaired) == (3, 1)
    by_k = {row.k: row for row in comparison.rows}
    assert by_k[1].difference.value == pytest.approx((3 * 0.25 - 1.5) / 3)
    assert (by_k[1].first_wins, by_k[1].second_wins, by_k[1].ties) == (2, 1, 0)
    assert by_k[4].difference.value == pytest.approx(1 / 3)
    assert (by_k[4].first_wins, by_k[4].second_wins, by_k[4].ties) == (0, 1, 2)
    assert comparison.crossover_k is None, "what intervals allow is no turn"
    assert (comparison.solved.both, comparison.solved.first_only) == (2, 0)
    assert (comparison.solved.second_only, comparison.solved.neither) == (1, 0)
    verdict, factor, verifier, *reach = report.findings
    assert verifier.startswith("A verifier that passes 1.0 % of wrong samples")
    assert verdict.startswith(
        "second against first, over 3 prompts in both and without 1 in one: the intervals allow a gain and a loss: -0.2"
    )
    assert " at k = 4. Verdict: undecided whether " in verdict
    assert factor == "first needs 0.50 times the samples of second for the same pass@1."
    assert [sentence.partition(":")[0] for sentence in reach] == ["first", "second"]


def test_samples_that_repeat_are_told_once(tmp_path: Path) -> None:
    rows = [{"task_id": f"t{n % 20}", "completion": f"{n % 40} " * 40, "passed": n % 3 > 0} for n in range(80)]
    file, copy = (write_lines(tmp_path / name, *rows) for name in ("a.jsonl", "b.jsonl"))
    copies = "40 samples repeat a long text of their prompt"
    assert copies in " ".join(passk.measure_pass_at_k(file).findings)
    assert "b.jsonl is a.jsonl, byte for byte: " in passk.measure_pass_at_k(file, copy).findings[1]
    short = [{**row, "completion": row["completion"][:3]} for row in rows]  # as of a choice of four
    for other in (rows[:40], short):
        assert copies not in " ".join(passk.measure_pass_at_k(write_lines(tmp_path / "c.jsonl", *other)).findings)


def test_a_budget_beyond_the_samples_is_undefined() -> None:
    comparison = passk.pass_at_k_of_samples([FIRST, samples("short", {"a": [1, 0]})], ks=(4,)).comparison
    (row,) = comparison.rows
    assert row.difference.undefined == row.compression_factor.undefined == "k = 4 exceeds the 2 samples of a prompt"
    assert (row.first_wins, row.second_wins, row.ties) == (0, 0, 0)
    assert comparison.frac_won.undefined == "the two have no budget in common"
    alone = passk.pass_at_k_of_samples([FIRST], ks=(8,))
    assert alone.tables[0].rows[0].pass_at_k.undefined == "k = 8 exceeds the 4 samples of a prompt"
    assert alone.findings == ("first: no budget asked for is within the 4 samples of every prompt.",)
    assert "at least 10 prompts, there are 4" in alone.tables[0].forecasts[0].pass_hat_k.undefined


def difference(k: int, of_samples: Estimate) -> PassAtKDifference:
    unasked = Estimate.undefined_because("not asked for")
    counts = {"first_wins": 0, "second_wins": 0, "ties": 0}
    return PassAtKDifference(
        k=k, difference=of_samples, **counts, compression_factor=unasked, compression_at_least=None
    )


@pytest.mark.parametrize(
    ("values", "crossing"),
    [((0.2, 0.0, -0.05, -0.2), 8), ((0.2, 0.0), None), ((0.05, -0.2), None), ((0.0, -0.2), None), ((), None)],
)
def test_the_sign_of_the_difference_may_turn(values: tuple[float, ...], crossing: int | None) -> None:
    estimates = [Estimate(value=value, low=value - 0.1, high=value + 0.1) for value in values]
    rows = [difference(2**index, estimate) for index, estimate in enumerate(estimates)]
    assert passk.crossover_k(rows) == crossing


def test_files_without_a_common_prompt_or_a_budget_are_refused() -> None:
    other = samples("other", {"z": [1, 0]})
    with pytest.raises(InputError, match="have no prompt in common: the first has prompt 'a', the second 'z'"):
        passk.pass_at_k_of_samples([FIRST, other])
    with pytest.raises(UsageError, match=r"pass@k needs a file of samples\."):
        passk.measure_pass_at_k()
    with pytest.raises(UsageError, match=r"k is at least 1, got 0\."):
        passk.measure_pass_at_k("samples.jsonl", ks=(0,))
    assert passk.default_ks(1) == [1]
    assert passk.default_ks(100) == [1, 2, 4, 5, 8, 10, 16, 20, 32, 50, 64, 100]


Change = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]


def judged(draw: Callable[[np.random.Generator], np.ndarray], change: Change, n: int) -> Counter[str]:
    """Verdicts over ten logs of two policies with known rates."""
    verdicts: Counter[str] = Counter()
    for seed in range(10):
        rng = np.random.default_rng(seed)
        first, second = (counted(n, rng.binomial(n, rates)) for rates in change(draw(rng)))
        comparison = passk.compare_samples(
            first, second, (1, 4, n), resampling=Resampling(num_resamples=300, seed=seed)
        )
        verdicts[comparison.verdict] += 1
    return verdicts


def counted(n: int, correct: np.ndarray) -> passk.Samples:
    return replace(
        FIRST, prompts=tuple(map(str, range(len(correct)))), num_samples=np.full(len(correct), n), num_correct=correct
    )


def best_of(m: float) -> Change:
    return lambda rates: (rates, 1 - (1 - rates) ** m)


def newly_solved(share: float) -> Change:
    """The first ``share`` of the prompts are impossible for the first policy, and 0.3 for the second."""
    return lambda rates: (
        np.where(np.arange(len(rates)) < share * len(rates), 0.0, rates),
        np.where(np.arange(len(rates)) < share * len(rates), 0.3, rates),
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("draw", "n"), [(lambda rng: rng.beta(0.3, 1, 500), 64), (lambda rng: rng.choice([0.02, 0.5], 500), 16)]
)
def test_the_best_of_samples_is_never_an_expansion(draw: Callable[[np.random.Generator], np.ndarray], n: int) -> None:
    """Forty of forty such logs of 500 prompts were called capacity expansion once."""
    for m in (1.0, 8.0, 32.0):
        verdicts = judged(draw, best_of(m), n)
        assert verdicts["capacity expansion"] == 0
        assert m > 1 or verdicts["search compression"] == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("draw", "change", "n", "verdict"),
    [
        (lambda rng: rng.beta(0.5, 0.5, 500), newly_solved(0.3), 64, "capacity expansion"),
        (lambda rng: rng.beta(0.5, 0.5, 500), newly_solved(0.3), 8, "undecided"),  # too few samples to show it
        (lambda rng: with_impossible(rng.beta(2, 2, 500)), best_of(8), 64, "search compression"),
        (lambda rng: with_impossible(rng.beta(2, 2, 40)), best_of(8), 64, "undecided"),  # none of 40 could be two
        (lambda rng: rng.beta(2, 2, 300), best_of(8), 64, "no headroom"),  # pass@64 is 1.000 before and after
    ],
)
def test_policies_of_known_rates_are_judged_right(
    draw: Callable[[np.random.Generator], np.ndarray], change: Change, n: int, verdict: str
) -> None:
    assert judged(draw, change, n)[verdict] >= 8


def with_impossible(rates: np.ndarray) -> np.ndarray:
    """A fifth cannot be solved: there is something left to expand."""
    return np.where(np.arange(len(rates)) % 5 == 0, 0.0, rates)


GAIN, LEFT_OPEN, EQUAL, LOSS = (0.1, 0.3), (-0.05, 0.44), (-0.02, 0.03), (-0.2, -0.06)
NONE, ABOVE = (0.0, 0.9 * passk.MARGIN), (0.02, 1.1 * passk.MARGIN)


def around(ends: tuple[float, float]) -> Estimate:
    return Estimate(value=sum(ends) / 2, low=ends[0], high=ends[1], num_units=40)


def differences(*ends: tuple[float, float]) -> list[PassAtKDifference]:
    return [difference(16**index, around(pair)) for index, pair in enumerate(ends)]


SOME, SHARPER = (0.1, 0.2), (GAIN, EQUAL)


@pytest.mark.parametrize(
    ("ends", "won", "lost", "least", "verdict", "words", "unsolved"),
    [
        ((GAIN, GAIN), ABOVE, NONE, 65.0, "capacity expansion", "beyond the best of 65 samples of the first", SOME),
        ((LEFT_OPEN, GAIN), ABOVE, NONE, 65.0, "capacity expansion", "and more at the largest budget", SOME),
        ((GAIN, GAIN), ABOVE, NONE, 64.0, "undecided", "gains at every sampled k: +0.200", SOME),
        (
            (GAIN, GAIN),
            ABOVE,
            NONE,
            None,
            "undecided",
            "the best of up to 64 samples of the first may explain them",
            SOME,
        ),
        ((GAIN, LOSS), ABOVE, ABOVE, 65.0, "undecided", "some prompts are solved anew, beyond any best of 64", SOME),
        (SHARPER, NONE, NONE, None, "search compression", "at the largest less than 0.05 is won", SOME),
        (SHARPER, ABOVE, NONE, None, "undecided", "a gain at the smallest budget, no certain difference", SOME),
        ((GAIN, (0.01, 0.03)), NONE, NONE, None, "undecided", "gains at every sampled k", SOME),
        (((0.01, 0.05), EQUAL), NONE, NONE, None, "undecided", "a gain at the smallest budget", SOME),
        ((GAIN, LOSS), NONE, ABOVE, None, "search compression", "the gain at the smallest budget is a loss", SOME),
        ((GAIN, LOSS), ABOVE, ABOVE, None, "undecided", "a gain at the smallest budget, a loss at the largest", SOME),
        ((GAIN, LEFT_OPEN), ABOVE, ABOVE, None, "undecided", "no certain difference at the largest", SOME),
        ((LOSS, LOSS), NONE, ABOVE, None, "undecided", "losses at every sampled k", SOME),
        ((LEFT_OPEN, LEFT_OPEN), ABOVE, ABOVE, None, "undecided", "the intervals allow a gain and a loss", SOME),
        ((GAIN,), NONE, NONE, 65.0, "undecided", "one budget says nothing about reach", SOME),
        (SHARPER, NONE, NONE, None, "no headroom", "next to nothing to expand", (0.0, passk.MARGIN)),
        (SHARPER, NONE, NONE, None, "undecided", "not certainly more than 0.05", (passk.MARGIN, 0.2)),
        (SHARPER, NONE, NONE, None, "search compression", "less than 0.05 is won", (1.02 * passk.MARGIN, 0.2)),
    ],
)
def test_verdict_and_its_evidence(
    ends: tuple[tuple[float, float], ...],
    won: tuple[float, float],
    lost: tuple[float, float],
    least: float | None,
    verdict: str,
    words: str,
    unsolved: tuple[float, float],
) -> None:
    shares = {"won": around(won), "lost": around(lost), "unsolved": around(unsolved)}
    judged_as, evidence = passk.judge_reach(differences(*ends), **shares, least_sharpening=least)
    assert judged_as == verdict
    assert words in evidence


def test_what_false_positives_do_is_their_chance_among_k_samples() -> None:
    """Half the prompts are unsolvable, and the second's verifier passes 2 % of wrong samples: 64 samples each."""
    unsolved = 0.5 * 0.98**64
    caution = passk.verifier_caution((0.5, unsolved), 64, 200)
    assert (
        "solved in 47.4 % of cases at k = 64; had it passed 2 % of them in the second alone, that would be" in caution
    )
    assert "alone" not in passk.verifier_caution((0.1 + 0.2, 0.3), 64, 200), "equal but for rounding"
    assert "passed 6.9 % of them" in passk.verifier_caution((0.5, 0.0), 64, 100)
    assert "solved in 3.0 % of cases at k = 3" in passk.verifier_caution((0.5, 0.0), 3, 100)


def test_table_of_one_file() -> None:
    report = passk.pass_at_k_of_samples([FIRST])
    (table,) = report.tables
    assert (table.name, table.num_prompts, table.num_samples) == ("first", 4, (4, 4))
    assert [(row.k, row.pass_at_k.value) for row in table.rows] == [
        (1, pytest.approx(2.5 / 4)),
        (2, pytest.approx((2 + 5 / 6) / 4)),
        (4, pytest.approx(3 / 4)),
    ]
    assert table.rows[1].pass_hat_k.value == pytest.approx((2 + 1 / 6) / 4)
    assert report.comparison is None
    assert [re.sub(r" \[[^]]*\]", "", sentence) for sentence in report.findings] == [
        "first: pass@1 = 0.625 and pass@4 = 0.750 over 4 prompts."
    ]


def test_budget_beyond_the_samples_is_forecast_apart() -> None:
    correct = {f"p{i}": [float(j < i % 5) for j in range(4)] for i in range(60)}
    (table,) = passk.pass_at_k_of_samples([samples("many", correct)], ks=(4, 16, 64)).tables
    assert [row.pass_at_k.is_defined for row in table.rows] == [True, False, False]
    near, far = table.forecasts
    assert (near.k, near.method, far.k) == (16, "forecast", 64)
    assert table.rows[0].pass_at_k.value < near.pass_at_k.value < 1.0
    assert far.pass_at_k.undefined == "k = 64 is more than 8 times the 4 samples of a prompt"


@pytest.mark.slow
def test_codegen_and_tau_bench_have_their_published_numbers(shared_data: Path) -> None:
    counted = passk.samples_of_run(humaneval(shared_data), name="codegen")
    table = passk.pass_at_k_of_samples([counted], ks=(1, 2, 5, 10, 20, 50, 100)).tables[0]
    published = [0.22116, 0.30793, 0.42030, 0.50379, 0.58906, 0.68687, 0.73780]
    assert [row.pass_at_k.value for row in table.rows] == pytest.approx(published, abs=5.1e-6)
    table = passk.pass_at_k_of_samples(
        [passk.samples_of_run(tau_bench(shared_data), name="gpt-4o")], ks=(1, 2, 3, 4)
    ).tables[0]
    assert [row.pass_hat_k.value for row in table.rows] == pytest.approx([0.42, 0.27333, 0.22, 0.20], abs=5e-6)
    assert [row.pass_at_k.value for row in table.rows] == pytest.approx([0.42, 0.56667, 0.66, 0.72], abs=5e-6)


@pytest.mark.parametrize("name", ["aime24", "amc23"])
def test_reasoning_gym_from_the_file_as_it_is(shared_data: Path, name: str) -> None:
    published = {"aime24": [0.024, 0.07391, 0.17422, 0.300], "amc23": [0.144, 0.33061, 0.53749, 0.675]}
    path = shared_data / "reasoning_gym" / f"llama3b_rl_step400_{name}_n50.json"
    table = passk.measure_pass_at_k(path, ks=(1, 4, 16, 50)).tables[0]
    assert [row.pass_at_k.value for row in table.rows] == pytest.approx(published[name], abs=5.1e-6)


@pytest.fixture
def evaluations(tmp_path: Path) -> Path:
    """Two logs of three prompts, two epochs and three scorers, one with verdicts; a damaged log; another task."""
    for name, model, status in (("1", "org/a", "success"), ("2", "org/b", "cancelled")):
        samples = {
            f"samples/{prompt}_epoch_{epoch}.json": {
                "id": prompt,
                "epoch": epoch,
                "scores": {"match": {"value": "CI"[right]}, "judge": {"value": 0.3 + right}, "none": {"value": "?"}},
            }
            for prompt in "xyz"
            for epoch in (1, 2)
            for right in [epoch == 2 and prompt != "z"]
        }
        about = {"task": "gsm8k", "model": model, "dataset": {"sample_ids": [*"xyzw"]}, "config": {"epochs": 2}}
        archive(tmp_path / f"{name}.eval", {**samples, "header.json": {"status": status, "eval": about}})
    (tmp_path / "3.eval").write_bytes(b"cut off")
    write_lines(tmp_path / "math.jsonl", *({"task_id": name, "passed": True} for name in "ab"))
    return tmp_path


def test_a_folder_of_evaluations_is_a_table_a_log_and_scorer(
    evaluations: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = passk.measure_pass_at_k(evaluations)
    about = [(first.task, first.model, first.scorer) for table in report.tables if (first := table.evaluation)]
    assert about == [
        ("3", "", "reward"),
        *(("gsm8k", model, scorer) for model in ("org/a", "org/b") for scorer in ("match", "judge", "none")),
        ("math", evaluations.name, "reward"),
    ]
    damaged, match, judge, none, *_, math = report.tables
    assert [(row.k, row.pass_at_k.value) for row in match.rows] == [(1, pytest.approx(2 / 3)), (2, 1.0)]
    assert (match.num_prompts, match.num_samples, match.evaluation.mean_score.value) == (
        3,
        (2, 2),
        pytest.approx(2 / 3),
    )
    assert judge.evaluation.mean_score.value == pytest.approx(0.3 + 1 / 3)
    assert "neither 0/1 nor -1/1" in judge.rows[0].pass_at_k.undefined
    assert (judge.num_prompts, judge.num_samples) == (3, (2, 2))
    assert none.rows[0].pass_at_k.undefined == "no sample has this score"
    assert (none.num_prompts, none.num_samples) == (0, (0, 0))
    assert "the file is no zip archive" in damaged.rows[0].pass_at_k.undefined
    assert math.rows[0].pass_at_k.value == 1.0
    assert report.comparison is None
    (source,) = report.sources
    assert (source.path, source.num_rows, source.recognized) == (
        str(evaluations),
        14,
        "4 evaluations (inspect-ai, samples)",
    )
    assert report.findings[:2] == (
        "4 evaluations: 3 tasks, 3 models, 4 scorers, none of them pooled. 1 did not succeed.",
        "2.eval: the evaluation was cancelled: 6 of 8 samples.",
    )
    monkeypatch.chdir(evaluations)
    assert [source.path for source in passk.measure_pass_at_k(Path()).sources] == ["."]


def test_of_a_folder_of_evaluations_one_scorer_may_be_named_and_a_pass_defined(evaluations: Path) -> None:
    (evaluations / "3.eval").unlink()
    named = ReadOptions(reader="inspect-ai", columns=ColumnNames(reward="judge"), strict=True)
    report = passk.measure_pass_at_k(evaluations, ks=(2,), success_threshold=1.0, read=named)
    (first, second) = report.tables
    assert first.evaluation.scorer == second.evaluation.scorer == "judge"
    assert first.rows[0].pass_at_k.value == second.rows[0].pass_at_k.value == pytest.approx(2 / 3)
    (table,) = passk.measure_pass_at_k(evaluations / "2.eval").tables
    assert (table.source.unfinished, table.evaluation) == ("was cancelled: 6 of 8 samples", None)
    with pytest.raises(InputError, match="has no scorer 'other'"):
        passk.measure_pass_at_k(evaluations, read=ReadOptions(columns=ColumnNames(reward="other"), strict=True))


def test_each_policy_of_an_evaluation_in_a_folder_has_a_table_of_its_own(tmp_path: Path) -> None:
    rows = [{"model": of, "task_id": at, "passed": of == "a" or at > 1} for of in "ab" for at in range(4)]
    for name in ("code", "math"):
        write_lines(tmp_path / f"{name}.jsonl", *rows, {"task_id": 0, "passed": False})
    graded = [{**row, "passed": 0.5} for row in rows]
    write_lines(tmp_path / "judge.jsonl", *graded)
    tables = passk.measure_pass_at_k(tmp_path).tables
    of_policies = [("a", 4, 1.0), ("b", 4, 0.5), (tmp_path.name, 1, 0.0)]
    rates = [(table.evaluation.model, table.num_prompts, table.rows[0].pass_at_k.value) for table in tables]
    assert rates == [*of_policies, ("a", 4, None), ("b", 4, None), *of_policies]
    assert [table.evaluation.mean_score.value for table in tables][3:5] == [0.5, 0.5]
    assert len({table.name for table in tables}) == 8


def test_trials_with_a_folder_each_are_read_as_one_file_of_them_would_be(tmp_path: Path) -> None:
    for task, at in product(("sort", "grep"), (1, 2)):
        folder = tmp_path / "job" / task / f"{task}.{at}"
        folder.mkdir(parents=True)
        (folder / "result.json").write_text(json.dumps({"task_id": task, "is_resolved": task == "sort" or None}))
    report = passk.measure_pass_at_k(tmp_path / "job", ks=(1, 2))
    (table,) = report.tables
    assert (table.num_prompts, table.num_samples, table.evaluation) == (2, (2, 2), None)
    assert [row.pass_at_k.value for row in table.rows] == [0.5, 0.5]


def test_filters_of_lm_eval_are_scorers_and_files_and_folders_are_evaluations(tmp_path: Path) -> None:
    logs = REPOSITORY / "fixtures/logs"
    row = {"doc_id": 0, "doc": {}, "resps": [["4"]], "metrics": ["acc"]}
    for task in ("a", "b"):
        filtered = [{**row, "filter": name, "acc": right} for name, right in (("strict", 0.0), ("loose", 1.0))]
        write_lines(tmp_path / f"samples_{task}_2026.jsonl", *filtered)
    report = passk.measure_pass_at_k(tmp_path, logs / "samples_rows.jsonl", logs / "trl")
    assert [(one.evaluation.task, one.evaluation.scorer, one.rows[0].pass_at_k.value) for one in report.tables] == [
        *((task, f"acc,{name}", right) for task in ("a", "b") for name, right in (("strict", 0.0), ("loose", 1.0))),
        ("samples_rows", "reward", 0.25),
        ("trl", "reward", None),
    ]


def test_groups_of_one_prompt_are_pooled_and_missing_verdicts_counted() -> None:
    run = run_of(group_of([1, None], prompt="a"), group_of([0], prompt="a"), group_of([None], prompt="b"))
    counted = passk.samples_of_run(run, name="x")
    assert (counted.prompts, counted.num_samples.tolist(), counted.num_correct.tolist()) == (("a",), [2], [1])
    assert counted.num_missing == 2
    assert passk.pass_at_k_of_samples([counted]).findings[-1] == "x: 2 samples have no reward and are not counted."


@pytest.mark.parametrize(
    ("groups", "message", "hint"),
    [
        ([group_of([0.2, 0.9])], "which samples are correct is not known", ""),
        ([group_of([0, 3, 8])], "neither 0/1 nor -1/1", ""),
        ([group_of([None])], "holds no sample with a reward", ""),
        ([group_of([1, 0], step=1), group_of([1, 0], step=2)], "logs 2 training steps, each from another policy", ""),
        (
            [group_of([correct], prompt=f"p{correct}") for correct in (0, 3, 8)],
            "one row a prompt, with whole numbers up to 8 as rewards: counts",
            "--n-column N --c-column C",
        ),
    ],
)
def test_samples_must_have_verdicts_of_one_policy(groups: list[RolloutGroup], message: str, hint: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        passk.samples_of_run(run_of(*groups), name="x")
    assert hint in str(caught.value.hint)
    if "is not known" in message:
        assert passk.samples_of_run(run_of(*groups), name="x", success_threshold=0.5).num_correct.tolist() == [1]


def test_the_policies_of_a_file_are_never_pooled(tmp_path: Path) -> None:
    rows = [{"task_id": task, "model": m, "passed": m == "a"} for m in ("a", "b", None) for task in (1, 1, 2)]
    path = write_lines(tmp_path / "all.jsonl", *rows)
    shares = [(of.name, of.num_prompts, of.rows[0].pass_at_k.value) for of in passk.measure_pass_at_k(path).tables]
    assert shares == [("a", 2, 1.0), ("b", 2, 0.0), ("all.jsonl", 2, 0.0)]
    with pytest.raises(InputError, match="holds samples of 2 policies, which have no common pass@k"):
        passk.read_samples(path)
    lists = [{"task_id": 1, "model": m, "scores": [s], "responses": ["x"]} for m, s in (("a", 1.0), ("c", None))]
    assert [of.name for of in passk.measure_pass_at_k(write_lines(path, *lists)).tables] == ["a"]


@pytest.mark.parametrize(
    ("key", "cells"), [("id", {"responses": ["x"], "scores": [1]}), ("problem_id", {"response": "x", "correct": 1})]
)
def test_files_that_ask_otherwise_under_the_same_ids_say_so(tmp_path: Path, key: str, cells: dict[str, Any]) -> None:
    def asking(name: str, what: str) -> Path:
        return write_lines(tmp_path / name, *({key: at, "question": f"{what} {at}?", **cells} for at in range(3)))

    first, other, same = asking("a.jsonl", "sum"), asking("b.jsonl", "root"), asking("c.jsonl", "sum")
    caution = "The files ask other questions under the same ids"
    assert caution in " ".join(passk.measure_pass_at_k(first, other).findings)
    assert caution not in " ".join(passk.measure_pass_at_k(first, same).findings)


def test_of_attempts_that_end_once_one_passes_the_first_alone_count(tmp_path: Path) -> None:
    rows = [{"task_id": at, "passed": letter == "1"} for at, of in enumerate(["1"] * 5 + ["01"] * 5) for letter in of]
    write_lines(tmp_path / "a" / "tries.jsonl", *rows)
    for path in (tmp_path / "a" / "tries.jsonl", tmp_path):
        if path.is_dir():
            write_lines(tmp_path / "b.jsonl", *rows)
        report = passk.measure_pass_at_k(path)
        assert {(table.num_samples, table.rows[0].pass_at_k.value) for table in report.tables} == {((1, 1), 0.5)}
        assert any("only the first of each counts" in finding for finding in report.findings)


def test_policies_of_one_name_in_two_files_are_named_by_their_files(tmp_path: Path) -> None:
    rows = [{"task_id": task, "model": model, "passed": task == "z"} for model in "ab" for task in "xyz"]
    files = [write_lines(tmp_path / name, *rows) for name in ("first.jsonl", "second.jsonl")]
    report = passk.measure_pass_at_k(*files)
    assert [table.name for table in report.tables] == [f"{at}.jsonl/{of}" for at in ("first", "second") for of in "ab"]


def test_policies_of_a_file_that_were_asked_something_else_are_not_compared(tmp_path: Path) -> None:
    asked = {"a": "xyz", "b": "uvw", "c": "zw", "d": "x", "e": "yz", "f": "u", "g": "z"}
    rows = [{"task_id": task, "model": m, "passed": task == "z"} for m, tasks in asked.items() for task in tasks]
    report = passk.measure_pass_at_k(write_lines(tmp_path / "all.jsonl", *rows))
    assert [table.name for table in report.tables] == list(asked)
    comparisons = [(of.first, of.second, of.num_prompts) for of in (report.comparison, *report.further_comparisons)]
    assert comparisons == [("a", "c", 1), ("a", "d", 1), ("a", "e", 2), ("a", "g", 1)]
    led = [line.split()[0] for line in printed(pass_at_k_table(report)).splitlines() if line.count("[") == 2]
    assert led == ["c", "d", "e", "g"]


def test_run_folder_stands_for_its_held_out_samples(tmp_path: Path) -> None:
    assert passk.sample_files(tmp_path) == (tmp_path,)
    for when, correct in (("before", [0, 0]), ("after", [1, 0])):
        texts = {"answer": "", "completion": ""}
        rows = [{"prompt_id": p, "prompt": p, **texts, "reward": c, "correct": c > 0} for p in "ab" for c in correct]
        write_lines(tmp_path / "heldout" / f"{when}.jsonl", *rows)
    report = passk.measure_pass_at_k(tmp_path)
    assert [table.name for table in report.tables] == ["before.jsonl", "after.jsonl"]
    assert [row.difference.value for row in report.comparison.rows] == [0.5, 1.0]


def test_held_out_samples_say_themselves_which_are_correct(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    path = heldout_path(run, "after")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(row | {"reward": 0.5 + 0.5 * row["correct"]}) + "\n" for row in rows))
    (table,) = passk.measure_pass_at_k(run).tables
    assert table.rows[0].pass_at_k.value == 0.5
    (table,) = passk.measure_pass_at_k(run, success_threshold=0.5).tables
    assert table.rows[0].pass_at_k.value == 1.0


def test_a_folder_around_the_folder_of_one_evaluation_is_that_evaluation() -> None:
    (table,) = passk.measure_pass_at_k(REPOSITORY / "fixtures/logs/verifiers_eval").tables
    assert (table.num_prompts, table.num_samples, Path(table.source.path).name) == (2, (3, 3), "traces.jsonl")
