import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from gradscope import RankOptions, compare_runs, measure_rank
from gradscope.catalog.lookup import metric
from gradscope.diagnostics.compare.measure import LEVEL, with_verdicts
from gradscope.errors import InputError
from gradscope.metrics.uncertainty.paired import paired_t_p_value, sign_flip_p_value, student_mean
from gradscope.results.compare import ComparedPair, Comparison
from gradscope.rollouts.run_folder import checkpoint_path, heldout_path
from tests.diagnostics.compared_runs import write_run
from tests.trained import MakeRun


def pair_of(differences: Sequence[float]) -> ComparedPair:
    values = np.array(differences)
    p_value = paired_t_p_value(values)
    return ComparedPair(
        first="a",
        second="b",
        changed="advantage",
        metric="pass@1",
        difference=student_mean(values),
        p_value=p_value,
        p_holm=None,
        sign_flip_p_value=sign_flip_p_value(values),
        num_pairs=len(values),
        test="paired t",
        undefined="all pairs differ by the same amount" if p_value is None else None,
        spread=None if p_value is None else float(values.std(ddof=1)),
    )


RISING = [0.1, 0.11, 0.12, 0.13, 0.14, 0.15, 0.16, 0.17]


def test_seeds_decide_suggest_or_leave_open() -> None:
    (eight,), (seven,) = with_verdicts([pair_of(RISING)]), with_verdicts([pair_of(RISING[:7])])
    assert (eight.verdict, eight.sign_flip_p_holm) == ("decides", 2 / 256)
    assert (seven.verdict, seven.sign_flip_p_holm) == ("suggests", None)
    assert seven.p_holm < 1e-4
    assert seven.least_detectable.undefined == "a decision needs 8 pairs, there are 7"
    (pair,) = with_verdicts([pair_of([0.1, -0.1, 0.2, -0.2, 0.1, -0.1, 0.2, -0.1])])
    assert pair.verdict == "open"
    assert pair.least_detectable.value == pytest.approx(pair.spread * 1.16, rel=0.01)
    (pair,) = with_verdicts([pair_of([0.25] * 8)])  # equal differences are decided by their signs alone
    assert (pair.p_holm, pair.verdict) == (None, "decides")
    assert pair.least_detectable.undefined == "all pairs differ by the same amount"
    # a decision counts all tests that could decide
    noise = np.random.default_rng(0).normal(size=(6, 8)).tolist()
    few, many = (with_verdicts([pair_of(RISING), *map(pair_of, noise[:number])]) for number in (5, 6))
    assert (few[0].sign_flip_p_holm, few[0].verdict) == (pytest.approx(6 * 2 / 256), "decides")
    assert (many[0].sign_flip_p_holm, many[0].verdict) == (pytest.approx(7 * 2 / 256), "suggests")
    assert many[1].least_detectable.undefined == (
        "sign flips of 8 pairs give no p-value below 0.0078, and the first of 7 tests needs 0.0071"
    )
    with_few_seeds = with_verdicts([pair_of(RISING), *(pair_of(values[:5]) for values in noise)])
    assert with_few_seeds[0].sign_flip_p_holm == 2 / 256


def test_equal_arms_that_bifurcate_are_seldom_decided() -> None:
    """Half of the seeds of either arm collapse: of families of three tests at most one in twenty decides anything."""
    rng = np.random.default_rng(1)
    decided = 0
    for _ in range(200):
        runs = np.where(rng.random((2, 3, 8)) < 0.5, 0.2, 0.8) + rng.normal(0, 0.01, (2, 3, 8))
        decided += any(pair.verdict == "decides" for pair in with_verdicts([pair_of(row) for row in runs[1] - runs[0]]))
    assert decided / 200 <= LEVEL + 0.03


def test_the_least_detectable_difference_is_detected_as_often_as_stated() -> None:
    rng = np.random.default_rng(2)
    (pair,) = with_verdicts([pair_of(rng.normal(size=10))])
    effect = pair.least_detectable.value / pair.spread
    decided = [with_verdicts([pair_of(rng.normal(effect, 1.0, 10))])[0].verdict == "decides" for _ in range(200)]
    assert np.mean(decided) == pytest.approx(0.8, abs=0.1)


