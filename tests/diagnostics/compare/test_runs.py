"""Runs as they are read for a comparison: of other readers, trained on other rewards, and told apart."""

from itertools import product
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from gradscope.diagnostics.compare import measure
from gradscope.diagnostics.compare.means import prompt_names
from gradscope.diagnostics.compare.measure import _cell_name, compare_runs
from gradscope.diagnostics.compare.runs import _with_run_names, read_runs
from gradscope.diagnostics.report.index import report_runs
from gradscope.errors import InputError
from gradscope.estimate import Estimate
from gradscope.render.terminal.compare import compare_table
from gradscope.results.compare import ComparedPair, Comparison
from gradscope.rollouts.groups import reward_table
from gradscope.rollouts.readers.detect import read_run
from gradscope.rollouts.run_folder import read_manifest, write_manifest
from gradscope.rollouts.store import write_step_rollouts
from tests.conftest import LOGS
from tests.diagnostics.compared_runs import write_run
from tests.diagnostics.made_up_runs import group_of
from tests.metrics.uncertainty.test_steps import persistent
from tests.render.printing import printed
from tests.rollouts.readers.lines import write_lines

DENSE = {"reward": "answer_probability"}


def test_what_was_rewarded_is_compared_and_what_the_reward_is_the_unit_of_is_not(tmp_path: Path) -> None:
    for seed in range(2):
        write_run(tmp_path / f"plain{seed}", seed=seed, reward="outcome", incoherent=(10, seed))
        write_run(tmp_path / f"dense{seed}", seed=seed, incoherent=(10, 2 + 3 * seed), correct=(2, 3), **DENSE)
    comparison = compare_runs(tmp_path)
    dense, outcome = comparison.cells
    assert (dense.metrics["frac_incoherent"].value, outcome.metrics["frac_incoherent"].value) == (0.35, 0.05)
    pairs = {pair.metric: pair for pair in comparison.pairs}
    assert set(pairs) == {"pass@1", "pass@4", "frac_incoherent"}
    assert pairs["frac_incoherent"].changed == "reward"
    assert abs(pairs["frac_incoherent"].difference.value or 0.0) == pytest.approx(0.3)
    assert "train_reward" in comparison.metrics
    outcomes = compare_runs(tmp_path / "plain0", tmp_path / "plain1")
    assert "frac_incoherent" not in outcomes.metrics  # the outcome is the reward


@pytest.mark.parametrize("incoherent", [None, (0, 0)], ids=["not counted", "nothing rewarded"])
def test_a_run_without_the_share_leaves_its_pairs_out(tmp_path: Path, incoherent: tuple[int, int] | None) -> None:
    write_run(tmp_path / "a", incoherent=(10, 1), **DENSE)
    write_run(tmp_path / "b", advantage="rloo", incoherent=incoherent, **DENSE)
    comparison = compare_runs(tmp_path)
    grpo, rloo = comparison.cells
    assert grpo.metrics["frac_incoherent"].value == pytest.approx(0.1)
    assert rloo.metrics["frac_incoherent"].undefined == "not every run of the cell has it"
    assert {pair.metric for pair in comparison.pairs} == set(comparison.metrics) - {"frac_incoherent"}


@pytest.mark.parametrize(("value", "word"), [(float("nan"), "NaN"), (float("inf"), "Infinity")])
def test_a_run_whose_reward_is_not_finite_is_left_out_and_named(tmp_path: Path, value: float, word: str) -> None:
    for seed in range(2):
        write_run(tmp_path / f"grpo{seed}", seed=seed)
        write_run(tmp_path / f"sign{seed}", advantage="sign", seed=seed)
    write_run(tmp_path / "broken", seed=2, rewards=(0.2, 0.4, value, 0.8))
    assert compare_runs(tmp_path).left_out == {str(tmp_path / "broken"): f"step 3 logged reward as {word}"}


def write_log(path: Path, rewards: list[list[float]]) -> Path:
    """A group a step: a log of no trainer of ours."""
    pairs = ((step, reward) for step, group in enumerate(rewards, start=1) for reward in group)
    return write_lines(path, *({"prompt_id": f"p{step}", "step": step, "reward": reward} for step, reward in pairs))


