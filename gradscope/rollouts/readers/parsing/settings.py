"""The settings of a run, as its trainer wrote them or ``--run-config`` gives them: documents of JSON, YAML or TOML."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from gradscope.errors import InputError
from gradscope.outside import rules
from gradscope.outside.limits import read_limited
from gradscope.outside.plain_json import MAX_DEPTH, is_deeper, parse_json
from gradscope.rollouts.run import TrainerSettings

_FORMATS = {".yaml": "YAML", ".yml": "YAML", ".toml": "TOML"}
_REFERENCE = re.compile(r"\$\{(?:oc\.select:)?([\w.]+)(?:,([^{}]*))?\}")
_MAX_VALUES = 100_000
_ENDLESS: list[Any] = []
_ENDLESS.append(_ENDLESS)
_MAX_REFERENCES = 8  # longest chain of values that refer to values


def _format_of(path: Path) -> str:
    """The format that a file is read in, by its suffix."""
    return _FORMATS.get(path.suffix, "JSON")


def read_document(path: Path) -> Any:
    """The parsed document of a file.

    Raises:
        InputError: It is no regular file, or too large.
        ValueError: It is not of its format, too deep, or refers to itself so often that it has too many values.
    """
    text = read_limited(path).decode("utf-8")
    kind = _format_of(path)
    try:
        document = _yaml(text) if kind == "YAML" else tomllib.loads(text) if kind == "TOML" else parse_json(text)
    except RecursionError:
        document = _ENDLESS
    if is_deeper(document, MAX_DEPTH):
        raise ValueError(f"it is nested deeper than {MAX_DEPTH} levels")
    values = leaves_in(document) if isinstance(document, Mapping) else ()
    if next(islice(values, _MAX_VALUES, None), None) is not None:
        raise ValueError(f"it has more than {_MAX_VALUES:,} values, those that it refers to counted each time")
    return document


def _yaml(text: str) -> Any:
    import yaml  # few logs come with YAML

    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(str(error).replace("\n", " ")) from error


def flattened(config: Mapping[str, Any]) -> dict[str, Any]:
    """Path -> value of nested settings; one that refers to another, as Hydra writes it, has the other's value.

    Example:
        >>> flattened({"data": {"length": 8}, "rollout": {"response_length": "${data.length}"}})
        {'data.length': 8, 'rollout.response_length': 8}
    """
    flat = dict(leaves_in(config))

    def resolved(value: Any) -> Any:
        for _ in range(_MAX_REFERENCES):
            reference = _REFERENCE.fullmatch(value) if isinstance(value, str) else None
            if reference is None:
                return value
            value = flat.get(reference[1], None if reference[2] is None else _yaml(reference[2]))
        return None

    return {name: resolved(value) for name, value in flat.items()}


def leaves_in(config: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """What is no object in objects within one another, each with its keys, joined by dots."""
    for name, value in config.items():
        path = f"{above}.{name}" if above else str(name)
        if isinstance(value, Mapping):
            yield from leaves_in(value, path)
        else:
            yield path, value


def read_trainer_settings(path: Path | None) -> TrainerSettings:
    """The trainer's arguments from a JSON, YAML or TOML file: bare, or under ``args``, before whose keys others yield.

    Raises:
        InputError: The file is missing or not a JSON object, or an argument is of the wrong kind.
    """
    if path is None:
        return TrainerSettings()
    try:
        document = read_document(path)
    except (OSError, ValueError) as error:
        raise InputError(f"{path} is not readable {_format_of(path)}: {error}.", hint=_SETTINGS_HINT) from error
    if not isinstance(document, dict) or not isinstance(document.get("args", {}), dict):
        raise InputError(f"{path} is not a JSON object of arguments.", hint=_SETTINGS_HINT)
    outside_args = {name: value for name, value in document.items() if name != "args"}
    values = {**outside_args, **document.get("args", {})}
    require_arguments(values, str(path))
    return TrainerSettings(values=values, origin=str(path))


_SETTINGS_HINT = (
    'Write the trainer\'s arguments as JSON: {"num_generations": 8, "beta": 0.0, ...} (TRL: `args.to_dict()`).'
)
_COUNTS = (
    *("gradient_accumulation_steps", "num_iterations", "num_generations", "per_device_train_batch_size"),
    *("steps_per_generation", "generation_batch_size", "max_completion_length", "ref_model_sync_steps"),
    "pad_to_multiple_of",
)
_FROM_ZERO = (
    *("beta", "epsilon", "epsilon_high", "delta", "ref_model_mixup_alpha", "top_entropy_quantile", "learning_rate"),
    *("vllm_importance_sampling_cap", "vllm_importance_sampling_clip_max", "vllm_importance_sampling_clip_min"),
)
_NUMBERS = ("entropy_coef", "entropy_target", "off_policy_mask_threshold", "router_aux_loss_coef", "max_grad_norm")
_TEXTS = ("loss_type", "multi_objective_aggregation", "advantage")
_RULES: dict[str, rules.FieldRule] = {
    **dict.fromkeys(_COUNTS, rules.integer_between(1)),
    **dict.fromkeys(_FROM_ZERO, rules.FROM_ZERO),
    **dict.fromkeys(_NUMBERS, rules.NUMBER),
    **dict.fromkeys(_TEXTS, rules.TEXT),
    "temperature": rules.ABOVE_ZERO,
    "reward_weights": rules.NUMBERS,
    "scale_rewards": rules.FieldRule("text, true or false", lambda value: isinstance(value, (str, bool))),
    "chat_template_kwargs": rules.OBJECT,
    "model_init_kwargs": rules.OBJECT,
}
"""Argument of TRL -> the rule for its value where that is not null."""


def require_arguments(values: Mapping[str, Any], origin: str) -> None:
    """Refuse arguments of the wrong kind with an InputError; unknown arguments and null pass."""
    set_values = {name: value for name, value in values.items() if value is not None}
    rules.require_fields(set_values, _RULES, origin, hint="Write the arguments as the trainer had them.")