@pytest.fixture
def runs(short_run: MakeRun) -> tuple[Path, Path]:
    """A run with the weights of steps 1 and 3, and one with those of all three."""
    return short_run(), short_run(advantage="sign", checkpoint_every=1)


def test_gradients_are_those_of_the_common_steps(runs: tuple[Path, Path]) -> None:
    comparison = compare_runs(*runs, gradients=True)
    assert comparison.metrics[-2:] == ("effective_rank", "signal_to_noise")
    for run, cell in zip(runs, comparison.cells, strict=True):
        report = measure_rank(run, steps=(1, 3), advantages=("logged",), options=RankOptions(group_sizes=(4,)))
        ranks = [point.effective_rank.value for point in report.curve]
        assert cell.metrics["effective_rank"].value == pytest.approx(np.mean(np.array(ranks, dtype=float)))
        noise = [update.signal_to_noise.value for update in report.formulations if update.advantage == "logged"]
        defined = [value for value in noise if value is not None]
        assert cell.metrics["signal_to_noise"].value == pytest.approx(np.mean(defined))
    pairs = {pair.metric: pair for pair in comparison.pairs}
    first, second = (cell.metrics["effective_rank"].value for cell in comparison.cells)
    assert pairs["effective_rank"].difference.value == pytest.approx(second - first)


def test_runs_without_a_common_step(runs: tuple[Path, Path], tmp_path: Path) -> None:
    late = shutil.copytree(runs[0], tmp_path / "late")
    shutil.rmtree(checkpoint_path(late, 0))
    early = shutil.copytree(runs[1], tmp_path / "early")
    for number in (1, 2):
        shutil.rmtree(checkpoint_path(early, number))
    with pytest.raises(InputError, match="no step in common whose gradients can be recomputed"):
        compare_runs(late, early, gradients=True)


def shifted(shift: float, seed: int) -> tuple[float, ...]:
    """Rewards of four steps whose mean is .5 + shift, a little different for each seed."""
    return tuple(value + shift + 0.01 * seed for value in (0.2, 0.4, 0.6, 0.8))


@pytest.fixture
def grid(tmp_path: Path) -> Path:
    """Two formulations with three seeds: sign earns .10, .11 and .12 less."""
    for seed in range(3):
        write_run(tmp_path / f"grpo-{seed}", seed=seed, rewards=shifted(0.0, seed))
        options = {"rewards": shifted(-0.1 - 0.02 * seed, seed), "correct": (2, 3)}
        write_run(tmp_path / f"sign-{seed}", advantage="sign", seed=seed, **options)
    return tmp_path


def measured_pair(comparison: Comparison, metric: str) -> ComparedPair:
    (pair,) = [pair for pair in comparison.pairs if pair.metric == metric]
    return pair


def test_cells_are_means_over_seeds_and_pairs_are_paired_by_seed(grid: Path) -> None:
    comparison = compare_runs(grid)
    grpo, sign = comparison.cells
    assert (grpo.name, grpo.advantage, grpo.settings, grpo.seeds) == ("grpo", "grpo", {}, (0, 1, 2))
    assert comparison.metrics == ("pass@1", "pass@4", "train_reward", "reward_drawdown", "mean_frac_reward_zero_std")
    assert grpo.metrics["train_reward"].value == pytest.approx(0.51)
    assert grpo.metrics["train_reward"].num_units == 3
    assert (grpo.metrics["pass@1"].value, sign.metrics["pass@1"].value) == (0.5, 0.625)
    assert grpo.metrics["pass@4"].value == 1.0
    assert grpo.metrics["mean_frac_reward_zero_std"].value == 0.25
    assert grpo.metrics["reward_drawdown"].value == 0.0
    assert comparison.source.num_rows == 24
    assert len(comparison.source.files) == 18
    assert all(metric(name).formula for name in comparison.metrics)
    pair = measured_pair(comparison, "train_reward")
    assert (pair.first, pair.second, pair.changed, pair.num_pairs) == ("grpo", "sign", "advantage", 3)
    differences = [-0.10, -0.12, -0.14]
    assert pair.difference.value == pytest.approx(-0.12)
    assert pair.p_value == pytest.approx(paired_t_p_value(differences))
    assert pair.sign_flip_p_value == 0.25
    assert pair.test == "paired t"
    made = [pair for pair in comparison.pairs if pair.p_value is not None]
    assert comparison.num_tests == len(made) == 4
    assert pair.p_holm == pytest.approx(4 * (pair.p_value or 0.0))
    # held-out samples differ by the same amount for every seed: nothing tells how much that varies
    constant = measured_pair(comparison, "pass@1")
    assert constant.difference.value == pytest.approx(0.125)
    assert (constant.p_value, constant.p_holm) == (None, None)
    assert constant.undefined == "all pairs differ by the same amount, which leaves no spread to judge it by"


