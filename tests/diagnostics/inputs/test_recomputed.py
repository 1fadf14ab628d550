import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from msgspec.structs import replace
from transformers import BertConfig, BertLMHeadModel, LlamaConfig, LlamaForCausalLM

from gradscope.diagnostics.inputs import recomputed as module
from gradscope.diagnostics.inputs.recomputed import (
    Longest,
    Recomputer,
    _longest_before,
    _other_tokens,
    _remember_longest,
    _trained_dtype,
    _with_head,
    other_texts,
)
from gradscope.diagnostics.inputs.recomputed import policy_of as policy_of_run
from gradscope.diagnostics.inputs.step_loss import losses_at
from gradscope.diagnostics.inputs.steps import measure_steps
from gradscope.errors import InputError
from gradscope.gradients.engine_options import EngineOptions
from gradscope.gradients.model.batches import TokenSequence, TrainerPadding
from gradscope.gradients.plan.objective import Objective
from gradscope.gradients.plan.prepared_step import prepare_step
from gradscope.gradients.step.measure import measure_step
from gradscope.gradients.step.step_gram import StepGram, StepNorm
from gradscope.gradients.trained.norms import Assumption, TrainerArithmetic, trained_norms, trl_output
from gradscope.metrics.gram.geometry import batch_norm
from gradscope.progress import no_progress
from gradscope.rollouts.run import Run, TrainerSettings, WeightsRef
from tests.diagnostics.made_up_runs import group_of, run_of, with_fields
from tests.gradients.adapters import adapt
from tests.gradients.models import DAPO, VOCAB, policy_of, tiny_experts, tiny_groups, tiny_model

COUNTS = {"completions/mean_length": 3.0, "num_tokens": 14.0}
"""Two rollouts of three sampled tokens and prompts of four."""


def run_with(metrics: dict[str, float], *, before: dict[str, float] | None = None, step: int = 1) -> Run:
    run = run_of(replace(group_of([1, 0]), step=step), metrics={step - 1: before or {}, step: metrics})
    return replace(run, source=replace(run.source, format="trl"))


def rows(*, num_prompt: int = 4, mask: tuple[bool, ...] = (True,) * 3, inferred: bool = False) -> list[TokenSequence]:
    sequence = TokenSequence(
        group_id="g",
        sample=0,
        prompt_ids=(1,) * num_prompt,
        completion_ids=(2,) * len(mask),
        mask=mask,
        inferred=inferred,
    )
    return [sequence, sequence]


@pytest.mark.parametrize(
    ("metrics", "sequences", "cause"),
    [
        (COUNTS, rows(), None),
        ({}, rows(num_prompt=9), None),
        ({**COUNTS, "completions/mean_length": 2.5}, rows(), "mask_unknown"),
        ({**COUNTS, "completions/mean_length": 3.5}, rows(), "ids_misfit"),
        ({**COUNTS, "completions/mean_length": 2.5}, rows(inferred=True), "ids_inferred"),
        ({**COUNTS, "completions/mean_length": 2.0, "num_tokens": 12.0}, rows(mask=(True, False, True)), None),
        ({**COUNTS, "num_tokens": 18.0}, rows(), "prompt_unknown"),
        ({**COUNTS, "tools/call_frequency": 0.0}, rows(), "prompt_unknown"),
    ],
)
def test_token_counts_must_agree(metrics: dict[str, float], sequences: list[TokenSequence], cause: str | None) -> None:
    reason = _other_tokens(run_with(metrics), 1, sequences)
    assert (reason and reason.cause) == cause


def test_counts_add_up_over_steps_and_leave_no_doubt_elsewhere() -> None:
    metrics = {**COUNTS, "num_tokens": 114.0}
    assert _other_tokens(run_with(metrics, before={"num_tokens": 100.0}, step=2), 2, rows()) is None
    reason = _other_tokens(run_with(metrics, before={"num_tokens": 96.0}, step=2), 2, rows())
    assert "the trainer counted 12 tokens of prompts, and their text gives 8" in reason.text
    assert _other_tokens(run_with(metrics, step=2), 2, rows(num_prompt=9)) is None  # nothing to start from
    run = run_with({**COUNTS, "num_tokens": 99.0})
    (group,) = run.groups
    for changes in (
        {"windows": {1: 2}},
        {"repeats": {1: 0}},
        {"source": replace(run.source, format="verl")},
        {"groups": (with_fields(group, prompt_ids=(1, 1, 1, 1)),)},
    ):
        assert _other_tokens(replace(run, **changes), 1, rows()) is None