@pytest.mark.parametrize(
    ("groups", "share"),
    [([[1, 1], [1, 1], [1]], 1.0), ([[1, 0], [1, 1], [0]], 0.5), ([[1, 0, 1], [1], [0], [1]], 0.0), ([[1], [0]], None)],
)
def test_groups_of_one_rollout_have_no_part_in_the_share_of_dead_ones(
    tmp_path: Path, groups: list[list[int]], share: float | None
) -> None:
    rows = [
        {"prompt_id": f"p{prompt}", "step": step, "reward": reward}
        for step in (1, 2, 3)
        for prompt, rewards in enumerate(groups)
        for reward in rewards
    ]
    comparison = compare_runs(*(write_lines(tmp_path / name, *rows) for name in ("a.jsonl", "b.jsonl")))
    shares = {mean.value for cell in comparison.cells for name, mean in cell.metrics.items() if "zero_std" in name}
    assert shares == (set() if share is None else {share})


def differences(comparison: Comparison) -> dict[str, float | None]:
    return {pair.metric: pair.difference.value for pair in comparison.pairs}


def test_two_logs_of_another_reader_are_compared(tmp_path: Path) -> None:
    low = write_log(tmp_path / "low" / "log.jsonl", [[0, 0, 0, 0], [1, 0, 0, 0]])
    high = write_log(tmp_path / "high" / "log.jsonl", [[1, 0, 0, 1], [1, 1, 1, 1]])
    report = compare_runs(low, high)
    assert [cell.name for cell in report.cells] == ["low/log.jsonl", "high/log.jsonl"]
    assert {cell.advantage for cell in report.cells} == {"unknown"}
    assert {pair.changed for pair in report.pairs} == {"run"}
    assert differences(report) == {
        "train_reward": pytest.approx(0.75 - 0.125),
        "reward_drawdown": 0.0,
        "mean_frac_reward_zero_std": 0.0,
    }
    assert report.source.recognized == "2 runs (generic)"
    assert report.source.files == (str(low), str(high))
    assert report.findings[:2] == (
        "No difference between low/log.jsonl and high/log.jsonl is beyond chance (2 looked at: mean reward, groups "
        "without a gradient).",
        "2 of 2 prompts are in both.",
    )
    assert "do not cover other seeds" in report.findings[2]
    high.write_text(high.read_text().replace(': "p', ': "q'))
    assert "0 of 4 prompts are in both: a difference may be that of the prompts." in sentences(compare_runs(low, high))


def test_settings_that_one_of_two_runs_does_not_state_are_no_difference(tmp_path: Path) -> None:
    ours, log = write_run(tmp_path / "ours", heldout_prompts=0), write_log(tmp_path / "log.jsonl", [[0, 1]] * 4)
    report = compare_runs(ours, log)
    assert differences(report)["train_reward"] == pytest.approx(0.0)
    assert report.source.recognized == "2 runs (gradscope, generic)"
    assert {pair.changed for pair in report.pairs} == {"run"}
    assert any(
        "Unknown whether they differ in what one of them does not state: " in finding for finding in report.findings
    )
    assert compare_table(report)


@pytest.mark.parametrize("scale", [10.0, -3.0])
def test_rewards_of_other_tasks_need_not_lie_between_0_and_1(tmp_path: Path, scale: float) -> None:
    logs = [
        write_log(tmp_path / f"{name}.jsonl", [[scale * value, 0.0] for value in values])
        for name, values in (("falls", (1.0, 0.5, 0.0)), ("rises", (0.0, 0.5, 1.0)))
    ]
    drawdowns = [cell.metrics["reward_drawdown"].value for cell in compare_runs(*logs).cells]
    assert sorted(drawdowns) == [0.0, pytest.approx(abs(scale) / 2)]


