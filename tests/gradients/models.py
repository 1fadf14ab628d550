"""Tiny models of every architecture family that has rules of its own, with nothing left at a value that hides a bug."""

import copy
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from msgspec.structs import replace
from peft import LoraConfig, get_peft_model
from tokenizers import Tokenizer, models

from gradscope.gradients.layers import rules
from gradscope.gradients.model.batches import TokenSequence
from gradscope.gradients.model.budget import TokenBudget, first_batch_tokens
from gradscope.gradients.model.policy import MeasuredPolicy
from gradscope.gradients.plan.objective import Objective
from gradscope.gradients.plan.prepared_step import PreparedStep, prepare_step
from gradscope.gradients.step.measure import measure_step
from gradscope.gradients.step.step_gram import StepGram
from gradscope.progress import no_notice
from gradscope.rollouts.groups import Rollout, RolloutGroup

VOCAB = 23
ARCHITECTURES = ("llama_untied_biases", "gpt2_tied_conv1d", "qwen3_gqa_norms", "gemma3_scaled")
FULL_AND_LORA = (
    *((name, False) for name in ARCHITECTURES),
    *((name, True) for name in ("gpt2_tied_conv1d", "qwen3_gqa_norms")),
)
"""Every architecture; adapters meet linear layers and Conv1D in two ways, whatever the rest of a model is."""
TYPICAL = (("gpt2_tied_conv1d", False), ("gpt2_tied_conv1d", True), ("gemma3_scaled", False))
"""Models that go every way through what is computed of layers; of all, ``step/test_measure.py`` has the matrix."""
DAPO = Objective(loss_type="dapo")

_TARGETS = {"gpt2_tied_conv1d": ["c_attn", "c_proj"]}


def tiny_model(name: str, *, lora: bool = False, dtype: torch.dtype = torch.float32) -> Any:
    """A two-layer model with perturbed norms and biases; an adapter with B away from zero."""
    model, random_state = _built_model(name, lora, dtype)
    torch.default_generator.set_state(random_state)
    return copy.deepcopy(model)


@cache
def _built_model(name: str, lora: bool, dtype: torch.dtype) -> tuple[Any, torch.Tensor]:
    """The model, and the state of the random numbers that go on after it."""
    torch.default_generator.manual_seed(3)
    model = _build(name).to(dtype)
    if lora:
        targets = _TARGETS.get(name, ["q_proj", "k_proj", "v_proj", "o_proj", "down_proj"])
        config = LoraConfig(r=3, target_modules=targets, fan_in_fan_out=name.startswith("gpt2"), task_type="CAUSAL_LM")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # peft and transformers of different ages deprecate each other's names
            model = get_peft_model(model, config).to(dtype)
    return perturbed(model), torch.default_generator.get_state()


