"""One float64 backward pass a rollout, from the folders of a run: no code of gradscope.

Rows are laid out as TRL lays them out: prompts padded on the left to the longest of the generation batch, completions
on the right, an attention mask, no positions.
"""

import contextlib
import copy
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import torch
from msgspec import Struct

from benchmarks.oracle import Sampled, gradient_row, padded
from benchmarks.strangers.case import Case, Folders

Tensor = Any  # torch.Tensor, whose methods are not typed


class Terms(Struct, frozen=True, kw_only=True):
    """TRL's loss as the sum of one term a rollout, from its formulas; what all rollouts of an update share.

    Shapes: R rollouts of an update, T tokens of a completion.
    """

    arguments: Mapping[str, Any]  # ``GRPOConfig.to_dict()``
    masks: Sequence[Tensor]  # which tokens are in the loss, [R][T]
    chosen: Sequence[Tensor]  # which tokens are kept for their entropy, [R][T]

    def average(self, values: Tensor, place: int) -> Tensor:
        """The share of one rollout's token terms in the update's loss."""
        kind, mask = self.arguments["loss_type"], self.masks[place]
        total = (values * mask).sum()
        num_rollouts, num_tokens = len(self.masks), max(float(sum(mask.sum() for mask in self.masks)), 1.0)
        if kind in ("grpo", "sapo"):
            return total / mask.sum().clamp(min=1.0) / num_rollouts
        if kind == "dr_grpo":
            return total / (num_rollouts * self.arguments["max_completion_length"])
        return total / (num_rollouts if kind == "luspo" else num_tokens)

    def log_weight(self, log_ratio: Tensor, place: int) -> Tensor:
        """The log of the importance ratio, one a token or one a completion."""
        if self.arguments["importance_sampling_level"] == "token":
            return log_ratio
        mask = self.masks[place]
        return ((log_ratio * mask).sum() / mask.sum().clamp(min=1.0)).reshape(1)

    def policy(self, logps: Tensor, old: Tensor | None, advantage: float, place: int) -> Tensor:
        """The part of one rollout's loss that comes of its reward."""
        mask = self.masks[place]
        old = logps.detach() if old is None else old
        values = self._surrogate(logps, logps - old, advantage, place)
        threshold = self.arguments["off_policy_mask_threshold"]
        if threshold is not None and advantage < 0:
            drift = ((old - logps.detach()) * mask).sum() / mask.sum().clamp(min=1.0)
            values = values * float(drift <= threshold)
        return self.average(values * self.chosen[place], place)

    def _surrogate(self, logps: Tensor, log_ratio: Tensor, advantage: float, place: int) -> Tensor:
        arguments, kind = self.arguments, self.arguments["loss_type"]
        ratio = torch.exp(self.log_weight(log_ratio, place))
        high = arguments["epsilon"] if arguments["epsilon_high"] is None else arguments["epsilon_high"]
        if kind == "cispo":
            return -ratio.clamp(max=high).detach() * advantage * logps
        if kind == "sapo":
            heat = arguments["sapo_temperature_pos"] if advantage > 0 else arguments["sapo_temperature_neg"]
            return -torch.sigmoid(heat * (ratio - 1)) * 4 / heat * advantage
        if kind == "vespo":
            return -self._gamma(log_ratio.detach(), advantage, place) * advantage * logps
        bounded = ratio.clamp(1 - arguments["epsilon"], 1 + high)
        free = ratio if arguments["delta"] is None else ratio.clamp(max=arguments["delta"])
        return -torch.minimum(free * advantage, bounded * advantage)

    def _gamma(self, log_ratio: Tensor, advantage: float, place: int) -> Tensor:
        side = "pos" if advantage >= 0 else "neg"
        power, rate = self.arguments[f"vespo_k_{side}"], max(self.arguments[f"vespo_lambda_{side}"], 1e-4)
        log_w = (log_ratio.clamp(-20, 20) * self.masks[place]).sum().clamp(-18.420680743952367, 20)
        return torch.exp(rate + power * log_w - rate * torch.exp(log_w))

    def divergence(self, logps: Tensor, old: Tensor | None, reference: Tensor, place: int) -> Tensor:
        """The part of one rollout's loss that holds it to the reference."""
        gap = reference - logps
        values = torch.exp(gap) - gap - 1
        if self.arguments["use_bias_correction_kl"]:
            values = values * torch.exp(self.log_weight(logps - (logps.detach() if old is None else old), place))
        return self.arguments["beta"] * self.average(values, place)

    def bonus(self, entropy: Tensor, place: int) -> Tensor:
        """The part of one rollout's loss that rewards entropy, where all rollouts are one micro-batch."""
        kept = [mask * chosen for mask, chosen in zip(self.masks, self.chosen, strict=True)]
        number = max(float(sum(mask.sum() for mask in kept)), 1.0)
        return -float(self.arguments.get("entropy_coef", 0.0)) * (entropy * kept[place]).sum() / number