def test_only_cells_that_differ_in_one_thing_are_compared(tmp_path: Path) -> None:
    for seed in range(2):
        for advantage in ("grpo", "sign"):
            for rate in (1e-4, 2e-4):
                write_run(tmp_path / f"{advantage}{rate}{seed}", advantage=advantage, seed=seed, learning_rate=rate)
    comparison = compare_runs(tmp_path)
    names = [f"{name}, learning_rate {rate}" for name in ("grpo", "sign") for rate in ("0.0001", "0.0002")]
    assert [cell.name for cell in comparison.cells] == names
    changed = [(pair.first, pair.second, pair.changed) for pair in comparison.pairs if pair.metric == "train_reward"]
    assert changed == [
        (names[0], names[2], "advantage"),
        (names[1], names[3], "advantage"),
        (names[0], names[1], "learning_rate"),
        (names[2], names[3], "learning_rate"),
    ]
    words = f"None of the {comparison.num_tests} tests decides after Holm's correction"
    assert comparison.findings[0].startswith(words)


def test_one_cell_has_no_pairs_and_its_folders_and_checkpoints_are_no_settings(tmp_path: Path) -> None:
    write_run(tmp_path / "a", rewards=(0.2, 0.9, 0.3, 0.5), checkpoint_every=2, device="cpu")
    write_run(tmp_path / "b", seed=1, checkpoint_every=5, device="auto")
    comparison = compare_runs(tmp_path)
    (cell,) = comparison.cells
    assert (cell.name, cell.seeds, comparison.pairs) == ("grpo", (0, 1), ())
    assert comparison.findings == ("No two cells differ in exactly one thing, so nothing is compared in pairs.",)
    assert cell.metrics["reward_drawdown"].value == pytest.approx(0.3)  # .6 and 0 were lost again
    write_run(tmp_path / "c", advantage="sign", heldout_prompts=0)
    assert "pass@1" not in compare_runs(tmp_path).metrics


@pytest.mark.parametrize("seeds", [(0, 0), (0, 1)], ids=["one pair", "no pair"])
def test_too_few_pairs_have_no_p_value_but_a_reason(tmp_path: Path, seeds: tuple[int, int]) -> None:
    write_run(tmp_path / "a", seed=seeds[0])
    write_run(tmp_path / "b", advantage="sign", seed=seeds[1], rewards=(0.1, 0.2, 0.3, 0.4))
    pair = measured_pair(compare_runs(tmp_path), "train_reward")
    assert (pair.p_value, pair.p_holm) == (None, None)
    if seeds == (0, 0):
        assert pair.difference.value == pytest.approx(-0.25)
        assert pair.undefined == "one pair does not tell how much pairs differ by chance"
    else:
        assert pair.difference.undefined == pair.undefined == "the two have no seed in common"


def test_curves_are_windows_with_the_range_of_seeds(tmp_path: Path) -> None:
    rewards = np.linspace(0.0, 0.99, 100)
    for seed in range(2):
        write_run(tmp_path / str(seed), seed=seed, rewards=(rewards + 0.1 * seed).tolist(), steps=100)
    curve = next(curve for curve in compare_runs(tmp_path).curves if curve.metric == "reward")
    assert curve.steps == tuple(3.0 + 5.0 * window for window in range(20))
    assert curve.mean[0] == pytest.approx(0.07)
    assert (curve.low[0], curve.high[0]) == pytest.approx((0.02, 0.12))


