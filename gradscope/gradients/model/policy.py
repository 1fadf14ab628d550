"""The policy whose gradients are measured: its weights, its tokenizer, its reference, and notes from loading them.

Shapes: T tokens of a completion.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch
from msgspec import Struct
from torch import nn
from torch.overrides import TorchFunctionMode

from gradscope.errors import InputError, UsageError
from gradscope.gradients.model import checkpoint
from gradscope.gradients.model.batches import TokenSequence, TrainerPadding
from gradscope.gradients.model.calls import call_on
from gradscope.gradients.model.checked import load_tokenizer, loading_errors
from gradscope.gradients.model.sharding import own_device
from gradscope.outside.limits import ending
from gradscope.rollouts.groups import Rollout, RolloutGroup
from gradscope.rollouts.run import WeightsRef

# Tables that a model looks up: its tokens, under PEFT's wrappers of their embedding, and its positions, if any.
#
# A model with rotary positions runs, and trains, beyond the ``max_position_embeddings`` of its configuration.
_PROBE = 3  # tokens enough to recognize ascending ids
_NAME_IT = "Name the tokenizer that the run was sampled with, by --model."
_INSIDE = ("base_layer", "original_module")  # attributes of PEFT's wrappers that hold the wrapped module


def token_embedding(model: Any) -> nn.Embedding:
    """The token embedding itself: the only module that knows of a padding row."""
    module = model.get_input_embeddings()
    while not isinstance(module, nn.Embedding):
        inner = next((getattr(module, name) for name in _INSIDE if hasattr(module, name)), None)
        if inner is None:
            break
        module = inner
    return module  # type: ignore[no-any-return]


def padding_row(model: Any) -> int | None:
    """The token whose embedding gets no gradient from being read; None where every token's does."""
    return getattr(token_embedding(model), "padding_idx", None)


def declared_ends(model: Any) -> frozenset[int]:
    """The tokens that end a completion by the model's own settings of generation."""
    declared = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    return frozenset(declared if isinstance(declared, list) else () if declared is None else (declared,))


def _built_for(model: Any) -> int | None:
    """The longest sequence that the configuration names; None where it names none."""
    limit = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return int(limit) if limit is not None and limit > 0 else None


def _longest_sequence(model: Any) -> int | None:
    """Tokens that the tables of positions hold; None where nothing is looked up by position."""
    # The model is given one token several times: a table that is asked for ascending ids is asked for positions.
    with _Lookups(model) as lookups:
        # one token several times, which is not the padding token: some models do not count that
        token = 1 if getattr(model.config.get_text_config(), "pad_token_id", None) == 0 else 0
        with torch.no_grad():
            call_on(model, torch.full((1, _PROBE), token, device=model.get_input_embeddings().weight.device))
    limits = [rows - ids[0] for rows, ids in lookups.seen if ids == list(range(ids[0], ids[0] + _PROBE))]
    size = _built_for(model)
    if size is not None and any(size in buffer.shape for buffer in model.buffers()):
        limits.append(size)  # sines, or a causal mask, for as many positions and no more
    return min(limits, default=None)