def perturbed(model: Any) -> Any:
    """The model with noise on each parameter, which none then leaves at zero or one."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.15 * torch.randn_like(parameter))
    return model.eval()


def tiny_experts(name: str, *, implementation: str = "grouped_mm", vocab_size: int = VOCAB, positions: int = 32) -> Any:
    """A two-layer mixture of four experts, two of them for each token; only ``eager`` computes in float64."""
    torch.default_generator.manual_seed(5)
    shape = {"vocab_size": vocab_size, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    if name == "mixtral":
        config = transformers.MixtralConfig(
            **shape, intermediate_size=12, num_key_value_heads=1, num_local_experts=4, max_position_embeddings=positions
        )
        model: Any = transformers.MixtralForCausalLM(config)
    else:
        config = transformers.Qwen3MoeConfig(
            **shape,
            intermediate_size=24,
            moe_intermediate_size=12,
            num_key_value_heads=1,
            head_dim=8,
            num_experts=4,
            num_experts_per_tok=2,
            norm_topk_prob=name == "qwen3_moe_normalized",
            max_position_embeddings=positions,
        )
        model = transformers.Qwen3MoeForCausalLM(config)
    model.config._experts_implementation = implementation
    return perturbed(model)


def tiny_policy(name: str, *, lora: bool = False, dtype: torch.dtype = torch.float32) -> MeasuredPolicy:
    return policy_of(tiny_model(name, lora=lora, dtype=dtype), lora=lora)


def policy_of(model: Any, *, lora: bool = False, reference: Any = None) -> MeasuredPolicy:
    trainable = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    first = next(iter(trainable.values()))
    return MeasuredPolicy(
        model=model,
        tokenizer=None,
        trainable=trainable,
        kind="adapter" if lora else "full",
        device=first.device,
        dtype=first.dtype,
        reference=reference,
    )


class ScaledFactor:
    """A factor that adds a share of what another one adds."""

    def __init__(self, factor: Any, share: float) -> None:
        self.factor, self.share = factor, share

    def add_to(self, row: int, start: int, target: torch.Tensor) -> None:
        part = torch.zeros_like(target)
        self.factor.add_to(row, start, part)
        target.add_(part, alpha=self.share)


def break_rule(monkeypatch, name: str, parameter: str, *, share: float = 0.0, below: int | None = None) -> None:
    """Let a layer rule, called by the name of its function, give a share of what a call adds to some parameters.

    Args:
        parameter: Part of the names of the parameters.
        below: Length that a call is shorter than where the rule is wrong; None for every call.
    """

    def wrong(honest):
        def factors(call):
            if below is not None and call.length >= below:
                return honest(call)
            result = honest(call).items()
            return {key: ScaledFactor(part, share) if parameter in key else part for key, part in result}

        return factors

    broken = [replace(r, factors=wrong(r.factors)) if r.factors.__name__ == name else r for r in rules.RULES]
    assert broken != list(rules.RULES), f"there is no rule {name}"
    monkeypatch.setattr(rules, "RULES", tuple(broken))


@contextmanager
def waiting_gradients(policy: MeasuredPolicy) -> Iterator[None]:
    """Gradients of a model in training, which wait for its optimizer and which no measurement may use or change."""
    for parameter in policy.trainable.values():
        parameter.grad = torch.ones_like(parameter)
    yield
    assert all(bool((parameter.grad == 1).all()) for parameter in policy.trainable.values())
    policy.model.zero_grad()


def sequence_of(prompt_ids=(1,), completion_ids=(2, 3), **fields: Any) -> TokenSequence:
    """Tokens of the first rollout of a group, all of which count."""
    defaults = {"group_id": "g", "sample": 0, "mask": (True,) * len(completion_ids), "inferred": False}
    return TokenSequence(prompt_ids=tuple(prompt_ids), completion_ids=tuple(completion_ids), **{**defaults, **fields})


def changed(groups: list[RolloutGroup], **fields: Any) -> list[RolloutGroup]:
    """The groups with fields of every rollout set, to values or by functions of the rollout."""
    return [
        replace(
            group,
            rollouts=tuple(
                replace(rollout, **{name: new(rollout) if callable(new) else new for name, new in fields.items()})
                for rollout in group.rollouts
            ),
        )
        for group in groups
    ]


def prepared(policy, groups, objective, *, batch_tokens=None, notice=no_notice) -> PreparedStep:
    """A step made ready, as a run's steps are."""
    budget = TokenBudget(batch_tokens or first_batch_tokens(policy), fixed=batch_tokens is not None, notice=notice)
    return prepare_step(policy, groups, objective, budget)


def measured_step(
    policy, groups, objective, *, batch_tokens=None, notice=no_notice, row_bytes=2**30, pending_bytes=2**28, **options
) -> StepGram:
    """A step prepared and measured, as a run's steps are, with so much memory."""
    step = prepared(policy, groups, objective, batch_tokens=batch_tokens, notice=notice)
    step.budget.row_bytes, step.budget.pending_bytes = row_bytes, pending_bytes
    return measure_step(step, **options)


def tiny_groups(num_groups: int = 2, size: int = 3, *, seed: int = 0, step: int = 1) -> list[RolloutGroup]:
    """Rollouts of unequal length, with advantages; token 0 (the padding id of the models) occurs among them."""
    rng = np.random.default_rng(seed)
    groups = []
    for number in range(num_groups):
        prompt = tuple(int(i) for i in rng.integers(0, VOCAB, rng.integers(2, 6)))
        rollouts = tuple(
            Rollout(
                group_id=f"g{number}",
                sample=sample,
                row=number * size + sample,
                prompt="",
                completion="",
                prompt_ids=prompt,
                completion_ids=tuple(int(i) for i in rng.integers(0, VOCAB, rng.integers(1, 8))),
                reward=float(rng.integers(0, 2)),
                advantage=float(rng.normal()),
            )
            for sample in range(size)
        )
        groups.append(RolloutGroup(step=step, group_id=f"g{number}", prompt_id=f"p{number}", rollouts=rollouts))
    return groups


def long_prompts(groups: list[RolloutGroup], length: int = 11) -> list[RolloutGroup]:
    """The same rollouts behind longer prompts, one token longer from group to group."""
    rng = np.random.default_rng(7)
    prompts = [tuple(int(i) for i in rng.integers(0, VOCAB, length + number)) for number in range(len(groups))]
    return [changed([group], prompt_ids=prompt)[0] for group, prompt in zip(groups, prompts, strict=True)]