def test_unusable_logs_are_left_out_or_refused_with_their_hint(tmp_path: Path) -> None:
    good = [write_log(tmp_path / f"{name}.jsonl", [[0, 1]]) for name in "ab"]
    bare = tmp_path / "bare.jsonl"
    bare.write_text('{"prompt_id": "p", "step": 1, "reward": null}\n{"prompt_id": "p", "step": 1, "reward": 1}\n')
    report = compare_runs(*good, bare, tmp_path / "nowhere")
    assert report.left_out[str(bare)] == "no group has all its rewards"
    assert "There is no file or folder" in report.left_out[str(tmp_path / "nowhere")]
    assert len(report.cells) == 2
    with pytest.raises(InputError, match="samples of an evaluation and no training steps") as refused:
        compare_runs(LOGS / "samples_rows.jsonl", LOGS / "samples_lists.jsonl")
    assert refused.value.hint == f"gradscope passk {LOGS / 'samples_rows.jsonl'} {LOGS / 'samples_lists.jsonl'}"
    with pytest.raises(InputError, match="no group has all its rewards") as refused:
        compare_runs(LOGS / "messy.jsonl", LOGS / "generic.csv")
    assert refused.value.hint == "Log the reward of each rollout."


def test_logs_that_tell_settings_and_seed_are_cells(tmp_path: Path) -> None:
    """verl keeps its configuration beside the log: two rates, two seeds."""
    runs = []
    for rate, seed in ((1e-6, 1), (1e-6, 2), (2e-6, 1), (2e-6, 2)):
        log = write_log(tmp_path / f"{rate}-{seed}" / "log.jsonl", [[0, 1], [1, 1]])
        runs += [replace(run, settings={"lr": rate}, seed=seed) for run in read_runs([log])[0]]
    cells = measure._cells(_with_run_names(runs))
    assert [_cell_name(cell) for cell in cells] == ["lr 1e-06", "lr 2e-06"]
    assert [sorted(of_seed) for of_seed in cells.values()] == [[1, 2], [1, 2]]


QUESTIONS = [f"{n} + 2 = ?" for n in range(12)]


def test_seeds_in_names_pair_logs_that_state_none(tmp_path: Path) -> None:
    paths = [
        write_log(tmp_path / f"{name}_seed{seed}.jsonl", [[0.0, float(seed > rate)], [1.0, float(seed > rate)]])
        for name, rate in (("plain", 1), ("sign", 2))
        for seed in (1, 2, 3)
    ]
    comparison = compare_runs(*paths)
    assert [cell.settings["run"] for cell in comparison.cells] == ["plain.jsonl", "sign.jsonl"]
    assert {cell.seeds for cell in comparison.cells} == {(1, 2, 3)}
    (reward,) = (pair for pair in comparison.pairs if pair.metric == "train_reward")
    assert (reward.num_pairs, reward.difference.value) == (3, pytest.approx(-0.5 / 3))
    assert comparison.has_seeds_in_names
    text = printed(compare_table(comparison))
    assert "2 cells, by the seeds in the runs' names" in text
    assert "sign.jsonl - plain.jsonl" in text


@pytest.mark.parametrize(
    "names", [("plain_seed1", "plain_seed2"), ("plain_seed1", "sign_seed1"), ("plain_seed1", "plain_seed2", "sign")]
)
def test_names_that_pair_no_seeds_stay_as_they_are(tmp_path: Path, names: tuple[str, ...]) -> None:
    comparison = compare_runs(*(write_log(tmp_path / name / "log.jsonl", [[0.0, 1.0]]) for name in names))
    assert len(comparison.cells) == len(names)
    assert not comparison.has_seeds_in_names


def rewards(chance: float, seed: int, *, num_steps: int = 4, wander: float = 0.0) -> list[tuple[int, str, float]]:
    """Step, question and reward: prompts of very different pass rates, eight rollouts each at every step."""
    rng = np.random.default_rng(seed)
    rates = np.linspace(-0.4, 0.4, len(QUESTIONS)) + chance
    luck = wander * persistent(rng, num_steps, 0.8) if wander else np.zeros(num_steps)
    return [
        (step, question, float(rng.random() < rate + luck[step - 1]))
        for step in range(1, num_steps + 1)
        for question, rate in zip(QUESTIONS, rates, strict=True)
        for _ in range(8)
    ]


def as_generic(path: Path, rows: list[tuple[int, str, float]]) -> Path:
    return write_lines(path, *({"prompt": q, "completion": "c", "step": s, "reward": r} for s, q, r in rows))


def as_verl(folder: Path, rows: list[tuple[int, str, float]]) -> Path:
    for step in {step for step, _, _ in rows}:
        of_step = [(q, r) for s, q, r in rows if s == step]
        inputs = [{"input": f"user\n{q}\nassistant\n", "output": "c", "score": r, "step": step} for q, r in of_step]
        write_lines(folder / f"{step}.jsonl", *inputs)
    return folder