class _Lookups(TorchFunctionMode):
    """Notes every tensor of a model that is looked up and the ids that it is asked for, whatever module does it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self._own = {id(tensor) for tensor in (*model.parameters(), *model.buffers())}
        self.seen: list[tuple[int, list[int]]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (nn.functional.embedding, torch.Tensor.__getitem__):
            table, ids = args[:2] if func is torch.Tensor.__getitem__ else args[1::-1]
            if id(table) in self._own and isinstance(ids, torch.Tensor) and ids.numel() == _PROBE:
                self.seen.append((len(table), ids.flatten().tolist()))
        return func(*args, **(kwargs or {}))


_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "float64": torch.float64}


class MeasuredPolicy(Struct, frozen=True, kw_only=True):
    """A model with the parameters that the trainer trained."""

    model: Any  # the model in evaluation mode, with its adapter where it has one
    tokenizer: Any  # None where there is none
    trainable: Mapping[str, nn.Parameter]
    """Name -> parameter: everything for a full model, else the adapter's; tied parameters once."""
    kind: Literal["full", "adapter"]  # what was trained
    device: torch.device
    dtype: torch.dtype
    """The coarsest dtype of its weights: PEFT keeps an adapter in float32 on a base in half precision."""
    reference: Any = None
    """The reference model of the KL term; None where that is the base under an adapter, or is not known."""
    padding: TrainerPadding | None = None
    """How the trainer padded its rows; None where it gave the model each token's own position."""
    padding_rows: tuple[int | None, ...] = ()
    """Tokens whose embedding may have got no gradient from being read, the likeliest first; None: none. TRL writes the
    tokenizer's padding token into the configuration of a model that is built already."""
    in_float32: Callable[[], MeasuredPolicy] | None = None
    """Loads the same numbers again in float32; None where the policy was not loaded."""

    @property
    def num_parameters(self) -> int:
        """Number of trainable parameters, P."""
        return sum(parameter.numel() for parameter in self.trainable.values())

    @property
    def vocab_size(self) -> int:
        """Number of token ids that both the model and its reference can read."""
        models = self.model, self.reference
        return min(len(token_embedding(model).weight) for model in models if model is not None)

    @contextmanager
    def as_reference(self) -> Iterator[Any]:
        """The reference policy of the KL term: the weights before the first update; of a fresh adapter its base.

        Raises:
            InputError: The weights before the first update were not given.
        """
        if self.reference is not None:
            yield self.reference
            return
        if self.kind == "adapter":
            with self.model.disable_adapter():
                yield self.model
            return
        raise InputError(
            "The loss has a KL term, and the weights before the first update, its reference, are not known.",
            hint="Give them with --initial PATH.",
        )


class TrainedDtypes(Struct, frozen=True, kw_only=True):
    """The dtypes that a trainer had weights in."""

    weights: checkpoint.FloatName = "float32"  # of all of them
    float32_head: bool = False
    """Whether a model's output layer was in float32 all the same (TRL's ``cast_lm_head_to_fp32``)."""


FLOAT32 = TrainedDtypes()


def load_measured_policy(
    weights: WeightsRef,
    *,
    device: str = "auto",
    dtype: str = "auto",
    tokenizer: Path | None = None,
    reference: Sequence[tuple[WeightsRef, float]] = (),
    first: WeightsRef | None = None,
    padding: TrainerPadding | None = None,
    trained: TrainedDtypes = FLOAT32,
) -> MeasuredPolicy:
    """Load a set of weights for gradient computations, in evaluation mode; safetensors only, no code is run.

    Args:
        weights: The model or adapter.
        device: ``cpu``, ``cuda``, or ``auto``: CUDA where there is one.
        dtype: ``float32``, ``bfloat16``, ``float16``, ``float64``, or ``auto``: float32 on the CPU, on CUDA what is
            stored.
        tokenizer: A folder with the tokenizer; by default the weights' own folder, then the base model's.
        reference: The weights that the reference of the KL term is mixed from, in order, each with its share of what is
            mixed so far; empty: there is none, or it is the base under the adapter. The first are those before the
            first update. A fresh adapter changes nothing, so its base serves; a run that went on from a trained adapter
            has that adapter as its reference.
        padding: How the trainer padded its rows; None: it gave the model each token's own position.
        trained: The dtypes that the trainer had its weights in; weights of another are rounded to them first.
        first: The weights before the first update, where they are known. Where an architecture leaves the padding
            token's embedding without a gradient, a model's configuration names that token; a checkpoint's names the
            tokenizer's, which TRL writes after loading. For an adapter's see :func:`checkpoint.load_adapter`.
    """
    target_device = _device(device)
    load_dtype = _dtype(dtype, target_device)
    candidates: tuple[int | None, ...] = ()
    folders = [folder for folder in (tokenizer, weights.path, Path(weights.base) if weights.base else None) if folder]
    tokenizes = load_tokenizer(folders)
    if weights.kind == "adapter":
        model = checkpoint.load_adapter(weights, load_dtype, first.path if first is not None else None)
    else:
        model = checkpoint.load_model(weights.path, load_dtype)
        if weights.kept_from is not None:
            checkpoint.keep_unread(model, weights)
        model.requires_grad_(True)
        built = padding_row(model)
        if built is not None and first is not None and first.kind == "full":
            token_embedding(model).padding_idx = checkpoint.padding_id(first.path)
        special = getattr(tokenizes, "all_special_ids", ())
        candidates = tuple(dict.fromkeys([padding_row(model), built, None, *_other_padding(model, built, special)]))
    model = _as_trained(model, weights, target_device, trained)
    trainable = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    loaded = {name: parameter.dtype for name, parameter in model.named_parameters()}

    def in_float32() -> MeasuredPolicy:
        policy = load_measured_policy(weights, device=device, dtype="float32", first=first)
        with torch.no_grad():
            for name, parameter in policy.model.named_parameters():
                parameter.copy_(parameter.to(loaded[name]))
        return policy

    return MeasuredPolicy(
        model=model,
        tokenizer=tokenizes,
        trainable=trainable,
        kind=weights.kind,
        device=target_device,
        dtype=coarsest_dtype(model),
        reference=_reference(reference, load_dtype, target_device, trained) if reference else None,
        padding=padding,
        padding_rows=candidates,
        in_float32=in_float32,
    )