class Words:
    """A tokenizer of words, which leaves 0 out where special tokens are skipped."""

    def decode(self, ids: tuple[int, ...], *, skip_special_tokens: bool) -> str:
        return " ".join(f"w{token}" for token in ids if token or not skip_special_tokens)


@pytest.mark.parametrize(
    ("texts", "tokenizer", "other"),
    [
        (("w1", "w2", "w3"), Words(), ()),
        (("w1", "w3", "w2"), Words(), ()),  # most are not read back: the tokenizer is another one
        (("w1", "w2", "w9"), Words(), (2,)),
        (("w1", "w9", "w3 w0"), Words(), (1,)),
        (("w1", "w2", "w9"), None, ()),
    ],
)
def test_texts_are_held_to_their_ids(texts: tuple[str, ...], tokenizer: Words | None, other: tuple[int, ...]) -> None:
    group = with_fields(group_of([1, 0, 1]), completion=list(texts), completion_ids=[(1, 0), (2, 0), (3, 0)])
    assert other_texts(group.rollouts, tokenizer) == other


def scaled_model(kind: str = "dynamic"):
    torch.manual_seed(0)
    shape = {"vocab_size": 16, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    rope = {"rope_type": kind, "factor": 4.0, "rope_theta": 10000.0}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 8}
    model = LlamaForCausalLM(LlamaConfig(**shape, **heads, rope_parameters=rope)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


@pytest.mark.parametrize(
    ("widths", "generates", "expected"),
    [
        ([(9, 10), (9, 20), (9, 12)], True, Longest(length=29)),
        ([(9, 20), (4, 6), (9, 12)], True, Longest(length=10)),  # prompts of 4 went back to the pretrained frequencies
        ([(9, 20), (4, 6), (9, 12)], False, Longest(length=29)),  # which a reference never sees alone
        ([(9, 20), (9, 20), (4, 6)], True, Longest()),
        ([None, (9, 12), (9, 10)], True, Longest(length=21, unlogged=1)),
    ],
)
def test_the_longest_batch_since_frequencies_went_back(
    monkeypatch: pytest.MonkeyPatch, widths: list, generates: bool, expected: Longest
) -> None:
    run = SimpleNamespace(groups_at=lambda step: widths[step - 1])
    monkeypatch.setattr(module, "_widths", lambda run, step, policy, objective: widths[step - 1])
    policy = SimpleNamespace(model=scaled_model())
    assert _longest_before(run, len(widths), policy, None, generates=generates) == expected


def test_policy_and_reference_get_the_frequencies_of_the_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oracle: the model as it is after a longer batch, in training."""
    ids = torch.arange(12)[None] % 16
    fresh, trained, *models = (scaled_model() for _ in range(4))
    widths = [(9, 11), (9, 3)]
    monkeypatch.setattr(module, "_widths", lambda run, step, policy, objective: widths[step - 1])
    run = SimpleNamespace(groups_at=lambda step: True, trained_by_trl=True)
    _remember_longest(run, 2, SimpleNamespace(model=models[0], reference=models[1]), None)
    with torch.no_grad():
        trained(input_ids=torch.zeros(1, 20, dtype=torch.long))
        expected = trained(input_ids=ids).logits
        assert not torch.allclose(fresh(input_ids=ids).logits, expected, atol=1e-5)
        for model in models:
            model(input_ids=ids[:, :3])  # which a trainer would begin anew with, and a probe must not
            assert torch.equal(model(input_ids=ids).logits, expected)


BERT = BertConfig(
    vocab_size=VOCAB,
    hidden_size=16,
    intermediate_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    is_decoder=True,
    pad_token_id=0,
)


def saved(folder: Path, *, name: str = "llama_untied_biases", change=None) -> WeightsRef:
    model = tiny_model(name)
    if change:
        change(model)
    model.save_pretrained(folder)
    return WeightsRef(num_updates=0, path=folder, kind="full")


def later(folder: Path, *, frozen: str) -> WeightsRef:
    """A checkpoint after three updates, in which some tensors did not move."""

    def learn(model) -> None:
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if frozen not in name:
                    parameter.add_(1e-3)

    return replace(saved(folder, change=learn), num_updates=3)


def weights_run(weights: tuple[WeightsRef, ...], logged: float | None, **settings) -> Run:
    metrics = {} if logged is None else {1: {"grad_norm": logged}}
    run = run_of(*tiny_groups(), metrics=metrics)
    values = {"loss_type": "dapo", "beta": 0.0, "temperature": 1.0, "bf16": False, "disable_dropout": True} | settings
    stated = TrainerSettings(values=values, origin="args.json")
    return replace(run, weights=weights, settings=stated, source=replace(run.source, format="trl"))


def recomputer_of(run: Run, *, bound_rounding: bool = False, norm_only: bool = False) -> Recomputer:
    return Recomputer(run, EngineOptions(device="cpu"), bound_rounding=bound_rounding, norm_only=norm_only)


def measure(recomputer: Recomputer, run: Run, step: int = 1, weights: int = 0, **options) -> StepGram | StepNorm:
    loss = next(losses_at(run, Objective.from_settings(run.settings), step))
    return recomputer.measure(step, run.weights[weights], loss, None, **options)[0]


def recompute(run: Run, step: int = 1, **options) -> StepGram | StepNorm:
    return measure(recomputer_of(run, **options), run, step)


def norm_of(*, padding_row: int | None = 0, frozen: str | None = None) -> float:
    """The oracle's: what the trainer would have logged."""
    model = tiny_model("llama_untied_biases")
    model.get_input_embeddings().padding_idx = padding_row
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(frozen is None or frozen not in name)
    return batch_norm(measure_step(prepare_step(policy_of(model), tiny_groups(), DAPO), engine="loop").logged_gram)


@pytest.mark.slow
def test_a_gradient_of_the_padding_row_is_recognized_by_the_norm(tmp_path: Path) -> None:
    assert norm_of(padding_row=None) != pytest.approx(norm_of(), rel=1e-4)
    gram = recompute(weights_run((saved(tmp_path),), norm_of(padding_row=None)))
    assert batch_norm(gram.logged_gram) == pytest.approx(norm_of(padding_row=None), rel=1e-6)
    (note,) = gram.notes
    assert note.startswith("The embedding of the padding token 0 had a gradient")
    (note,) = recompute(weights_run((saved(tmp_path),), None)).notes
    assert note.startswith("Whether the embedding of the padding token 0 had a gradient is not known")


@pytest.mark.slow
def test_frozen_tensors_are_recognized_by_two_checkpoints_and_the_norm(tmp_path: Path) -> None:
    weights = (saved(tmp_path / "first"), later(tmp_path / "last", frozen="embed_tokens"))
    expected = norm_of(frozen="embed_tokens")
    gram = recompute(weights_run(weights, expected))
    assert batch_norm(gram.logged_gram) == pytest.approx(expected, rel=1e-6)
    (note,) = gram.notes
    assert note.startswith("model.embed_tokens.weight was frozen")
    assert gram.coverage == 1.0
    gram = recompute(weights_run(weights, 1.2 * norm_of()), bound_rounding=True)  # nothing explains it
    assert batch_norm(gram.logged_gram) == pytest.approx(norm_of(), rel=1e-6)
    assert (gram.notes, gram.trained) == ((), None)


@pytest.mark.slow
@pytest.mark.parametrize("bf16", [False, True])
def test_what_draws_nothing_is_found_with_frozen_tensors_that_fitted_a_step_before(tmp_path: Path, bf16: bool) -> None:
    weights = (saved(tmp_path / "first"), later(tmp_path / "last", frozen="embed_tokens"))
    run = weights_run(weights, 1e3, bf16=bf16)
    recomputer = recomputer_of(run, bound_rounding=True)
    recomputer._fitted = Assumption(padding_row=0, frozen=frozenset({"model.embed_tokens.weight"}))
    gram = measure(recomputer, run)
    assert gram.assumption == recomputer._fitted
    assert (gram.trained is not None) == bf16


def test_a_norm_that_is_rounding_meets_a_logged_zero(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where all rewards are equal and the policy is still its own reference: nothing is looked at again."""
    run = weights_run((saved(tmp_path),), 0.0)
    level = [with_fields(group, advantage=1e-9) for group in run.groups]
    monkeypatch.setattr(Recomputer, "_try_alternatives", None)
    assert 0 < batch_norm(recompute(replace(run, groups=tuple(level))).logged_gram) < 1e-8


@pytest.mark.slow
def test_a_norm_in_bfloat16_is_matched_in_its_own_arithmetic_by_replay_alone(tmp_path: Path) -> None:
    weights = saved(tmp_path)
    policy = replace(policy_of(tiny_model("llama_untied_biases")), padding=TrainerPadding())
    prepared = prepare_step(policy, tiny_groups(), DAPO)
    logged = trained_norms(prepared, TrainerArithmetic(autocast=torch.bfloat16), num_orders=2, seed=9).mean
    gram = recompute(weights_run((weights,), logged, bf16=True), bound_rounding=True)
    assert abs(gram.trained.mean - logged) <= gram.trained.told_within * logged
    assert gram.trained.dtype == "bfloat16"
    assert gram.notes == ()
    gram = recompute(weights_run((saved(tmp_path, name="gpt2_tied_conv1d"),), 1.0, bf16=True))
    (note,) = gram.notes
    assert note.startswith("The trainer computed in less than float32")
    assert gram.trained is None


@pytest.mark.slow
@pytest.mark.parametrize("bf16", [False, None])
def test_a_routers_term_that_fits_is_the_end_of_the_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bf16: bool | None
) -> None:
    """Its float32 Gram never has the logged norm, and no adapter's idle random numbers are to be asked about."""
    model = tiny_experts("mixtral")
    model.save_pretrained(tmp_path)
    prepared = prepare_step(replace(policy_of(model), padding=TrainerPadding()), tiny_groups(), DAPO)
    arithmetic = TrainerArithmetic(micro_batch=3, router_coefficient=0.2)
    logged = trained_norms(prepared, arithmetic, num_orders=2, seed=9).mean
    settings = {"router_aux_loss_coef": 0.2, "per_device_train_batch_size": 3, "bf16": bf16}
    monkeypatch.setattr(Recomputer, "_require_no_draws", None)
    run = weights_run((WeightsRef(num_updates=0, path=tmp_path, kind="full"),), logged, **settings)
    gram = recompute(run, bound_rounding=True)
    assert gram.trained.dtype == "float32"
    assert gram.trained.meets(logged)
    assert not gram.trained.meets(2 * logged)


@pytest.mark.slow
def test_what_fitted_at_one_step_is_where_the_next_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = weights_run((saved(tmp_path),), norm_of(padding_row=None))
    recomputer = recomputer_of(run)
    first = measure(recomputer, run)
    monkeypatch.setattr(Recomputer, "_try_alternatives", None)
    second = measure(recomputer, run)
    assert (first.gram == second.gram).all()
    assert first.notes == second.notes


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("gpt2_tied_conv1d", {"disable_dropout": False}, "such as dropout"),
        ("qwen3_gqa_norms", {}, "beside the dropout modules"),
    ],
)
def test_random_training_cannot_be_recomputed(tmp_path: Path, name: str, settings: dict, words: str) -> None:
    saved(tmp_path, name=name)
    if name == "qwen3_gqa_norms":  # its dropout is a number that attention hands to a function
        config = json.loads((tmp_path / "config.json").read_text())
        (tmp_path / "config.json").write_text(json.dumps({**config, "attention_dropout": 0.5}))
    weights = WeightsRef(num_updates=0, path=tmp_path, kind="full")
    with pytest.raises(InputError, match=words) as caught:
        recompute(weights_run((weights,), 1.0, **settings))
    assert caught.value.cause == "dropout"