def test_unfinished_and_broken_runs_are_left_out_with_the_reason(grid: Path) -> None:
    write_run(grid / "short", seed=7, steps=9)
    write_run(grid / "unsampled", seed=8)
    heldout_path(grid / "unsampled", "after").unlink()
    (grid / "torn").mkdir()
    (grid / "torn" / "manifest.json").write_text("{")
    left_out = compare_runs(grid).left_out
    assert {Path(folder).name for folder in left_out} == {"short", "unsampled", "torn"}
    assert left_out[str(grid / "short")] == "4 of 9 steps are done"
    assert left_out[str(grid / "unsampled")] == "its held-out prompts were not sampled after training"
    assert "is not JSON" in left_out[str(grid / "torn")]
    with pytest.raises(InputError, match="3 runs cannot be compared"):
        compare_runs(grid, strict=True)


def test_budgets(grid: Path) -> None:
    assert compare_runs(grid, ks=[2]).metrics[:2] == ("pass@2", "train_reward")
    with pytest.raises(InputError, match="pass@8 needs more than the 4 samples of a prompt"):
        compare_runs(grid, ks=[8])


def test_what_cannot_be_compared(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"there are 0 \(.*: The folder .* is empty\)"):
        compare_runs(tmp_path)
    write_run(tmp_path / "a")
    with pytest.raises(InputError, match="All 2 paths name one run"):
        compare_runs(*[tmp_path / "a"] * 2)
    with pytest.raises(InputError, match=r"A comparison needs two finished runs, and there are 1 \(no other folder\)"):
        compare_runs(tmp_path)
    write_run(tmp_path / "deep" / "b")
    with pytest.raises(InputError, match="have the same settings and seed: they are one run made twice"):
        compare_runs(tmp_path)
    lines = "".join(f'{{"step": {step}, "loss": 1}}\n' for step in range(1, 5))
    (tmp_path / "a" / "metrics.jsonl").write_text(lines)
    with pytest.raises(InputError, match=r"there are 0.*step 1 has no reward"):
        compare_runs(tmp_path / "a")


def test_what_a_step_costs_is_compared_where_sampling_differs(tmp_path: Path) -> None:
    for seed in range(2):
        write_run(tmp_path / f"fixed-{seed}", seed=seed, tokens=2000, sampling="fixed")
        write_run(tmp_path / f"dynamic-{seed}", seed=seed, tokens=3000 + 100 * seed, sampling="dynamic")
    comparison = compare_runs(tmp_path)
    assert comparison.metrics[-1] == "kilotokens_per_step"
    assert [cell.metrics["kilotokens_per_step"].value for cell in comparison.cells] == [pytest.approx(3.05), 2.0]
    assert measured_pair(comparison, "kilotokens_per_step").difference.value == pytest.approx(-1.05)
    assert any("only held-out samples compare like with like" in sentence for sentence in comparison.findings)
    # with one kind of sampling, or a run that does not tell, it is not among the metrics
    assert "kilotokens_per_step" not in compare_runs(*tmp_path.glob("fixed-*")).metrics
    write_run(tmp_path / "untold", seed=5, sampling="dynamic")
    assert "kilotokens_per_step" not in compare_runs(tmp_path).metrics


@pytest.mark.slow
def test_only_what_was_asked_for_is_tested(tmp_path: Path) -> None:
    for advantage in ("grpo", "sign"):
        for seed in range(3):
            for rate in (1e-4, 2e-4):
                rewards = (0.1, 0.2, 0.3 + 0.01 * seed, 0.4 + 1000 * rate * (1 + 0.1 * seed))
                name = f"{advantage}-{rate}-{seed}"
                write_run(tmp_path / name, advantage=advantage, seed=seed, learning_rate=rate, rewards=rewards)
    everything, chosen = compare_runs(tmp_path), compare_runs(tmp_path, only="learning_rate")
    assert {pair.changed for pair in everything.pairs} == {"advantage", "learning_rate"}
    assert {pair.changed for pair in chosen.pairs} == {"learning_rate"}
    assert 0 < chosen.num_tests < everything.num_tests
    with pytest.raises(InputError, match="No two cells differ in 'steps' alone") as caught:
        compare_runs(tmp_path, only="steps")
    assert caught.value.hint == "They differ in advantage, learning_rate; leave out --vary."
    with pytest.raises(InputError, match="No two cells differ in 'advantage' alone") as caught:
        compare_runs(tmp_path / "grpo-0.0001-0", tmp_path / "sign-0.0002-0", only="advantage")
    assert caught.value.hint == "No two differ in one thing; leave out --vary."