def coarsest_dtype(model: nn.Module) -> torch.dtype:
    """The coarsest dtype of a model's parameters, which bounds the precision of its gradients."""
    dtypes = {parameter.dtype for parameter in model.parameters() if parameter.is_floating_point()}
    return max(dtypes, key=lambda dtype: torch.finfo(dtype).eps)


def _as_trained(model: Any, weights: WeightsRef, device: torch.device, trained: TrainedDtypes) -> Any:
    """A model on its device, in evaluation mode, its weights rounded to a dtype; of an adapter's, only the base's."""
    checkpoint.require_finite(model, str(weights.path))
    with torch.no_grad():
        for parameter in model.parameters() if trained.weights != "float32" else ():
            if weights.kind == "full" or not parameter.requires_grad:
                parameter.copy_(parameter.to(_DTYPES[trained.weights]))
    if trained.float32_head and weights.kind == "full" and trained.weights != "float32":
        head, embedding = model.get_output_embeddings(), token_embedding(model)
        coarse = next(head.parameters()).dtype
        saved = checkpoint.load_model(weights.path, torch.float32).get_output_embeddings()
        with torch.no_grad():
            for parameter, exact in zip(head.float().parameters(), saved.parameters(), strict=True):
                parameter.copy_(exact)
        head.register_forward_pre_hook(lambda _, inputs: (inputs[0].float(), *inputs[1:]))
        if embedding.weight is head.weight:  # an embedding that shares them gives what it gave
            embedding.register_forward_hook(lambda _, inputs, output: output.to(coarse))
    return model.to(device).eval()


def _other_padding(model: Any, built: int | None, special: Sequence[int]) -> list[int]:
    """Tokens that the model that was trained may have had for padding, where its embedding has such a row at all.

    A model keeps the row that its own configuration or its architecture names, whatever token TRL writes into every
    folder that is saved afterwards: the first of all, or one of the tokenizer's ``special`` ones.
    """
    default = getattr(type(model.config.get_text_config())(), "pad_token_id", None)
    number = 0 if built is None else len(token_embedding(model).weight)
    return [token for token in (default, 0, *special) if isinstance(token, int) and 0 <= token < number]