def sentences(report: Comparison) -> str:
    return "\n".join(report.findings)


def test_prompts_match_by_text_across_readers_and_templates_and_else_by_id(tmp_path: Path) -> None:
    rows = rewards(0.5, 0)
    report = compare_runs(as_generic(tmp_path / "log.jsonl", rows), as_verl(tmp_path / "verl", rows))
    assert "12 of 12 prompts are in both." in sentences(report)
    assert report.findings[0] == (
        "No difference between log.jsonl and verl is beyond chance (5 looked at: mean reward, trend of the mean "
        "reward, length of completions, trend of the length of completions, groups without a gradient)."
    )
    within_runs = {pair.metric: pair.within_runs for pair in report.pairs}
    for name in ("reward_trend", "completion_characters_trend"):
        assert within_runs.pop(name) == Estimate(value=0.0, low=0.0, high=0.0, num_units=4)
    assert set(within_runs.values()) == {None, Estimate.exact(0.0, num_units=12)}
    tables = [reward_table(read_run(LOGS / name, rewards_only=True).groups) for name in ("ms_swift", "generic.csv")]
    assert "2+2=?" in set.intersection(*map(set, prompt_names(tables)))
    table = reward_table(read_run(LOGS / "generic.csv", rewards_only=True).groups)
    other = replace(table, prompt_texts=tuple(f"so: {text}" for text in table.prompt_texts or ()))
    for unlike in (other, replace(table, prompt_texts=None)):
        assert prompt_names([table, unlike]) == [list(table.prompts)] * 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("num_steps", "wander"), [(4, 0.0), (30, 0.04)], ids=["prompts", "steps that share their luck"]
)
def test_two_of_one_process_seldom_differ(tmp_path: Path, num_steps: int, wander: float) -> None:
    missed, widths = 0, []
    for seed in range(8):
        runs = [rewards(0.5, 2 * seed + n, num_steps=num_steps, wander=wander) for n in range(2)]
        logs = [as_generic(tmp_path / f"{name}.jsonl", run) for name, run in zip("ab", runs, strict=True)]
        _, together = within_runs_of(*logs)["train_reward"]
        missed += together.side_of_zero != 0
        widths.append(together.ends[1] - together.ends[0])
    assert missed <= 2, "more have a chance of 6 in 1,000; by prompts alone half of those that wander differ"
    if not wander:  # the same prompts are resampled together
        rest = [(s, f"other {q}", r) for s, q, r in rewards(0.5, 1)]
        _, unpaired = within_runs_of(logs[0], as_generic(tmp_path / "other.jsonl", rest))["train_reward"]
        assert unpaired.ends[1] - unpaired.ends[0] > 2 * max(widths)


@pytest.mark.parametrize("is_metrics", [False, True], ids=["rollouts", "metrics"])
def test_runs_of_one_mean_whose_rewards_go_opposite_ways_differ(tmp_path: Path, is_metrics: bool) -> None:
    by_step = [rewards(0.2 + 0.05 * step, step, num_steps=1) for step in range(12)]
    logs = []
    for name, steps in (("rises", by_step), ("falls", by_step[::-1])):
        path = tmp_path / f"{name}.jsonl"
        if is_metrics:
            means = (np.mean([r for *_, r in rows]) for rows in steps)
            logs.append(write_lines(path, *({"step": step, "reward": mean} for step, mean in enumerate(means))))
        else:
            logs.append(as_generic(path, [(step, q, r) for step, rows in enumerate(steps) for _, q, r in rows]))
    report = compare_runs(*logs)
    assert report.findings[0].startswith("falls.jsonl against rises.jsonl: trend of the mean reward -1.")
    verdicts = {pair.metric: pair.verdict for pair in report.pairs}
    assert (verdicts["train_reward"], verdicts["reward_trend"]) == ("open", "differ")
    assert differences(report)["train_reward"] == pytest.approx(0.0)
    line = [np.mean([r for *_, r in rows]) for rows in by_step]
    slope = np.polyfit(np.arange(12), line, 1)[0]
    assert differences(report)["reward_trend"] == pytest.approx(-2 * 11 * slope)
    by_metric = {pair.metric: pair.within_runs for pair in report.pairs}
    assert max(map(abs, by_metric["train_reward"].ends)) <= 1.0  # however alike neighboring steps are


