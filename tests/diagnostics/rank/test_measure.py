"""Ranks of runs: the step's Gram adds up to the logged norm, and every question comes from it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from safetensors.numpy import load_file

from gradscope.diagnostics.inputs.steps import MeasuredStep
from gradscope.diagnostics.rank import measure as module
from gradscope.diagnostics.rank.measure import examine_step, measure_rank
from gradscope.diagnostics.rank.options import RankOptions
from gradscope.diagnostics.rank.rows import RankRequest
from gradscope.diagnostics.rank.tokens import KINDS, weigh_step
from gradscope.diagnostics.rank.weight_updates import GradientSummary
from gradscope.errors import InputError, UsageError
from gradscope.gradients.engine_options import EngineOptions
from gradscope.gradients.plan.objective import Objective
from gradscope.gradients.step.directions import MatrixSteps, TensorNorm, WeightSpectrum
from gradscope.gradients.step.heldout import HeldoutGram
from gradscope.gradients.tokens.measure import measure_signals, measure_tokens
from gradscope.metrics.gram.geometry import row_sparsity
from gradscope.progress import no_progress
from gradscope.reason import Reason
from gradscope.results.rank import GradientSpectrum, RankReport
from gradscope.rollouts.read_options import ReadOptions
from tests.diagnostics.claims.made_up_evidence import collected_of
from tests.diagnostics.made_up_runs import group_of as rewarded
from tests.diagnostics.made_up_runs import run_of, two_steps, with_fields
from tests.diagnostics.rank.made_up_parts import made_up
from tests.diagnostics.rank.test_rollout_spectra import make_rows, tokens_of
from tests.diagnostics.rank.test_rows import group_of, request
from tests.gradients.models import DAPO, measured_step, policy_of, tiny_groups, tiny_model
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
    assert sum(row.energy_share.value for row in weights.modules) == pytest.approx(1.0)
    assert sum(row.norm.value**2 for row in weights.modules) == pytest.approx(norm**2, rel=1e-5)
    assert {row.optimizer: len(row.cosines) for row in weights.optimizers} == {"sgd": 2, "adam": 2, "muon": 2}
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
    rows = [{"step": s, "prompt": "2+2?", "completion": "4", "reward": r} for s in range(1, 6) for r in (0, 1)]
    steps: list[int] = []

    def examine(run: Any, measured: Any, *rest: Any) -> None:
        steps.append(measured.step)
        examine_step(run, measured, *rest)

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


def tokens_with(weights: list[float], norms: list[float], *, num_tokens: int | None = None):
    """A group whose token rows have these norms before they are weighed."""
    group = tokens_of("a", [0] * len(weights), num_tokens=num_tokens)
    return replace(group, gram=np.diag(np.square(norms)), table=replace(group.table, logged_weights=np.array(weights)))


def test_tokens_of_all_groups_are_measured_on_one_scale() -> None:
    groups = [tokens_with([2.0, 0.0], [3.0, 1.0]), tokens_with([-1.0, 1.0], [0.05, 8.0])]
    (row,) = module._token_sparsity(7, groups)
    expected = row_sparsity([6.0, 0.0, 0.05, 8.0])
    assert (row.step, row.parts, row.num_parts, row.frac_seen) == (7, "tokens", 4, 1.0)
    assert (row.zero.value, row.small.value) == (0.25, 0.5)
    assert (row.hoyer, row.gini) == (expected["hoyer"], expected["gini"])
    (row,) = module._token_sparsity(7, [tokens_with([1.0, 1.0], [1.0, 1.0], num_tokens=8)])
    assert (row.num_parts, row.frac_seen, row.gini.value) == (8, 0.25, 0.0)
    assert module._token_sparsity(7, []) == []
    assert module._token_sparsity(7, [tokens_of("a", [0, 0], logged=False)]) == []
    (dead,) = module._token_sparsity(7, [tokens_with([0.0, 0.0], [1.0, 1.0])])
    assert (dead.zero.value, dead.gini.undefined) == (1.0, "every row is zero")
    # each weight has the sparsity of its entries
    sizes = {"even": [1.0] * 6, "single": [0.0, 0.0, 0.0, 0.0, 0.0, 5.0]}
    spectra = [
        WeightSpectrum(tensor=name, shape=(2, 3), singular_values=np.ones(2), entries=row_sparsity(values))
        for name, values in sizes.items()
    ]
    even, single = module._weight_sparsity(3, spectra)
    assert (even.parts, even.tensor, even.num_parts, even.gini.value) == ("entries", "even", 6, 0.0)
    assert (single.zero.value, single.hoyer.value) == (pytest.approx(5 / 6), pytest.approx(1.0))


def test_advantages_need_no_gradient() -> None:
    collected, rows = (
        collected_of(),
        request(rows="advantage", advantages=("logged", "sign", "pass_at_4"), group_sizes=()),
    )
    groups = group_of({"completion_ids": (1, 2), "advantage": 1.0}, {"completion_ids": (1, 2), "advantage": -1.0})
    done: list[float] = []
    collected.progress = lambda count, total, label: done.append(count / total)
    module.examine_advantages(3, groups, rows, collected)
    assert done == [0, 1 / 3, 2 / 3]
    assert [point.advantage for point in collected.report.curve] == ["logged", "sign"]
    assert set(collected.refused) == {"pass_at_4"}
    module.examine_advantages(4, group_of({"advantage": 1.0}), rows, collected)
    assert "has no token ids" in collected.skipped[4].text


def test_optimizer_steps_and_modules_are_collected_or_missing() -> None:
    norms = (TensorNorm(tensor="lm_head.weight", num_entries=4, norm=2.0),)
    values = (np.ones(2), np.ones(2), np.ones(2))
    steps = (MatrixSteps(tensor="q", num_entries=4, products=np.eye(3), singular_values=values, num_moved=(1, 2, 3)),)
    measured = MeasuredStep(step=4, groups=(), weights=None, gram=None, reason=None)

    def collected(gradient: GradientSummary | None) -> module.Collected:
        into = collected_of()
        answered = replace(measured, answer=(("rows",), gradient))
        assert into.take_parts(run_of(rewarded([0.0, 1.0], step=4)), answered, "weight").answer == ("rows",)
        return into

    full = collected(GradientSummary(norms=norms, steps=steps))
    assert ([share.module for share in full.report.modules], len(full.report.optimizers)) == (["output head"], 6)
    assert full.missing_parts == {}
    in_parts = collected(GradientSummary(norms=norms, steps=()))
    assert in_parts.missing_parts.keys() == {"optimizers"}
    assert "step 4: several processes share the model" in in_parts.missing_parts["optimizers"]
    assert collected(None).missing_parts.keys() == {"optimizers", "modules"}
    assert collected_of().take_parts(run_of(rewarded([0.0, 1.0], step=4)), measured, "weight") is measured
    assert collected_of().take_parts(run_of(rewarded([0.0, 1.0], step=4)), measured, "rollout") is measured


def test_a_reason_against_held_out_answers_is_reported_once() -> None:
    rows, _ = make_rows([0.0, 1.0], ["a", "a"])
    collected = collected_of(heldout_sentences={"Held-out answers: 2 of them.": None})
    for step in (1, 2, 3):
        collected.take_heldout(replace(rows, step=step), Reason("unusable", "all are trained on", "Give others."), [])
    assert collected.missing_parts == {"heldout": "step 3: all are trained on. Give others"}
    assert list(collected.heldout_notes()) == [
        "Held-out answers: 2 of them.",
        "No held-out numbers at steps 1:3: all are trained on. Give others.",
    ]
    rows, scores = make_rows([0.0, 1.0] * 4, [f"g{index // 2}" for index in range(8)])
    products = HeldoutGram(cross=scores @ scores[:3].T, norms=np.ones(3), scales=np.ones(8), notes=("A note.",))
    answered = collected_of()
    answered.take_heldout(rows, products, ["dr_grpo", "sign"])
    assert [row.advantage for row in answered.report.heldout] == ["dr_grpo", "sign"]
    assert len(answered.report.heldout_influences) == 4
    assert list(answered.heldout_notes()) == ["A note."]


def test_the_gradient_of_the_kl_term_in_dead_groups_is_reported() -> None:
    groups = [with_fields(group, advantage=0.0) for group in tiny_groups(2, 2)]
    live = with_fields(groups[0], advantage=[1.0, 0.0])
    model, reference = tiny_model("llama_untied_biases"), tiny_model("llama_untied_biases").requires_grad_(False)
    reference.lm_head.weight.mul_(1.3)
    kl = Objective(loss_type="grpo", beta=0.5)
    gram = measured_step(policy_of(model, reference=reference), [live, groups[1]], kl, engine="stream")
    (sentence,) = module._kl_of_dead_groups(gram)
    block = gram.kl_gram[2:, 2:]
    assert sentence.endswith(f"gives these a gradient of norm {np.sqrt(block.sum()):.3g}.")
    assert "which is 0 in 1 of 2 groups" in sentence
    no_reference = measured_step(policy_of(model), [live, groups[1]], DAPO, engine="stream")
    assert list(module._kl_of_dead_groups(no_reference)) == []


def test_kinds_are_answered_in_order_and_one_without_answer_spares_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(prepared: object, gram: object, *, progress: object) -> None:
        raise UsageError("Rows of tokens are measured by one process.")

    questions = (refuse, None, lambda prepared, gram, *, progress: (prepared, gram))
    answer = module.answer_all("step", "gram", questions=questions)
    assert isinstance(answer[0], UsageError)
    assert answer[1:] == (None, ("step", "gram"))
    examined = []
    steps = [
        MeasuredStep(step=1, groups=(), weights=None, gram=None, reason=None, answer=answer),
        MeasuredStep(step=2, groups=(), weights=None, gram=None, reason="no weights of 2"),
    ]
    monkeypatch.setattr(module, "measure_steps", lambda *_, **__: iter(steps))
    monkeypatch.setattr(module, "examine_step", _examining(examined, module.examine_step))
    requests = [request(rows="token"), request(rows="rollout")]
    by_kind = module.collect_kinds(two_steps(), [1, 2], requests, EngineOptions(), no_progress, max_tokens=8)
    refused = Reason("unusable", "Rows of tokens are measured by one process")
    assert by_kind["token"].skipped == {1: refused, 2: "no weights of 2"}
    assert by_kind["rollout"].skipped == {2: "no weights of 2"}
    assert examined == ["rollout"]


def _examining(examined: list[str], examine: Callable[..., None]) -> Callable[..., None]:
    """Record the kinds of which a step has an answer; leave the others to the function itself."""

    def record(run: object, measured: MeasuredStep, ranked: RankRequest, by_kind: module.Collected) -> None:
        if measured.reason is None:
            examined.append(ranked.rows)
        else:
            examine(run, measured, ranked, by_kind)

    return record


def test_each_kind_asks_for_what_it_needs() -> None:
    assert module.row_question(request(rows="rollout"), 64) is None
    assert module.row_question(request(rows="group"), 64) is None
    drawn = {"max_tokens": 64, "num_buckets": None, "seed": 0}
    for rows, sketch, function, keywords in (
        ("hidden", None, measure_signals, {"signal": "hidden", "max_tokens": 64, "seed": 0}),
        ("logit", None, measure_signals, {"signal": "logit", "max_tokens": 64, "seed": 0}),
        ("token", None, measure_tokens, drawn),
        ("token", 256, measure_tokens, drawn | {"max_tokens": None, "num_buckets": 256}),
    ):
        question = module.row_question(request(rows=rows), 64, sketch)
        assert (question.func, question.keywords) == (function, keywords)
    weights = request(rows="weight")  # of which some are drawn where every kind is asked for
    assert module.row_question(weights, 64).keywords == {"request": weights}
    assert module._question(weights, 64).keywords == {"request": weights, "max_weights": module.MAX_WEIGHTS}


def test_energies_of_token_kinds_are_collected_and_rows_examined(monkeypatch: pytest.MonkeyPatch) -> None:
    made, examined = made_up(), []
    answers = [(tuple(made.grams), made.weighed), (tuple(made.grams), None)]

    def measured(run, steps, engine, progress, question):
        (kind_question,) = question.keywords["questions"]
        assert (kind_question.func, kind_question.keywords["extra"]) == (module.rows_and_extra, weigh_step)
        assert kind_question.keywords["rows"].func is measure_tokens
        for step, answer in zip(steps, answers, strict=True):
            yield MeasuredStep(step=step, groups=(), weights=None, gram=None, reason=None, answer=(answer,))

    monkeypatch.setattr(module, "measure_steps", measured)
    monkeypatch.setattr(module, "examine_step", lambda run, step, examining, by_kind: examined.append(step.answer))
    by_kind = module.collect_kinds(
        two_steps(), (1, 2), [request(rows="token")], EngineOptions(), no_progress, max_tokens=64
    )
    assert examined == [tuple(made.grams)] * 2
    assert [(energy.step, energy.kind) for energy in by_kind["token"].energies] == [(1, kind) for kind in KINDS]
    assert by_kind["token"].weighed == {1: made.weighed}