def _device(name: str) -> torch.device:
    if name == "auto":
        return own_device("cuda" if torch.cuda.is_available() else "cpu")
    if name not in ("cpu", "cuda"):
        raise UsageError(f"There is no device {name!r}.", hint="Use auto, cpu or cuda.")
    if name == "cuda" and not torch.cuda.is_available():
        raise UsageError("PyTorch sees no CUDA device.", hint="Use --device cpu.")
    return own_device(name)


def _dtype(name: str, device: torch.device) -> torch.dtype | None:
    """The dtype to load in; None means the checkpoint's own."""
    if name == "auto":
        return torch.float32 if device.type == "cpu" else None
    if name not in _DTYPES:
        raise UsageError(f"There is no dtype {name!r}.", hint="Use auto, float32, bfloat16 or float16.")
    return _DTYPES[name]


def _reference(
    mixed: Sequence[tuple[WeightsRef, float]], dtype: torch.dtype | None, device: torch.device, trained: TrainedDtypes
) -> Any:
    """The weights before the first update with later mixtures; None for an adapter that changes nothing yet."""
    (initial, _), *later = mixed
    if initial.kind == "adapter":
        if checkpoint.is_fresh(initial.path):
            return None
        model = checkpoint.load_adapter(initial, dtype, initial.path)
    else:
        model = checkpoint.load_model(initial.path, dtype)
        for weights, share in later:
            later_values = dict(checkpoint.load_model(weights.path, dtype).named_parameters())
            parameters = dict(model.named_parameters())
            if {name: p.shape for name, p in parameters.items()} != {name: p.shape for name, p in later_values.items()}:
                raise InputError(
                    f"{initial.path} is another model than {weights.path}, and the KL reference is mixed from both.",
                    hint="Pass the weights before the first update of this run with --initial.",
                    cause="reference_missing",
                )
            with torch.no_grad():  # as TRL's callback does
                for name, parameter in parameters.items():
                    parameter.mul_(1.0 - share).add_(later_values[name], alpha=share)
    return _as_trained(model, initial, device, trained).requires_grad_(False)


def token_sequences(
    policy: MeasuredPolicy,
    groups: Sequence[RolloutGroup],
    *,
    max_completion_length: int | None = None,
    chat_template_kwargs: Mapping[str, Any] | None = None,
) -> tuple[TokenSequence, ...]:
    """The rollouts of some groups as token ids that fit the model, in order.

    Text is tokenized as TRL does: a plain prompt with the tokenizer's special tokens, a conversation through the chat
    template with a generation prompt, a completion without special tokens and with the end-of-sequence token where it
    is shorter than ``max_completion_length``. Where ``max_completion_length`` is not known, every re-tokenized
    completion counts as ended.

    Raises:
        InputError: A rollout cannot be had as tokens, or has one outside the vocabulary.
    """
    sequences = []
    for group in groups:
        for rollout in group.rollouts:
            sequence = _sequence(policy, rollout, max_completion_length, chat_template_kwargs or {})
            ids = (*sequence.prompt_ids, *sequence.completion_ids)
            if min(ids) < 0 or max(ids) >= policy.vocab_size:
                unknown = max(ids) if max(ids) >= policy.vocab_size else min(ids)
                raise InputError(
                    f"Step {group.step}, group {sequence.group_id}, sample {sequence.sample}: token id {unknown} is "
                    f"outside the model's vocabulary of {policy.vocab_size}.",
                    hint="These rollouts are from another model or tokenizer; point --model and --initial at theirs.",
                )
            sequences.append(sequence)
    _require_positions(policy, sequences)
    return tuple(sequences)


