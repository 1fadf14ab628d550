"""TrainConfig: everything that decides a reference run, plain enough to travel as JSON in its manifest."""

from __future__ import annotations

import difflib
import math
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from msgspec import Struct, ValidationError, convert
from msgspec.structs import asdict

from gradscope.errors import InputError, UsageError
from gradscope.outside.plain_json import read_json

EMBEDDED_MODEL = "embedded"  # the name of the packaged model
TaskName = Literal["running-sums", "conflict", "starved", "bimodal", "steps", "gsm8k", "jsonl"]
GraderName = Literal["plain", "math-verify"]
LossType = Literal["dapo", "dr_grpo", "bnpo", "grpo"]
Sampling = Literal["fixed", "dynamic", "reallocated"]
RewardName = Literal["outcome", "answer_probability"]
TASKS: tuple[str, ...] = get_args(TaskName)
_FROM_FILES = ("gsm8k", "jsonl")
LOSS_TYPES: tuple[str, ...] = get_args(LossType)
SAMPLINGS: tuple[str, ...] = get_args(Sampling)
REWARDS: tuple[str, ...] = get_args(RewardName)
GRADERS: tuple[str, ...] = get_args(GraderName)
DEFAULT_MAX_RESAMPLING = 4
_WITHOUT_REASONING = ("starved", "steps")  # tasks whose answer is the entire completion