@pytest.mark.slow
def test_the_second_named_run_minus_the_first_at_the_steps_that_both_have(tmp_path: Path) -> None:
    low, high = rewards(0.4, 0), rewards(0.6, 1, num_steps=9)
    first, other = as_generic(tmp_path / "z.jsonl", low), as_generic(tmp_path / "a.jsonl", high)
    forth, back = within_runs_of(first, other)["train_reward"][1], within_runs_of(other, first)["train_reward"][1]
    common = np.mean([r for s, _, r in high if s <= 4]) - np.mean([r for _, _, r in low])
    assert forth.value == pytest.approx(common)
    assert back.value == pytest.approx(-common)
    report = compare_runs(first, other)
    assert report.findings[0].startswith("a.jsonl against z.jsonl: mean reward +0.2")
    assert "Compared at the 4 steps that both have, of 4 and 9." in sentences(report)
    report = compare_runs(first, other, as_generic(tmp_path / "third.jsonl", rewards(0.9, 2, num_steps=9)))
    by_pair = {(pair.first, pair.second, pair.metric): pair.difference.value for pair in report.pairs}
    assert abs(by_pair["a.jsonl", "z.jsonl", "train_reward"]) == pytest.approx(abs(common))
    assert report.cautions == ("Compared at the 4 steps that all runs have (without z.jsonl 9).",)
    report = compare_runs(first, as_generic(tmp_path / "b.jsonl", low))
    assert report.cautions[0] == "Both have the same mean reward at each of 4 steps, as logs of one run do."
    assert "step" not in " ".join(report.cautions[1:])


def test_runs_without_a_common_step_are_not_judged(tmp_path: Path) -> None:
    """Steps 50 to 69 of a run that learns were "+0.355, which is beyond chance" beside its steps 1 to 40."""
    first = as_generic(tmp_path / "a.jsonl", rewards(0.2, 0, num_steps=12))
    later = as_generic(tmp_path / "b.jsonl", [(step + 100, *row) for step, *row in rewards(0.9, 1, num_steps=12)])
    later.write_text(later.read_text().replace('"c"', '"longer"'))
    report = compare_runs(first, later)
    assert report.findings[0].startswith("a.jsonl and b.jsonl have no step in common (1 to 12 and 101 to 112), ")
    assert "beyond chance" not in sentences(report)
    assert "These intervals are over the prompts of the two runs and do" in sentences(report)
    assert {pair.verdict for pair in report.pairs} == {"open"}
    assert differences(report)["train_reward"] > 0.5
    third = as_generic(tmp_path / "c.jsonl", rewards(0.5, 2, num_steps=9))
    words = "The 3 runs have no step in common (without b.jsonl 9), "
    assert compare_runs(first, later, third).findings[0].startswith(words)


@pytest.mark.parametrize(("shift", "scale", "unlike"), [(3.0, 1.0, True), (-1.0, 2.0, True), (0.0, 1.0, False)])
def test_rewards_on_another_scale_are_no_difference(tmp_path: Path, shift: float, scale: float, unlike: bool) -> None:
    """The same rollouts with 3 added to each reward were "mean reward +2.893, which is beyond chance"."""
    rng = np.random.default_rng(1)
    rewards = [rng.integers(0, 2, size=4).tolist() for _ in range(30)]
    first = write_log(tmp_path / "a.jsonl", rewards)
    second = write_log(tmp_path / "b.jsonl", [[scale * reward + shift for reward in group] for group in rewards])
    report = compare_runs(first, second)
    assert report.findings[0].startswith("No difference between a.jsonl and b.jsonl is beyond chance")
    assert ("so mean rewards are in two units." in sentences(report)) == unlike
    assert ("mean reward" in report.findings[0], "widened" in sentences(report)) == (not unlike, False)
    (reward,) = (pair for pair in report.pairs if pair.metric == "train_reward")
    assert (reward.within_runs is None) == unlike
    third = write_log(tmp_path / "c.jsonl", [2 * group for group in rewards])
    assert "Groups of 4 and of 8 rollouts: the smaller ones" in sentences(compare_runs(first, third))