def _sequence(
    policy: MeasuredPolicy, rollout: Rollout, max_completion_length: int | None, template: Mapping[str, Any]
) -> TokenSequence:
    tokenizer, by_trl = policy.tokenizer, policy.padding is not None  # whose prompts are tokenized as they were
    if (rollout.prompt_ids is None or rollout.completion_ids is None) and tokenizer is None:
        raise InputError(
            f"Rollout {rollout.sample} of group {rollout.group_id} has no token ids, and no tokenizer was found.",
            hint="Put tokenizer.json beside the weights, or log exact ids.",
        )
    prompt_ids = rollout.prompt_ids if rollout.prompt_ids is not None else _prompt_ids(tokenizer, rollout, template)
    if rollout.completion_ids is not None:
        completion_ids = rollout.completion_ids
    else:
        completion_ids = _completion_ids(tokenizer, rollout.completion, max_completion_length)
    mask = rollout.mask if rollout.mask is not None else (True,) * len(completion_ids)
    subject = f"Rollout {rollout.sample} of group {rollout.group_id}"
    if len(mask) != len(completion_ids):
        raise InputError(
            f"{subject} has a loss mask of {len(mask)} tokens and a completion of {len(completion_ids)}.",
            hint="Log exact completion ids; a mask cannot be matched to re-tokenized text.",
        )
    if not prompt_ids:
        raise InputError(
            f"{subject} has an empty prompt: nothing predicts its first token.",
            hint="Log the prompt as the policy saw it, with its start-of-sequence token.",
        )
    return TokenSequence(
        group_id=rollout.group_id,
        sample=rollout.sample,
        prompt_ids=tuple(prompt_ids),
        completion_ids=tuple(completion_ids),
        mask=tuple(mask),
        inferred=rollout.completion_ids is None or (rollout.prompt_ids is None and not by_trl),
    )


def _prompt_ids(tokenizer: Any, rollout: Rollout, template: Mapping[str, Any]) -> tuple[int, ...]:
    if rollout.messages is None:
        return _ids(tokenizer, rollout.prompt)
    # Columnar files give every message every key; a template must not see the ones that are null.
    messages = [{key: value for key, value in message.items() if value is not None} for message in rollout.messages]
    with ending("The chat template of the tokenizer"), loading_errors("The chat template cannot be filled", _NAME_IT):
        text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False, **template)
    return _ids(tokenizer, text, add_special_tokens=False)


_MAX_TOKENS_PER_BYTE = 16  # tokens: the longest that Unicode writes out, U+FDFA, is 36 bytes in place of 3


def _ids(tokenizer: Any, text: str, **options: Any) -> tuple[int, ...]:
    with loading_errors("The tokenizer gives up on a text of this run", _NAME_IT):
        ids = tuple(tokenizer(text, **options)["input_ids"])
    num_bytes = len(text.encode(errors="replace"))
    if len(ids) > _MAX_TOKENS_PER_BYTE * (num_bytes + 8):
        message = f"The tokenizer makes {len(ids):,} tokens of a text of {num_bytes:,} bytes."
        raise InputError(message, hint=_NAME_IT)
    return ids


def _completion_ids(tokenizer: Any, completion: str, max_completion_length: int | None) -> tuple[int, ...]:
    ids = _ids(tokenizer, completion, add_special_tokens=False)
    if tokenizer.eos_token_id is None:
        return ids
    if max_completion_length is not None and len(ids) >= max_completion_length:
        return ids[:max_completion_length]
    return (*ids, tokenizer.eos_token_id)


def _require_positions(policy: MeasuredPolicy, sequences: Sequence[TokenSequence]) -> None:
    """Refuse sequences longer than a table of positions; a model without one runs longer than it was built for."""
    longest = max(sequences, key=lambda sequence: sequence.num_tokens, default=None)
    expected = _built_for(policy.model)
    if longest is None or (expected is not None and longest.num_tokens <= expected):
        return
    limit = _longest_sequence(policy.model)
    if limit is not None and longest.num_tokens > limit:
        raise InputError(
            f"Group {longest.group_id}, sample {longest.sample} has {longest.num_tokens} tokens; the model's table of "
            f"positions ends at {limit}.",
            hint="These rollouts are from a model with a longer context; point --model at theirs.",
        )