class TrainConfig(Struct, frozen=True, kw_only=True):
    """The configuration of one reference run; the defaults are the demo.

    Settings that contradict each other are refused when one is made; those that the formulation, the task, the launch
    or the disk rules out are refused in ``run_checks``, before a run begins.
    """

    output: str = "run"  # the run's folder; it must not exist
    task: TaskName = "running-sums"
    """The task: the embedded one or a variant of it, GSM8K's own files, or a file of prompts and answers."""
    data: str | None = None  # the file of prompts, for the tasks ``gsm8k`` and ``jsonl``
    heldout_data: str | None = None
    """A file of held-out prompts; without it the last ``heldout_prompts`` of ``data`` are held out."""
    grader: GraderName = "plain"
    """How the final answers of ``gsm8k`` and ``jsonl`` are compared: as numbers or text, or as expressions."""
    model: str = EMBEDDED_MODEL  # ``embedded``, a Hugging Face model folder, or a hub id
    reward: RewardName = "outcome"
    """The reward: the task's own, or the probability of the true answer after the sampled reasoning."""
    advantage: str = "grpo"  # the advantage formulation, by its name in the registry
    group_size: int = 8  # rollouts of a prompt, G
    num_prompts: int = 16  # prompts of a step
    sampling: Sampling = "fixed"
    """``dynamic`` replaces dead groups by other prompts' groups, ``reallocated`` moves rollouts of solved prompts to
    unsolved ones."""
    max_resampling: int | None = None  # under ``dynamic``, most rounds of replacing; null is 4
    steps: int = 60  # optimizer updates
    train_prompts: int | None = None
    """How many distinct prompts are trained on, in turn; null is 256 for made prompts and all rows of a file."""
    seed: int = 0  # seed of prompts, their order, initial adapter weights and sampling
    learning_rate: float = 3e-4  # AdamW's learning rate, constant over the run
    critic_learning_rate: float = 1e-3
    """That of the head of ``token_critic`` and ``gae``, which has an AdamW of its own."""
    max_grad_norm: float = 1.0  # gradients are clipped to this norm; the logged norm is the one before
    match_grad_norm: float | None = None
    """Each gradient is scaled to this norm, up or down, so that runs differ in its direction alone; null does not."""
    gradient_accumulation_steps: int = 1  # parts in which a step's rollouts go through the model
    lora_rank: int | None = None
    """Rank of a LoRA adapter on all linear layers but the output layer; null trains all weights."""
    lora_alpha: float | None = None  # LoRA's scale; null is twice the rank
    temperature: float = 1.0  # sampling temperature
    max_completion_length: int | None = None
    """Most tokens of a completion; null is 27 for running sums and 256 for the others."""
    beta: float = 0.0  # weight of the KL penalty towards the weights before training
    loss_type: LossType = "dapo"
    """How TRL averages the loss over tokens; ``dapo``, TRL's own default, divides by the step's tokens."""
    checkpoint_every: int = 10
    """Weights are saved before the first update, every this many updates, and after the last."""
    heldout_prompts: int = 64  # held-out prompts sampled before and after training; 0 for none
    heldout_samples: int = 16  # samples of each held-out prompt
    device: Literal["auto", "cpu", "cuda"] = "auto"  # where it runs; ``auto`` takes a GPU where there is one
    vllm: dict[str, Any] | None = None
    """TRL's ``vllm_*`` arguments, by their names without that prefix; null samples by transformers."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """``bfloat16`` computes in mixed precision: trained weights stay in float32, an adapter's frozen base does not."""

    def __post_init__(self) -> None:
        for name, minimum in _MINIMUM.items():
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value >= minimum):
                raise UsageError(f"{name} is {value!r}; the least is {minimum}.", hint=f"Give another {_flag(name)}.")
        for name in _ABOVE_ZERO:
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise UsageError(f"{name} is {value!r}; it must be above zero.", hint=f"Give another {_flag(name)}.")
        self._check_combinations()

    def _check_combinations(self) -> None:
        if self.task not in _FROM_FILES and (self.data is not None or self.heldout_data is not None):
            raise UsageError(
                f"The task {self.task} makes its own prompts and reads no data.",
                hint="Leave out --data and --heldout-data, or name --task jsonl.",
            )
        if self.task not in _FROM_FILES and self.grader != "plain":
            raise UsageError(
                f"The task {self.task} has a grader of its own.", hint="Leave out --grader, or name --task jsonl."
            )
        if self.task in _FROM_FILES and self.data is None:
            raise UsageError(f"The task {self.task} needs a file of prompts.", hint="Give --data FILE.")
        if self.reward == "answer_probability" and self.task in _WITHOUT_REASONING:
            raise UsageError(
                f"The answer of the task {self.task} is the whole completion, with no reasoning before it.",
                hint="Leave out --reward, or choose --task running-sums.",
            )
        if self.lora_alpha is not None and self.lora_rank is None:
            raise UsageError("lora_alpha is given without lora_rank.", hint="Give --lora-rank too, for example 8.")
        if (self.num_prompts * self.group_size) % self.gradient_accumulation_steps:
            raise UsageError(
                f"{self.num_prompts} prompts x {self.group_size} rollouts do not divide into "
                f"{self.gradient_accumulation_steps} parts.",
                hint="Choose --gradient-accumulation-steps so that it divides prompts x rollouts.",
            )
        if self.max_resampling is not None and self.sampling != "dynamic":
            raise UsageError(
                f"max_resampling is given, and {self.sampling} sampling has no rounds of replacing.",
                hint="Give --sampling dynamic too.",
            )
        if self.sampling == "reallocated" and self.vllm is not None:
            raise UsageError(
                "Reallocated sampling asks for groups of different sizes, and TRL asks vLLM for groups of one size.",
                hint="Choose another --sampling, or leave out --vllm.",
            )
        if self.sampling == "reallocated" and (self.group_size % 2 or self.group_size < 4 or self.num_prompts < 2):
            raise UsageError(
                "Reallocated sampling probes with half of each group and moves the rest between prompts; "
                f"{self.num_prompts} prompts x {self.group_size} rollouts do not allow that.",
                hint="Choose an even --group-size of at least 4 and at least --num-prompts 2.",
            )

    def to_json(self) -> dict[str, Any]:
        """The configuration as plain JSON values, field by field, nulls included, so it round-trips exactly."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any], *, origin: str = "the configuration") -> TrainConfig:
        """A configuration from plain JSON values; fields left out take their defaults, messages name the origin.

        Raises:
            UsageError: A key is unknown or a value is of the wrong type or out of range.
        """
        hints = get_type_hints(cls)
        for name, value in values.items():
            if name not in hints:
                near = difflib.get_close_matches(name, hints, n=1, cutoff=0.5)
                hint = f"Did you mean {near[0]!r}?" if near else f"Known keys: {', '.join(hints)}."
                raise UsageError(f"{origin} has an unknown key {name!r}.", hint=hint)
            try:
                convert(value, hints[name])
            except ValidationError as error:
                text = f"{origin} has {name} = {value!r}, which does not fit."
                raise UsageError(text, hint=f"Expected: {_spell(hints[name])}.") from error
        return cls(**values)


_MINIMUM = {
    "group_size": 2,
    "num_prompts": 1,
    "steps": 1,
    "max_resampling": 1,
    "train_prompts": 1,
    "seed": 0,
    "gradient_accumulation_steps": 1,
    "lora_rank": 1,
    "max_completion_length": 1,
    "beta": 0,
    "checkpoint_every": 1,
    "heldout_prompts": 0,
    "heldout_samples": 1,
}
_ABOVE_ZERO = ("learning_rate", "critic_learning_rate", "temperature", "max_grad_norm", "match_grad_norm", "lora_alpha")


def read_config(path: Path) -> TrainConfig:
    """A configuration from a run's manifest or folder, or from a file that holds it by itself.

    Raises:
        InputError: The file is missing or not a JSON object.
    """
    file = path / "manifest.json" if path.is_dir() else path
    try:
        document = read_json(file)
    except OSError as error:
        raise InputError(
            f"{file} cannot be read: {error.strerror}.", hint="Name a run's manifest.json or a file of settings."
        ) from error
    except ValueError as error:
        raise InputError(f"{file} is not JSON: {error}.", hint="Name a run's manifest.json.") from error
    values = document.get("config", document) if isinstance(document, dict) else None
    if not isinstance(values, dict):
        raise InputError(f"{file} holds no configuration.", hint="Expected: a JSON object of settings, or a manifest.")
    if not values and "config" in document:
        raise InputError(
            f"{file} is of a run that was recorded from a script, which no configuration repeats.",
            hint="Its command is in the manifest.",
        )
    return TrainConfig.from_json(values, origin=str(file))


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _spell(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return " or ".join(map(repr, get_args(hint)))
    if get_origin(hint) is types.UnionType:
        return " or ".join(_spell(part) for part in get_args(hint))
    return {int: "a whole number", float: "a number", str: "a text", dict: "an object", types.NoneType: "null"}[
        get_origin(hint) or hint
    ]