@pytest.mark.parametrize("bf16", [False, True])
def test_the_dropout_of_an_adapter_that_changes_nothing_yet_is_named_alike(tmp_path: Path, bf16: bool) -> None:
    """Its output is the same with dropout and without, and only its gradient is not."""
    base = saved(tmp_path / "base")
    options = {"target_modules": ["q_proj"], "lora_dropout": 0.5}
    adapt(tiny_model("llama_untied_biases"), options, perturbed=False).save_pretrained(tmp_path / "adapter")
    weights = WeightsRef(num_updates=0, path=tmp_path / "adapter", kind="adapter", base=str(base.path))
    with pytest.raises(InputError, match="such as dropout, and what it drew is not logged"):
        recompute(weights_run((weights,), 1.0, disable_dropout=False, bf16=bf16), bound_rounding=True)


@pytest.mark.slow
@pytest.mark.parametrize("norm_only", [True, False])
def test_the_norm_shows_that_a_script_had_its_model_in_evaluation_mode(tmp_path: Path, norm_only: bool) -> None:
    name = "gpt2_tied_conv1d"
    weights = (saved(tmp_path, name=name),)
    prepared = prepare_step(policy_of(tiny_model(name)), tiny_groups(), DAPO)
    norm = batch_norm(measure_step(prepared, engine="loop").logged_gram)

    def script(logged: float | None) -> Run:
        run = weights_run(weights, logged, disable_dropout=False)
        return replace(run, source=replace(run.source, format="generic"))

    result = recompute(script(norm), norm_only=norm_only)
    notes = result.described["notes"] if isinstance(result, StepNorm) else result.notes
    assert any(note.startswith("The model was in evaluation mode, without its dropout") for note in notes)
    for other in (1.01 * norm, None):
        with pytest.raises(InputError, match="such as dropout"):
            recompute(script(other), norm_only=norm_only)