class OracleStep(Struct, frozen=True, kw_only=True):
    """What autograd says of one update."""

    norm: float  # norm of the whole gradient
    spectra: tuple[np.ndarray, ...]  # singular values of each group's rows, groups in the order of the log


class Batch(Struct, frozen=True, kw_only=True):
    """The rollouts of one update as the trainer padded them."""

    ids: Tensor  # [R, P + C]
    attention: Tensor  # [R, P + C]
    num_prompt: int  # P
    masks: tuple[Tensor, ...]  # which of the C padded tokens are in the loss, [R][C]
    advantages: tuple[float, ...]  # [R]


class Oracle:
    """Autograd on one run."""

    def __init__(self, case: Case, folders: Folders) -> None:
        self.case, self.folders, self.dtype = case, folders, torch.float64
        self.truth: dict[str, Any] = json.loads(folders.truth.read_text())
        self.arguments: Mapping[str, Any] = self.truth["arguments"]
        self.logged: dict[int, float] = {}
        for state in folders.run.glob("checkpoint-*/trainer_state.json"):
            with contextlib.suppress(json.JSONDecodeError):
                history = json.loads(state.read_text())["log_history"]
                self.logged |= {entry["step"]: entry["grad_norm"] for entry in history if "grad_norm" in entry}

    def step(self, number: int) -> OracleStep:
        """Gradient norm and singular values of one update; in float32 where the model's own code fails in float64."""
        with contextlib.suppress(RuntimeError):  # masks of float32 in some models: overflows, or rows of NaN
            found = self._step(number)
            if np.isfinite(found.norm):
                return found
        self.dtype = torch.float32
        return self._step(number)

    def _step(self, number: int) -> OracleStep:
        batch = self.batch(number)
        model = self.weights(number - 1)
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        entropies = [self.forward(model, batch, row)[1].detach() for row in range(len(batch.masks))]
        terms = Terms(arguments=self.arguments, masks=batch.masks, chosen=self._chosen(entropies, batch.masks))
        old, reference = self._old(number, batch), self._reference(number, batch)
        rows, rest = [], self._router(model, batch, parameters)
        for row, advantage in enumerate(batch.advantages):
            logps, entropy = self.forward(model, batch, row)
            rows.append(gradient_row(terms.policy(logps, old[row] if old else None, advantage, row), parameters))
            others = [terms.bonus(entropy, row)] if self.arguments.get("entropy_coef", 0.0) else []
            if reference:
                others.append(terms.divergence(logps, old[row] if old else None, reference[row], row))
            rest = rest + sum(gradient_row(other, parameters) for other in others)
        size, whole = int(self.arguments["num_generations"]), torch.stack(rows)
        spectra = tuple(torch.linalg.svdvals(group).numpy() for group in whole.split(size))
        return OracleStep(norm=float((whole.sum(0) + rest).norm()), spectra=spectra)

    def forward(self, model: Any, batch: Batch, row: int) -> tuple[Tensor, Tensor]:
        """Log-probabilities and entropies of one rollout's completion, [C] each."""
        output = model(input_ids=batch.ids[row : row + 1], attention_mask=batch.attention[row : row + 1])
        logits = output.logits[0, batch.num_prompt - 1 : -1].double() / self.arguments["temperature"]
        all_logps = torch.log_softmax(logits, dim=-1)
        chosen = all_logps.gather(-1, batch.ids[row, batch.num_prompt :, None])[:, 0]
        return chosen, -(all_logps.exp() * all_logps).sum(-1)

    def batch(self, number: int) -> Batch:
        """The rollouts of a step as the log tells them and the trainer padded them."""
        table = pd.read_parquet(self.folders.completions(number))
        completions = [tuple(map(int, ids)) for ids in table["completion_ids"]]
        pairs = zip(self._prompt_ids(table), completions, strict=True)
        rollouts = [Sampled(prompt=prompt, completion=completion) for prompt, completion in pairs]
        ids, attention, num_prompt = padded(rollouts, 0, self.arguments["pad_to_multiple_of"] or 1)
        if self.arguments["mask_truncated_completions"]:
            for row, completion in zip(attention, completions, strict=True):
                row[num_prompt:] *= int(completion[-1] in self.truth["ends"])
        masks = attention[:, num_prompt:].double()
        if "completion_mask" in table:
            for row, mask in zip(masks, table["completion_mask"], strict=True):
                row[: len(mask)] *= torch.tensor(list(map(float, mask)))
        advantages = tuple(map(float, table["advantage"]))
        return Batch(ids=ids, attention=attention, num_prompt=num_prompt, masks=tuple(masks), advantages=advantages)

    def _prompt_ids(self, table: Any) -> list[tuple[int, ...]]:
        """Logged, or made of the text by the tokenizer that the run saved."""
        from transformers import PreTrainedTokenizerFast

        if "prompt_ids" in table:
            return [tuple(map(int, ids)) for ids in table["prompt_ids"]]
        # the class that the script used: AutoTokenizer goes by the model's type where a model lies beside it
        tokenizer = PreTrainedTokenizerFast.from_pretrained(
            next(self.folders.run.glob("checkpoint-*/tokenizer.json")).parent
        )
        if isinstance(table["prompt"][0], str):
            return [tuple(tokenizer(text)["input_ids"]) for text in table["prompt"]]
        talks = [[{"role": turn["role"], "content": turn["content"]} for turn in talk] for talk in table["prompt"]]
        more = self.arguments["chat_template_kwargs"] or {}
        rendered = tokenizer.apply_chat_template(talks, add_generation_prompt=True, return_dict=True, **more)
        return [tuple(ids) for ids in rendered["input_ids"]]

    def weights(self, num_updates: int) -> Any:
        """The policy after so many updates, as the trainer had made it."""
        from peft import PeftModel
        from transformers import AutoModelForCausalLM

        first = self.folders.initial if self.is_adapter else self.folders.base
        path = self.folders.checkpoint(num_updates) if num_updates else first
        base = self.folders.base if self.is_adapter else path
        model: Any = AutoModelForCausalLM.from_pretrained(base, dtype=getattr(torch, self.case.dtype))
        if hasattr(model.config, "num_experts") or hasattr(model.config, "num_local_experts"):
            model.set_experts_implementation("eager")
        if self.is_adapter:
            model = PeftModel.from_pretrained(model, path, is_trainable=True)
        model = model.to(self.dtype).eval()
        for name, module in model.named_modules():
            if isinstance(module, torch.nn.Embedding):
                module.padding_idx = self.truth["padding"].get(name)
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name in self.truth["trained"])
        return model

    @property
    def is_adapter(self) -> bool:
        """Whether the trainer saved adapters."""
        return bool(list(self.folders.run.glob("checkpoint-*/adapter_config.json")))

    def _logps(self, model: Any, batch: Batch) -> list[Tensor]:
        with torch.no_grad():
            return [self.forward(model, batch, row)[0] for row in range(len(batch.masks))]

    def _old(self, number: int, batch: Batch) -> list[Tensor] | None:
        """What the rollouts were sampled with, where a batch is used for several updates."""
        uses = int(self.arguments["num_iterations"])
        sampled = (number - 1) // uses * uses
        return self._logps(self.weights(sampled), batch) if uses > 1 else None

    def _reference(self, number: int, batch: Batch) -> list[Tensor] | None:
        if not self.arguments["beta"]:
            return None
        if self.is_adapter and self.case.peft is not None:
            model = self.weights(0)
            with model.disable_adapter():
                return self._logps(model, batch)
        return self._logps(self._synced(number), batch)

    def _synced(self, number: int) -> Any:
        """The reference at a step: the first weights, mixed with later ones every so often."""
        model, share = self.weights(0), self.arguments["ref_model_mixup_alpha"]
        every = self.arguments["ref_model_sync_steps"] if self.arguments["sync_ref_model"] else number
        for done in range(every, number, every):
            later = dict(self.weights(done).named_parameters())
            for name, parameter in model.named_parameters():
                parameter.data.mul_(1 - share).add_(later[name].data, alpha=share)
        return model

    def _chosen(self, entropies: Sequence[Tensor], masks: Sequence[Tensor]) -> list[Tensor]:
        """Tokens of high entropy, where all rollouts are one micro-batch."""
        share = self.arguments["top_entropy_quantile"]
        if share >= 1:
            return [torch.ones_like(mask) for mask in masks]
        counted = torch.cat([entropy[mask.bool()] for entropy, mask in zip(entropies, masks, strict=True)])
        threshold = torch.quantile(counted, 1 - share)
        return [((entropy * mask) >= threshold).double() for entropy, mask in zip(entropies, masks, strict=True)]

    def _router(self, model: Any, batch: Batch, parameters: Sequence[Tensor]) -> Tensor | float:
        """Gradient of the load-balancing term, where all rollouts are one micro-batch."""
        coefficient = self.truth["router_coefficient"]
        if not coefficient:
            return 0.0
        output = model(input_ids=batch.ids, attention_mask=batch.attention, output_router_logits=True)
        return gradient_row(coefficient * output.aux_loss.double(), parameters)


