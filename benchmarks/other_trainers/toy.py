"""What the made-up trainers share: a tiny model, what it sampled, log-probabilities by plain PyTorch, and an update.

Nothing here is the package's. A trainer gives the loss as a sum of two parts a rollout, of which no advantage reaches
the second, so that the same formula makes the update in float32 and the truth in float64.

Shapes: R rollouts of an update, T tokens of a completion.
"""

import copy
import warnings
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from msgspec import Struct, field
from peft import LoraConfig, get_peft_model
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.oracle import gradient_row, padded

VOCAB = 29
PAD = 0
MICRO_BATCH = 5  # does not divide the 12 rollouts of a step


def declared(trainer: str) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """A trainer's cases and its defaults, by cases.yaml."""
    document = yaml.safe_load(Path(__file__).with_name("cases.yaml").read_text(encoding="utf-8"))[trainer]
    return document["cases"], document["defaults"]


class Sample(Struct, kw_only=True):
    """One rollout."""

    group: int
    prompt: list[int]
    completion: list[int]
    mask: list[int]  # 1 where the model wrote the token, [T]
    reward: float
    advantage: float = 0.0
    sampler: Tensor = field(default_factory=lambda: torch.zeros(0))  # log-probabilities of the engine that sampled, [T]
    old: Tensor = field(default_factory=lambda: torch.zeros(0))  # those of the trainer before the step, [T]
    reference: Tensor = field(default_factory=lambda: torch.zeros(0))  # those of the first weights, [T]

    @property
    def num_counted(self) -> int:
        """Tokens in the loss."""
        return sum(self.mask)

    @property
    def counted(self) -> Tensor:
        """The mask as numbers, [T]."""
        return torch.tensor(self.mask, dtype=torch.float64)


class Truth(Struct, frozen=True, kw_only=True):
    """What one update must give."""

    norm: float  # as the trainer computed it, in float32 by micro-batches
    exact: float  # the same by one float64 backward pass a rollout
    spectra: list[np.ndarray]  # singular values of the reward rows of each group


def first_model() -> LlamaForCausalLM:
    """Two layers, in float32; norms are away from one."""
    torch.manual_seed(5)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=24,
        intermediate_size=40,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        pad_token_id=None,
        bos_token_id=1,
        eos_token_id=2,
    )
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.15 * torch.randn_like(parameter))
    return model.train()


def draw(step: int, *, turns: bool) -> list[Sample]:
    """Three groups of four rollouts of unequal length; of several turns, a tool wrote some tokens in the middle."""
    rng = np.random.default_rng(100 + step)
    samples = []
    for group in range(3):
        prompt = rng.integers(3, VOCAB, rng.integers(3, 9)).tolist()
        for reward in rng.permutation([1.0, 1.0, 0.0, 0.0]):
            completion = rng.integers(3, VOCAB, rng.integers(4, 13)).tolist()
            mask = [1] * len(completion)
            if turns and len(completion) > 6:
                mask[2:5] = [0, 0, 0]
            samples.append(Sample(group=group, prompt=prompt, completion=completion, mask=mask, reward=float(reward)))
    return samples


def by_group(samples: Sequence[Sample]) -> list[list[Sample]]:
    """The rollouts of each group."""
    return [list(members) for _, members in groupby(samples, key=lambda sample: sample.group)]


def logprobs(model: Any, samples: Sequence[Sample], temperature: float = 1.0) -> tuple[list[Tensor], list[Tensor]]:
    """Log-probabilities and entropies of completions, [R][T] each: prompts padded on the left, positions given."""
    ids, seen, width = padded(samples, PAD)
    positions = (seen.cumsum(1) - 1).clamp(min=0)
    logits = model(input_ids=ids, attention_mask=seen, position_ids=positions).logits / temperature
    everything = torch.log_softmax(logits, -1)
    chosen = everything[:, :-1].gather(-1, ids[:, 1:, None])[..., 0]
    entropy = -(everything.exp() * everything).sum(-1)[:, :-1]
    spans = [slice(width - 1, width - 1 + len(sample.completion)) for sample in samples]
    return [chosen[i, span] for i, span in enumerate(spans)], [entropy[i, span] for i, span in enumerate(spans)]