@pytest.mark.slow
def test_the_norm_shows_that_a_script_padded_prompts_on_the_left(tmp_path: Path) -> None:
    """Where the model is told no positions, those that it learned count the padding, as in TRL's rows."""
    run = weights_run((saved(tmp_path, name="gpt2_tied_conv1d"),), None)
    padded = batch_norm(recompute(run).logged_gram)
    script = replace(run, metrics={1: {"grad_norm": padded}}, source=replace(run.source, format="generic"))
    assert abs(batch_norm(recompute(script).logged_gram) / padded - 1) > 1e-4
    (measured,) = measure_steps(script, [1], EngineOptions(device="cpu"), no_progress, norm_only=True)
    assert measured.norm is not None
    assert measured.norm.norm == pytest.approx(padded, rel=1e-6)
    assert any(note.startswith("Prompts were padded on the left") for note in measured.norm.described["notes"])


def test_a_model_that_does_not_see_padding_is_not_asked_twice(tmp_path: Path) -> None:
    run = weights_run((saved(tmp_path),), 1.0)
    with pytest.raises(InputError, match="Where the padding is makes no difference to this model"):
        measure(recomputer_of(run), run, pads_left=True)


def test_other_tokens_are_no_matter_of_the_loss(tmp_path: Path) -> None:
    run = weights_run((saved(tmp_path),), 2 * norm_of())
    run = replace(run, metrics={1: {**run.metrics[1], "completions/mean_length": 99.0}})
    with pytest.raises(InputError, match="the trainer counted 594 sampled tokens") as caught:
        recompute(run)
    assert caught.value.cause == "ids_misfit"


