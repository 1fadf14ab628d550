"""Ranks of runs: the step's Gram adds up to the logged norm, and every question comes from it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from gradscope.diagnostics.rank.collected import examine_step
from gradscope.diagnostics.rank.measure import measure_rank
from gradscope.diagnostics.rank.options import RankOptions
from gradscope.errors import InputError
from gradscope.results.rank import GradientSpectrum, RankReport
from gradscope.rollouts.read_options import ReadOptions
from tests.rollouts.readers.lines import write_lines
from tests.trained import MakeRun

pytestmark = pytest.mark.slow  # runs of shared/data and of ours, recomputed


def rank_full(shared_data: Path, **options: object) -> RankReport:
    folder = shared_data / "runs" / "trl_full"
    read = ReadOptions(
        initial_weights=folder / "init_model",
        trainer_args=folder / "RUN.json",
        completion_ids=folder / "true_completion_ids.parquet",
    )
    return measure_rank(folder / "run", read=read, **options)


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("rank") / "out"


@pytest.fixture(scope="module")
def report(short_run: MakeRun, output: Path) -> RankReport:
    return measure_rank(short_run(), steps=[1, 3], options=RankOptions(output=output))


def pick(report: RankReport, step: int, advantage: str, size: int) -> list[GradientSpectrum]:
    at_step = [spectrum for spectrum in report.spectra if spectrum.label.step == step]
    return [s for s in at_step if (s.label.advantage, s.label.group_size) == (advantage, size)]


def test_the_step_adds_up_to_the_logged_norm_at_every_size_and_formulation(report: RankReport) -> None:
    for step in report.steps:
        assert step.grad_norm.value == pytest.approx(step.logged_grad_norm, rel=1e-5)
        assert step.num_inferred_ids == 0
        assert step.verification["error"] <= step.verification["tolerance"]
    assert len(pick(report, 1, "logged", 4)) == 1 + 4
    assert len(pick(report, 1, "rloo", 2)) == 1 + 8
    assert {point.advantage for point in report.curve} >= {"logged", "grpo", "dr_grpo", "rloo", "sign", "reinforce"}
    for logged, grpo in zip(pick(report, 3, "logged", 4), pick(report, 3, "grpo", 4), strict=True):
        np.testing.assert_allclose(logged.singular_values, grpo.singular_values, rtol=1e-4, atol=1e-6)
    of_step = {update.advantage: update for update in report.formulations if update.step == 3}
    step = next(step for step in report.steps if step.step == 3)
    # no KL term here, and the trainer's advantage is grpo: the what-if has the norm that the trainer logged
    assert of_step["grpo"].update_norm.value == pytest.approx(step.logged_grad_norm, rel=1e-4)
    assert of_step["logged"].cosines["grpo"].value == pytest.approx(1.0, abs=1e-6)
    assert sum(share.projection_share.value for share in report.shares if share.step == 3) == pytest.approx(1.0)
    assert report.baselines[0].step is None


def test_gram_files_hold_what_the_spectra_came_from(report: RankReport, output: Path) -> None:
    arrays = load_file(output / report.gram["3"])
    spectrum = pick(report, 3, "logged", 4)[0]
    values = np.sqrt(np.linalg.eigvalsh(arrays["gradient_gram"])[::-1].clip(0))
    np.testing.assert_allclose(spectrum.singular_values[:4], values[:4], rtol=1e-9, atol=1e-8)
    assert arrays["score_gram"].shape == (16, 16)
    assert len(set(arrays["group_index"].tolist())) == 4


def test_weight_rows_are_one_matrix_each(tiny_run: Path) -> None:
    weights = measure_rank(tiny_run, steps=[2], rows="weight", advantages=["logged"])
    tensors = {s.label.tensor: s for s in weights.spectra}
    query = next(s for name, s in tensors.items() if name and name.endswith("layers.0.self_attn.q_proj.weight"))
    assert query.label.shape == (64, 64)
    assert len(query.singular_values) == 64
    # all matrices together carry no more than the whole gradient
    energy = sum(sum(v * v for v in s.singular_values) for s in weights.spectra)
    norm = weights.steps[0].grad_norm.value
    assert sum(one.energy_share.value for one in weights.modules) == pytest.approx(1.0)
    assert sum(one.norm.value**2 for one in weights.modules) == pytest.approx(norm**2, rel=1e-5)
    assert {one.optimizer: len(one.cosines) for one in weights.optimizers} == {"sgd": 2, "adam": 2, "muon": 2}
    assert 0.9 * norm**2 < energy <= norm**2 * (1 + 1e-6)


def test_a_step_is_split_by_its_tokens(tiny_run: Path) -> None:
    report = measure_rank(tiny_run, steps=[2], rows="token", options=RankOptions(tokens=4), advantages=["logged"])
    cells = [kind for kind in report.token_kinds if kind.sign and kind.probability and kind.entropy]
    assert sum(kind.gradient_share.value or 0.0 for kind in cells) == pytest.approx(1.0, rel=1e-6)
    assert set(report.missing_parts) == {"kl", "turns"}  # none is in the loss, and completions have one
    (entropy,) = report.entropy_changes
    assert entropy.entropy.value == pytest.approx(entropy.logged, rel=1e-5)


def test_steps_without_weights_are_left_out_and_named(shared_data: Path) -> None:
    partial = rank_full(shared_data, steps=[1, 2], advantages=["logged"])
    assert list(partial.skipped) == [2]
    assert "not on disk" in partial.skipped[2]
    with pytest.raises(InputError, match=r"No step of .* could be computed: step 2: the weights after 1 update"):
        rank_full(shared_data, steps=[2])


def test_of_a_log_without_weights_three_steps_are_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"step": step, "prompt": "2+2?", "completion": "4", "reward": at} for step in range(1, 6) for at in (0, 1)]
    steps: list[int] = []

    def examine(run: Any, measured: Any, *others: Any) -> None:
        steps.append(measured.step)
        examine_step(run, measured, *others)

    monkeypatch.setattr("gradscope.diagnostics.rank.measure.examine_step", examine)
    with pytest.raises(InputError, match=r"No weights of .* are on disk"):
        measure_rank(write_lines(tmp_path / "log.jsonl", *rows))
    assert steps == [1, 2, 3]


def test_a_formulation_that_refuses_the_rewards_is_named(shared_data: Path) -> None:
    folder = shared_data / "runs" / "trl_lora"
    lora = measure_rank(
        folder / "run",
        steps=[6],
        advantages=["logged", "sign"],
        read=ReadOptions(initial_weights=folder / "init_adapter", trainer_args=folder / "RUN.json"),
    )
    assert list(lora.refused) == ["sign"]
    assert {s.label.advantage for s in lora.spectra} == {"logged"}


def test_update_rows_need_no_rollout_to_be_replayed(shared_data: Path) -> None:
    updates = rank_full(shared_data, rows="update")
    assert updates.spectra == updates.steps == ()
    assert {update.first for update in updates.updates} == {0, 5, 10, 15}
    trajectory = updates.trajectories[0]
    assert trajectory.num_updates == (5, 10, 15, 20)
    assert 0 < trajectory.linear_growth.value < 1
    assert "a random walk" in " ".join(updates.findings)