def autocast_spread(oracle: Oracle, number: int) -> float:
    """How far bfloat16 moves the norm of an update: its rows in several orders and batches, each beside float64.

    The order alone moves it by 1e-4; the arithmetic of TRL's own LM head is a third way of rounding.

    Returns:
        The largest relative distance.
    """
    batch, case = oracle.batch(number), oracle.case
    model = copy.deepcopy(oracle.weights(number - 1)).to(getattr(torch, case.dtype))
    norms = []
    for seed in range(4):
        order = torch.randperm(len(batch.masks), generator=torch.Generator().manual_seed(seed)).tolist()
        norms.append(_autocast_norm(oracle, model, batch, order, 4 if seed % 2 else len(order)))
    exact = oracle.step(number).norm
    return max(abs(norm - exact) for norm in norms) / exact


def _autocast_norm(oracle: Oracle, model: Any, batch: Batch, order: Sequence[int], size: int) -> float:
    """The norm of one update without a KL term, in the precision and the batches of a trainer."""
    terms = Terms(arguments=oracle.arguments, masks=batch.masks, chosen=[torch.ones_like(m) for m in batch.masks])
    model.zero_grad()
    for first in range(0, len(order), size):
        part = order[first : first + size]
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bool(oracle.arguments["bf16"])):
            logits = model(input_ids=batch.ids[part], attention_mask=batch.attention[part]).logits
        logps = torch.log_softmax(logits[:, batch.num_prompt - 1 : -1].float(), -1)
        taken = logps.gather(-1, batch.ids[part, batch.num_prompt :, None])[..., 0]
        parts = [terms.policy(taken[i], None, batch.advantages[row], row) for i, row in enumerate(part)]
        torch.stack(parts).sum().backward()  # type: ignore[no-untyped-call]
    grads = [parameter.grad.double().norm() for parameter in model.parameters() if parameter.grad is not None]
    return float(torch.stack(grads).norm())