def test_unreadable_weights_and_misfit_rollouts_have_different_causes(tmp_path: Path) -> None:
    weights = saved(tmp_path)
    groups = tuple(with_fields(group, completion_ids=(999,)) for group in tiny_groups())
    with pytest.raises(InputError) as caught:
        recompute(replace(weights_run((weights,), 1.0), groups=groups))
    assert caught.value.cause == "ids_misfit"
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(InputError) as caught:
        recompute(weights_run((weights,), 1.0))
    assert caught.value.cause == "weights_unreadable"


@pytest.mark.slow
@pytest.mark.parametrize(("num_updates", "deepspeed"), [(1, None), (0, None), (1, "zero3.json")])
def test_checkpoints_that_were_rounded_after_they_were_trained(
    num_updates: int, deepspeed: str | None, tmp_path: Path
) -> None:
    """What training starts from may be stored in less than it is loaded in; DeepSpeed trains in what it saves."""
    weights = replace(saved(tmp_path, change=lambda model: model.bfloat16()), num_updates=num_updates)
    run = weights_run((weights,), 1.01 * norm_of(), model_init_kwargs={"dtype": "float32"}, deepspeed=deepspeed)
    if num_updates and deepspeed is None:
        with pytest.raises(InputError, match="is stored in bfloat16, and by the digits") as no:
            recompute(run, bound_rounding=True)
        assert no.value.cause == "precision"
    else:
        assert batch_norm(recompute(run).logged_gram) == pytest.approx(norm_of(), rel=1e-2)