def weight_of(groups: list[RolloutGroup]) -> float:
    """What dapo weighs each token of a step with."""
    return 1.0 / sum(len(rollout.completion_ids) for group in groups for rollout in group.rollouts)


def plain_model(policy: MeasuredPolicy) -> tuple[Any, list[torch.nn.Parameter]]:
    """A float64 copy of a policy's model and of its trainable parameters."""
    model = copy.deepcopy(policy.model).double()
    return model, [parameter for name, parameter in model.named_parameters() if name in policy.trainable]


def plain_logs(model: Any, rollout: Any, temperature: float = 1.0) -> torch.Tensor:
    """Log-probabilities of all tokens where a completion's are predicted, [T, V]; no padding, no code of the engine."""
    logits = model(input_ids=torch.tensor([rollout.prompt_ids + rollout.completion_ids])).logits[0]
    exact = logits[len(rollout.prompt_ids) - 1 : -1].to(next(model.parameters()).dtype)
    return torch.log_softmax(exact / temperature, dim=-1)


def plain_logprobs(model: Any, rollout: Any, temperature: float = 1.0) -> torch.Tensor:
    """Those of the completion's own tokens, [T]."""
    return plain_logs(model, rollout, temperature)[range(len(rollout.completion_ids)), list(rollout.completion_ids)]


def flat_gradient(value: torch.Tensor, parameters: list[torch.nn.Parameter]) -> np.ndarray:
    """The gradient of a number by all parameters, [P]; 0 for those that it does not reach."""
    grads = torch.autograd.grad(value, parameters, retain_graph=True, allow_unused=True, materialize_grads=True)
    return torch.cat([grad.flatten() for grad in grads]).numpy()


def rollouts_of(groups: list[RolloutGroup]) -> list[Rollout]:
    return [rollout for group in groups for rollout in group.rollouts]


def naive_rows(
    policy: MeasuredPolicy, groups: list[RolloutGroup], weight: float, temperature: float = 1.0
) -> np.ndarray:
    """One float64 backward per rollout through the plain model: the oracle."""
    model, parameters = plain_model(policy)
    logprobs = (plain_logprobs(model, rollout, temperature) for rollout in rollouts_of(groups))
    return np.stack([flat_gradient(weight * tokens.sum(), parameters) for tokens in logprobs])


def naive_token_rows(policy: MeasuredPolicy, groups: list[RolloutGroup]) -> np.ndarray:
    """One float64 backward per token through the plain model: the oracle."""
    model, parameters = plain_model(policy)
    logprobs = (plain_logprobs(model, rollout) for rollout in rollouts_of(groups))
    return np.stack([flat_gradient(token, parameters) for tokens in logprobs for token in tokens])


def relative(result: np.ndarray, expected: np.ndarray) -> float:
    return float(np.linalg.norm(result - expected) / np.linalg.norm(expected))


def relative_gram(gram: np.ndarray, rows: np.ndarray) -> float:
    """How far a Gram matrix is from that of its rows."""
    return relative(gram, rows @ rows.T)


def score_error(step: StepGram, policy: MeasuredPolicy, groups: list[RolloutGroup]) -> float:
    """How far a step's score vectors are from one float64 backward a rollout."""
    return relative_gram(step.score_gram, naive_rows(policy, groups, weight_of(groups)))


_SHAPE = {
    "vocab_size": VOCAB,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "max_position_embeddings": 32,
    "pad_token_id": 0,
}
_FEWER_KEYS = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6}


def _build(name: str) -> Any:
    if name == "llama_untied_biases":
        heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "tie_word_embeddings": False}
        return transformers.LlamaForCausalLM(
            transformers.LlamaConfig(**_SHAPE, **heads, attention_bias=True, mlp_bias=True)
        )
    if name == "gpt2_tied_conv1d":
        sizes = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32}
        return transformers.GPT2LMHeadModel(
            transformers.GPT2Config(vocab_size=VOCAB, **sizes, bos_token_id=1, eos_token_id=1)
        )
    if name == "qwen3_gqa_norms":
        return transformers.Qwen3ForCausalLM(
            transformers.Qwen3Config(**_SHAPE, **_FEWER_KEYS, tie_word_embeddings=True)
        )
    return transformers.Gemma3ForCausalLM(transformers.Gemma3TextConfig(**_SHAPE, **_FEWER_KEYS, sliding_window=8))


def write_tokenizer(folder: Path, size: int) -> None:
    """A tokenizer of the words w0, w1, and so on; w1 ends a text."""
    words = {f"w{i}": i for i in range(size)}
    core = Tokenizer(models.WordLevel(words, unk_token="w0"))
    transformers.PreTrainedTokenizerFast(tokenizer_object=core, unk_token="w0", eos_token="w1").save_pretrained(folder)