@pytest.mark.slow
def test_metrics_alone_have_intervals_over_their_steps(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    logs = []
    for name, mean in (("a", 0.2), ("b", 0.6)):
        rows = [{"step": s, "reward": mean + 0.05 * rng.normal(), "frac_reward_zero_std": 0.5} for s in range(1, 41)]
        logs.append(write_lines(tmp_path / f"{name}.jsonl", *rows))
    report = compare_runs(*logs)
    assert report.findings[0].startswith("b.jsonl against a.jsonl: mean reward +0.4")
    assert compare_runs(LOGS / "verl_v1", LOGS / "trl").source.num_rows == 4 + 8
    assert "These intervals are over the steps of the two runs" in sentences(report)
    for gap, is_told in ((0.1, True), (0.0, False)):  # two rising rewards were never told apart
        for name, end in (("c", 0.7), ("d", 0.7 + gap)):
            rows = [{"step": s, "reward": 0.3 + (end - 0.3) * s / 100 + 0.03 * rng.normal()} for s in range(1, 101)]
            write_lines(tmp_path / f"{name}.jsonl", *rows)
        rising = compare_runs(tmp_path / "c.jsonl", tmp_path / "d.jsonl").findings[0]
        assert rising.startswith("d.jsonl against c.jsonl: trend of the mean reward +0.1") == is_told


def test_a_run_that_collapses_parts_from_one_that_does_not(tmp_path: Path) -> None:
    """Rewards of .9 against .9 and then 0 were "No difference is beyond chance": a drift may be as slow as the run."""
    rng, logs = np.random.default_rng(0), []
    for name, end in (("a", 0.9), ("b", 0.0)):
        rows = [{"step": s, "reward": (0.9 if s < 15 else end) + 0.07 * rng.normal()} for s in range(1, 41)]
        logs.append(write_lines(tmp_path / f"{name}.jsonl", *rows))
    first, second, *_ = compare_runs(*logs).findings
    assert first.startswith("b.jsonl diverges from a.jsonl at step 15: its mean reward minus the other's goes from ")
    assert first.endswith("(medians of 5 steps).")
    assert second.startswith("Of means and trends over all steps none is beyond chance (2 looked at: mean reward, ")
    assert report_runs(logs).sections[0].findings[0] == first


def test_a_number_that_leaves_its_level_in_one_run_alone_is_said(tmp_path: Path) -> None:
    """An entropy of .5 against one that ends below .02 was "No difference is beyond chance"."""
    rng, logs = np.random.default_rng(0), []
    for name, last in (("a", 200), ("b", 150), ("c", 155)):
        entropy = [0.5 * np.exp(min(last - s, 0) / 15) + 0.02 * rng.random() for s in range(1, 201)]
        rows = [{"step": s + 1, "reward": 0.5 + 0.03 * rng.normal(), "entropy": entropy[s]} for s in range(200)]
        rows = [{**row, "clip_ratio": 0.6 + 0.1 * (name == "b")} for row in rows]  # beyond a half in all of them
        logs.append(write_lines(tmp_path / f"{name}.jsonl", *rows))
    first, second, *_ = compare_runs(logs[0], logs[1]).findings
    assert first.startswith("b.jsonl: The entropy falls from 0.515, its median up to step 10, to 0.07")
    assert second.startswith("Of means and trends over all steps none is beyond chance")
    assert "The entropy falls" not in sentences(compare_runs(logs[1], logs[2]))


def test_other_numbers_that_both_trainers_logged_are_compared(tmp_path: Path) -> None:
    """Runs of which 40 and 70 % of completions were cut off were "No difference", for rewards alone were compared."""
    rng, logs = np.random.default_rng(0), []
    for name, cut, steps in (("a", 0.4, 40), ("b", 0.7, 40), ("c", 0.4, 39)):
        rows = [
            {"step": step, "reward": rng.normal(), "completions/clipped_ratio": cut + 0.05 * rng.normal()}
            | {"completions/mean_length": 200 * cut + rng.normal()}
            | ({"kl": 0.1} if step <= steps else {})
            for step in range(1, 41)
        ]
        logs.append(write_lines(tmp_path / f"{name}.jsonl", *rows))
    report = compare_runs(*logs[:2])
    assert report.findings[0].startswith("b.jsonl against a.jsonl: length of completions +59.4")
    assert report.findings[1].startswith("Beyond it, too: completions cut off +")
    assert differences(report)["mean_clipped_ratio"] == pytest.approx(0.3, abs=0.05)
    assert "completion_tokens" in printed(compare_table(report)).split("verdict")[1].split("train_reward")[0]
    assert "mean_kl" in report.metrics
    assert "mean_kl" not in differences(compare_runs(logs[0], logs[2]))  # which one has at 39 of 40 steps
    assert not {"completion_tokens", "mean_kl"} & set(compare_runs(*logs).metrics)
    names = ("reward", "frac_reward_zero_std")  # of which no step has both
    separate = write_lines(tmp_path / "d.jsonl", *({"step": s, names[s % 2]: 0.5, "kl": 0.1} for s in range(1, 41)))
    assert compare_runs(logs[0], separate).num_common_steps == 20


@pytest.mark.parametrize("unit", ["characters", "tokens"])
def test_completions_that_grow_are_a_difference(tmp_path: Path, unit: str) -> None:
    """Twice the length at the end, with the same rewards, was "No difference is beyond chance"."""
    rng, logs = np.random.default_rng(0), []
    for name, growth in (("a", 0), ("b", 4), ("c", 0)):
        rows = []
        for step, group in product(range(1, 31), range(4)):
            for length in (100 + growth * step + rng.integers(-20, 20, size=4)).tolist():
                row = {"step": step, "reward": int(rng.integers(0, 2))}
                if unit == "tokens":  # as open-instruct writes them
                    ids = {"prompt_tokens": [group], "response_tokens": [7] * length}
                    rows.append(row | ids | {"prompt_idx": group, "logprobs": None, "finish_reason": "stop"})
                else:
                    rows.append(row | {"prompt": f"p{group}", "completion": "x" * length})
        logs.append(write_lines(tmp_path / name / "demo_rollouts_0.jsonl", *rows))
    first, second, same = logs
    report = compare_runs(first, second)
    assert report.findings[0].startswith("b/demo_rollouts_0.jsonl against a/demo_rollouts_0.jsonl: trend of the length")
    assert differences(report)[f"completion_{unit}"] == pytest.approx(4 * 15.5, abs=5)
    assert differences(report)[f"completion_{unit}_trend"] == pytest.approx(4 * 29, abs=15)
    assert f" {unit}, which is beyond chance." in report.findings[0]
    assert compare_runs(first, same).findings[0].startswith("No difference between")


def test_all_that_is_beyond_chance_is_said(tmp_path: Path) -> None:
    """A mean reward that fell was not in the sentence about dead groups that rose."""
    rng = np.random.default_rng(0)
    logs = [
        write_log(tmp_path / f"{number}.jsonl", (rng.random((40, 8)) < rate).astype(float).tolist())
        for number, rate in enumerate((0.5, 0.05))
    ]
    first, second, *_ = compare_runs(*logs).findings
    assert "which is beyond chance." in first
    assert second.startswith("Beyond it, too: ")
    assert "mean reward -0.4" in first + second
    assert "groups without a gradient +" in first + second


def test_a_difference_may_be_that_of_other_prompts(tmp_path: Path) -> None:
    rewards = [[0.0, 0.0, 0.0, 1.0]] * 20, [[0.0, 1.0, 1.0, 1.0]] * 20
    low, high = (write_log(tmp_path / f"{n}.jsonl", groups) for n, groups in enumerate(rewards))
    assert compare_runs(low, high).findings[0].endswith("[+0.500, +0.500], which is beyond chance.")
    high.write_text(high.read_text().replace(': "p', ': "q'))
    assert compare_runs(low, high).findings[0].endswith(", but may be that of other prompts.")


@pytest.mark.parametrize(("num_steps", "few"), [(9, True), (10, False)])
def test_few_steps_do_not_tell_how_far_a_policy_wanders(tmp_path: Path, num_steps: int, few: bool) -> None:
    """Of 60 pairs of 9 steps of one recipe whose policy wanders 18 were "beyond chance", and none of 10 steps."""
    runs = ([0.0, 0.0, 0.0, 1.0], [0.0, 1.0, 1.0, 1.0])
    logs = [write_log(tmp_path / f"{number}.jsonl", [run] * num_steps) for number, run in enumerate(runs)]
    report = compare_runs(*logs)
    assert report.findings[0].endswith(f"which is beyond {'the chance of prompts' if few else 'chance'}.")
    assert (f"is made: {num_steps} steps do not tell how far a policy wanders." in sentences(report)) == few
    assert ("over the prompts and steps" in sentences(report)) != few


def test_mean_rewards_of_other_functions_are_no_difference(tmp_path: Path, shared_data: Path) -> None:
    runs = shared_data / "runs"
    report = compare_runs(runs / "verl_sample" / "v1" / "rollout", runs / "verl_sample" / "legacy" / "rollout")
    assert "Their rewards are of other functions, so mean rewards are in two units." in sentences(report)
    sentence = compare_runs(runs / "trl_full" / "run", runs / "trl_lora" / "run").findings[0]
    assert sentence.startswith("trl_lora/run against trl_full/run: groups without a gradient +26.3 [")
    assert sentence.endswith("] points, which is beyond chance.")


def test_what_a_recorder_wrote_of_a_script_is_a_run(tmp_path: Path) -> None:
    """Its manifest has no configuration of ours, so nothing says how many steps it was to have."""
    logs = []
    for name, rows in (("a", [[0.0, 1.0], [1.0, 1.0]]), ("b", [[0.0, 0.0], [1.0, 1.0]])):
        folder = write_run(tmp_path / name, heldout_prompts=0)
        write_manifest(folder, replace(read_manifest(folder), config={}), force=True)
        for step in (1, 2):
            groups = [group_of(of_group, prompt=f"p{n}", step=step) for n, of_group in enumerate(rows)]
            write_step_rollouts(folder, step, groups)
        logs.append(folder)
    report = compare_runs(*logs)
    assert {pair.metric: pair.difference.value for pair in report.pairs}["train_reward"] == pytest.approx(-0.25)
    assert "2 of 2 prompts are in both." in sentences(report)


def write_pair(path: Path, chance: float, *, sizes: tuple[int, ...] = (8,), seed: int = 0, scale: float = 1.0) -> Path:
    """Ten prompts a step for eight steps, groups of the sizes in turn."""
    rng = np.random.default_rng(seed)
    rows = [
        {"prompt_id": f"{path.stem}-{prompt}", "step": step, "reward": scale * float(rng.random() < chance)}
        for step in range(1, 9)
        for prompt in range(10)
        for _ in range(sizes[(step + prompt) % len(sizes)])
    ]
    return write_lines(path, *rows)


def within_runs_of(*paths: Path) -> dict[str, tuple[ComparedPair, Estimate | None]]:
    return {pair.metric: (pair, pair.within_runs) for pair in compare_runs(*paths).pairs}


@pytest.mark.parametrize(("sizes", "scale"), [((8,), 1.0), ((2, 3, 16), 1.0), ((4, 8), 5.0)])
def test_the_interval_is_around_the_tables_difference(tmp_path: Path, sizes: tuple[int, ...], scale: float) -> None:
    logs = [
        write_pair(tmp_path / f"{name}.jsonl", chance, sizes=sizes, seed=index, scale=scale)
        for index, (name, chance) in enumerate((("low", 0.3), ("high", 0.6)))
    ]
    pairs = within_runs_of(*logs)
    for metric in ("train_reward", "mean_frac_reward_zero_std"):
        pair, estimate = pairs[metric]
        assert estimate.value == pytest.approx(pair.difference.value, abs=1e-12)
        assert estimate.num_units == 10
        assert pair.difference.interval is None
        assert pair.verdict == ("differ" if estimate.side_of_zero else "open")
    _, reward = pairs["train_reward"]
    assert reward.side_of_zero == 1  # high minus low
    assert reward.ends[1] - reward.ends[0] < scale * 0.25
    assert pairs["reward_drawdown"][1] is None


def test_three_runs_or_rollouts_that_are_not_there_have_no_such_interval(tmp_path: Path) -> None:
    logs = [write_pair(tmp_path / f"{name}.jsonl", 0.5) for name in "abc"]
    assert all(estimate is None for _, estimate in within_runs_of(*logs).values())
    bare = write_run(tmp_path / "run", heldout_prompts=0)
    assert all(estimate is None for _, estimate in within_runs_of(bare, logs[0]).values())