@pytest.mark.slow
def test_norms_have_no_more_digits_than_gradients_of_the_weights(tmp_path: Path) -> None:
    """A norm of float16's gradients is such a number, unless weights were rounded as they were saved."""
    weights = replace(saved(tmp_path, change=lambda model: model.half()), num_updates=1)
    rounded = float(torch.tensor(1.01 * norm_of()).half())
    assert recompute(weights_run((weights,), rounded)).dtype in ("float32", "bfloat16", "float16")
    for on_disk in ((weights,), (replace(weights, num_updates=0), weights)):  # the first weights were rounded, too
        run = weights_run(on_disk, 1.01 * norm_of())
        with pytest.raises(InputError, match="by the digits of the norms or the arguments") as caught:
            recompute(run, bound_rounding=True)
        assert caught.value.cause == "precision"
        assert "what was rounded when the weights were saved limits" in recompute(run).notes[-1]
    for settings in ({"casts_weights": True}, {"deepspeed": "zero3.json"}):
        recompute(weights_run((weights,), 1.01 * norm_of(), **settings))


def test_an_output_layer_that_alone_is_stored_in_float32_was_so_in_training(tmp_path: Path) -> None:
    weights = saved(tmp_path / "mixed", change=lambda model: model.bfloat16().lm_head.float())
    run = weights_run((weights,), 1.0)
    assert _with_head(run).settings.get("cast_lm_head_to_fp32") is True
    named = replace(run, settings=replace(run.settings, values={"cast_lm_head_to_fp32": False}))
    assert _with_head(named) is named
    for change in (None, lambda model: model.bfloat16()):
        other = replace(run, weights=(saved(tmp_path / "alike", change=change),))
        assert _with_head(other).settings.get("cast_lm_head_to_fp32") is False


@pytest.mark.slow
def test_a_pass_that_ended_in_trls_output_layer_is_recognized_by_the_norm(tmp_path: Path) -> None:
    """BERT's prediction head is no part of what TRL trains; the next step begins with that."""
    torch.manual_seed(2)
    model = BertLMHeadModel(BERT).eval()
    model.save_pretrained(tmp_path)
    policy = replace(policy_of(model), padding=TrainerPadding())
    without_trl = batch_norm(measure_step(prepare_step(policy, tiny_groups(), DAPO)).logged_gram)
    with trl_output(model):
        logged = batch_norm(measure_step(prepare_step(policy, tiny_groups(), DAPO)).logged_gram)
    assert without_trl != pytest.approx(logged, rel=1e-3)
    run = weights_run((WeightsRef(num_updates=0, path=tmp_path, kind="full"),), logged)
    recomputer = recomputer_of(run)
    for _ in range(2):
        gram = measure(recomputer, run)
        assert batch_norm(gram.logged_gram) == pytest.approx(logged, rel=1e-5)
        assert gram.notes[-1].startswith("The output layer is TRL's, as in training")
    stated = replace(run, metrics={1: {"grad_norm": without_trl}})
    assert batch_norm(recompute(stated).logged_gram) == pytest.approx(without_trl)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [({"dtype": "bfloat16"}, "bfloat16"), ({"torch_dtype": "torch.float16"}, "float16"), ({}, "float32")],
)
def test_an_adapters_base_has_the_dtype_that_it_was_loaded_in(tmp_path: Path, arguments: dict, expected: str) -> None:
    """The adapter itself is kept in float32 all the same."""
    saved(tmp_path / "base")
    adapt(tiny_model("llama_untied_biases"), {}).save_pretrained(tmp_path / "adapter")
    weights = WeightsRef(num_updates=0, path=tmp_path / "adapter", kind="adapter", base=str(tmp_path / "base"))
    run = weights_run((weights,), 1.0, model_init_kwargs=arguments)
    assert _trained_dtype(run) == expected
    policy = policy_of_run(run, weights, EngineOptions(device="cpu"))
    base = policy.model.get_base_model().lm_head.weight
    as_loaded = tiny_model("llama_untied_biases").lm_head.weight.to(getattr(torch, expected)).float()
    assert torch.equal(base, as_loaded)
    assert policy.dtype == torch.float32
    full = weights_run((saved(tmp_path / "full"),), 1.0, model_init_kwargs=arguments)
    assert _trained_dtype(full) == "float32"  # weights that were saved have the dtype that they were trained in