def sampled_steps(folder: Path, case: dict[str, Any], temperature: float) -> Iterator[tuple[int, Any, list[Sample]]]:
    """The model and what it sampled before each of two updates; its first weights are saved in ``initial``.

    The sampler's log-probabilities are the trainer's own with noise.
    """
    first = first_model()
    model = with_adapter(copy.deepcopy(first), folder / "base") if case.get("lora") else copy.deepcopy(first)
    model.save_pretrained(folder / "initial")
    for step in (1, 2):
        samples = draw(step, turns=bool(case.get("turns")))
        rng, noise = torch.Generator().manual_seed(11), float(case.get("noise", 0.05))
        with torch.no_grad():
            own, reference = (logprobs(each, samples, temperature)[0] for each in (model, first))
        for sample, old, ref in zip(samples, own, reference, strict=True):
            sample.old, sample.reference = old, ref
            sample.sampler = old + noise * torch.randn(old.shape, generator=rng)
        yield step, model, samples


Parts = Callable[[Sample, Tensor, Tensor], tuple[Tensor, Tensor]]
"""From a rollout, its log-probabilities and entropies to its part of the loss by its reward, and the rest."""


def _parts_of(model: Any, samples: Sequence[Sample], parts: Parts, temperature: float) -> list[tuple[Tensor, Tensor]]:
    return list(map(parts, samples, *logprobs(model, samples, temperature)))


def update(model: Any, samples: Sequence[Sample], parts: Parts, temperature: float, *, half: bool = False) -> Truth:
    """One optimizer update: micro-batches, the norm before clipping, and a step of plain gradient descent.

    In half precision weights are cast to bfloat16 for each pass and gradients are added in float32.

    Returns:
        What must be found.
    """
    exact, spectra = _truth(model, samples, parts, temperature)
    model.zero_grad()
    for start in range(0, len(samples), MICRO_BATCH):
        chunk = samples[start : start + MICRO_BATCH]
        rewards, rest = zip(*_parts_of(_Cast(model) if half else model, chunk, parts, temperature), strict=True)
        sum(rewards + rest).backward()
    norm = float(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05))
    with torch.no_grad():
        for parameter in _trained(model):
            parameter.sub_(0.5 * parameter.grad)
    return Truth(norm=norm, exact=exact, spectra=spectra)


class _Cast:
    """A model whose weights are cast for each call."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def __call__(self, **inputs: Any) -> Any:
        cast = {name: parameter.bfloat16() for name, parameter in self.model.named_parameters()}
        output = torch.func.functional_call(self.model, cast, (), inputs)
        output.logits = output.logits.float()
        return output


def _trained(model: Any) -> list[Any]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def with_adapter(base: Any, folder: Path) -> Any:
    """A fresh adapter on a model that is saved in a folder."""
    base.save_pretrained(folder)
    torch.manual_seed(7)
    base.name_or_path = str(folder)
    config = LoraConfig(r=3, lora_alpha=6, target_modules=["q_proj", "v_proj", "down_proj"], task_type="CAUSAL_LM")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # peft and transformers of different ages deprecate each other's names
        return get_peft_model(base, config).train()


def _truth(model: Any, samples: Sequence[Sample], parts: Parts, temperature: float) -> tuple[float, list[np.ndarray]]:
    exact = copy.deepcopy(model).double()
    parameters = _trained(exact)
    total, spectra = torch.zeros(sum(parameter.numel() for parameter in parameters), dtype=torch.float64), []
    for group in by_group(samples):
        rows = []
        for sample in group:
            ((reward, rest),) = _parts_of(exact, [sample], parts, temperature)
            rows.append(gradient_row(reward, parameters))
            total += rows[-1] + gradient_row(rest, parameters)
        spectra.append(torch.linalg.svdvals(torch.stack(rows)).numpy())
    return float(total.norm()), spectra