@pytest.mark.slow
def test_a_norm_that_is_the_logged_one_needs_no_gram_matrix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights, options = (saved(tmp_path),), {"bound_rounding": True, "norm_only": True}
    recomputed = recompute(weights_run(weights, norm_of()), **options)
    assert isinstance(recomputed, StepNorm)
    assert recomputed.norm == pytest.approx(norm_of(), rel=1e-6)
    assert isinstance(recompute(weights_run(weights, None), **options), StepNorm)
    assert isinstance(recompute(weights_run(weights, 1.5 * norm_of()), **options), StepGram)
    assert isinstance(recompute(weights_run(weights, norm_of()), bound_rounding=True), StepGram)
    total = torch.nn.utils.get_total_norm
    monkeypatch.setattr(torch.nn.utils, "get_total_norm", lambda gradients: total(gradients) * (1 + 2e-5))
    recomputed = recompute(weights_run(weights, (1 + 2e-5) * norm_of()), **options)
    assert isinstance(recomputed, StepNorm)
    assert recomputed.norm == pytest.approx((1 + 2e-5) * norm_of(), rel=1e-6)


@pytest.mark.slow
def test_a_norm_in_float32_that_is_a_little_off_is_given_its_spread(tmp_path: Path) -> None:
    weights = (saved(tmp_path),)
    assert recompute(weights_run(weights, (1 + 3e-3) * norm_of()), bound_rounding=True).trained is None
    trained = recompute(weights_run(weights, (1 + 3e-5) * norm_of()), bound_rounding=True).trained
    assert (trained.dtype, trained.num_ties) == ("float32", 0)
    assert trained.mean == pytest.approx(norm_of(), rel=1e-5)
    assert 0 < trained.told_within < 2e-5
    run = weights_run(weights, (1 + 3e-4) * norm_of(), bf16=None)
    metrics = {1: run.metrics[1], 2: {"grad_norm": norm_of()}}
    groups = tuple(replace(group, step=step) for step in (1, 2) for group in run.groups)
    run = replace(run, metrics=metrics, groups=groups, weights=(*weights, replace(weights[0], num_updates=1)))
    recomputer = recomputer_of(run, bound_rounding=True, norm_only=True)
    dtypes = []
    for step in (1, 2, 1, 1):  # the arguments do not say in what it computed, a norm that is met exactly does
        if len(dtypes) == 3:  # but by chance where more are met in less than float32
            recomputer._reduced.update((3, 4))
        result = measure(recomputer, run, step, step - 1)
        dtypes.append(result.trained.dtype if result.trained else None)
    assert dtypes == ["bfloat16", None, "float32", "bfloat16"]


@pytest.mark.slow
def test_rollouts_that_are_alike_tie_at_the_entropy_quantile(tmp_path: Path) -> None:
    """Every token of a rollout has the entropy of its twin's: of half of them which one is masked is rounding."""
    run = weights_run(
        (saved(tmp_path),), 1.0, top_entropy_quantile=0.5, generation_batch_size=6, per_device_train_batch_size=6
    )
    groups = [with_fields(group, prompt_ids=(3, 4), completion_ids=(5, 6, 7)) for group in run.groups]
    gram = recompute(replace(run, groups=tuple(groups)), bound_rounding=True)
    assert gram.trained.num_ties == 6
    assert gram.trained.told_within > 0.01


def test_frequencies_of_a_batch_that_was_not_logged_are_a_cause(tmp_path: Path) -> None:
    rope = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0}
    config = tiny_model("llama_untied_biases").config
    changed = config.from_dict({**config.to_dict(), "rope_parameters": rope, "max_position_embeddings": 2})
    changed.pad_token_id = config.pad_token_id
    LlamaForCausalLM(changed).save_pretrained(tmp_path)
    weights = (WeightsRef(num_updates=1, path=tmp_path, kind="full"),)
    run = weights_run(weights, None)
    run = replace(run, groups=tuple(replace(group, step=2) for group in run.groups), metrics={2: {"grad_norm": 1.0}})
    with pytest.raises(InputError, match="step 1 is not in the log") as caught:
        recompute(run, 2, bound_rounding=True)
    assert caught.value.cause == "lengths_unknown"


@pytest.mark.slow
def test_the_checkpoint_of_a_step_0_may_be_the_one_before_it(tmp_path: Path) -> None:
    run = weights_run((saved(tmp_path),), None)
    groups = tuple(replace(group, step=0) for group in run.groups)
    script = replace(run, groups=groups, source=replace(run.source, format="generic"))
    for factor in (1.0, 1.5):
        logged = replace(script, metrics={0: {"grad_norm": factor * norm_of()}})
        (measured,) = measure_steps(logged, [0], EngineOptions(device="cpu"), no_progress, norm_only=True)
        if factor == 1.0:
            assert measured.recomputed.norm == pytest.approx(norm_of(), rel=1e-6)
        else:
            assert measured.reason.cause == "step_unknown"
