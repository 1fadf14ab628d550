"""The request that a reader answers, and the trainer's configuration and side files that it adds to the log."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from gradscope.errors import InputError
from gradscope.outside.limits import read_limited
from gradscope.outside.plain_json import MOST_DEPTH, is_deeper, parse_json
from gradscope.outside.rules import (
    ABOVE_ZERO,
    FROM_ZERO,
    NUMBER,
    NUMBERS,
    OBJECT,
    TEXT,
    FieldRule,
    integer_between,
    require_fields,
)
from gradscope.progress import ProgressCallback, no_progress
from gradscope.rollouts.read_options import ColumnNames, ReadOptions
from gradscope.rollouts.readers.parsing.cells import token_ids, whole_number
from gradscope.rollouts.readers.parsing.quarantine import QuarantineLog, refuse_quarantined
from gradscope.rollouts.readers.parsing.tables import read_rows
from gradscope.rollouts.run import TrainerSettings

_FORMATS = {".yaml": "YAML", ".yml": "YAML", ".toml": "TOML"}
_REFERENCE = re.compile(r"\$\{(?:oc\.select:)?([\w.]+)(?:,([^{}]*))?\}")
_MOST_VALUES = 100_000
_ENDLESS: list[Any] = []
_ENDLESS.append(_ENDLESS)
_MOST_REFERENCES = 8  # longest chain of values that refer to values


def config_format(path: Path) -> str:
    """The format that a file is read in, by its suffix."""
    return _FORMATS.get(path.suffix, "JSON")


def read_document(path: Path) -> Any:
    """The parsed document of a file.

    Raises:
        InputError: It is no regular file, or too large.
        ValueError: It is not of its format, too deep, or refers to itself so often that it has too many values.
    """
    text = read_limited(path).decode("utf-8")
    kind = config_format(path)
    try:
        document = _yaml(text) if kind == "YAML" else tomllib.loads(text) if kind == "TOML" else parse_json(text)
    except RecursionError:
        document = _ENDLESS
    if is_deeper(document, MOST_DEPTH):
        raise ValueError(f"it is nested deeper than {MOST_DEPTH} levels")
    values = _leaves(document, "") if isinstance(document, Mapping) else ()
    if next(islice(values, _MOST_VALUES, None), None) is not None:
        raise ValueError(f"it has more than {_MOST_VALUES:,} values, those that it refers to counted each time")
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
    flat = dict(_leaves(config, ""))
    return {name: _resolved(value, flat) for name, value in flat.items()}


def _leaves(config: Mapping[str, Any], above: str) -> Iterator[tuple[str, Any]]:
    for name, value in config.items():
        path = f"{above}.{name}" if above else str(name)
        if isinstance(value, Mapping):
            yield from _leaves(value, path)
        else:
            yield path, value


def _resolved(value: Any, flat: Mapping[str, Any]) -> Any:
    for _ in range(_MOST_REFERENCES):
        reference = _REFERENCE.fullmatch(value) if isinstance(value, str) else None
        if reference is None:
            return value
        value = flat.get(reference[1], None if reference[2] is None else _yaml(reference[2]))
    return None


class EarlierLooks:
    """A reader's state between two readings of a log that is still being written."""

    def forget(self) -> None:
        """Drop the state, so that the next reading starts at the beginning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRequest:
    """One call of ``read_run``."""

    path: Path
    options: ReadOptions = field(default_factory=ReadOptions)
    rewards_only: bool = False
    """Whether the caller uses nothing but rewards: rollouts are then neither stored nor read back."""
    parts_answer: bool = False  # whether parts of a log, reduced to their rewards, are accepted
    progress: ProgressCallback = no_progress  # called during a long reading
    so_far: EarlierLooks | None = None  # the state of earlier readings of a log that is still being written

    @property
    def columns(self) -> ColumnNames:
        """The column names that the user gave."""
        return self.options.columns

    @property
    def model(self) -> str | None:
        """The base model of the run's adapters."""
        return None if self.options.model is None else str(self.options.model)

    @property
    def initial(self) -> Path | None:
        """The weights before the first update."""
        return _path(self.options.initial_weights)

    @property
    def run_config(self) -> Path | None:
        """The trainer's arguments as JSON."""
        return _path(self.options.trainer_args)

    @property
    def completion_ids(self) -> Path | None:
        """A side file with the exact completion token ids: columns step, row, completion_ids."""
        return _path(self.options.completion_ids)


def _path(value: str | Path | None) -> Path | None:
    return None if value is None else Path(value)


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
        raise InputError(f"{path} is not readable {config_format(path)}: {error}.", hint=_SETTINGS_HINT) from error
    if not isinstance(document, dict) or not isinstance(document.get("args", {}), dict):
        raise InputError(f"{path} is not a JSON object of arguments.", hint=_SETTINGS_HINT)
    outside_args = {name: value for name, value in document.items() if name != "args"}
    values = {**outside_args, **document.get("args", {})}
    require_arguments(values, str(path))
    return TrainerSettings(values=values, origin=str(path))


_SETTINGS_HINT = (
    'Write the trainer\'s arguments as JSON: {"num_generations": 8, "beta": 0.0, ...} (TRL: `args.to_dict()`).'
)


def read_side_ids(path: Path | None) -> Mapping[tuple[int, int], tuple[int, ...]]:
    """(step, row) -> completion token ids, from a side file with columns ``step``, ``row`` and ``completion_ids``.

    Raises:
        InputError: The file is missing, or a row lacks a column or holds something else.
    """
    if path is None:
        return {}
    if not path.is_file():
        raise InputError(f"There is no file {path}.", hint="--completion-ids takes a Parquet or JSONL file.")
    quarantine = QuarantineLog()
    ids: dict[tuple[int, int], tuple[int, ...]] = {}
    for location, row in read_rows(path, quarantine):
        step, number = whole_number(row.get("step")), whole_number(row.get("row"))
        own_ids = token_ids(row.get("completion_ids"))
        if step is None or number is None or own_ids is None:
            raise InputError(
                f"{location} does not hold step, row and completion_ids.",
                hint="Each row names a step, a row within the step counted from 0, and a list of token ids.",
            )
        if (step, number) in ids:
            quarantine.add("step and row were there before", location)
        ids[step, number] = own_ids
    refuse_quarantined(quarantine.result())
    return ids


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
_RULES: dict[str, FieldRule] = {
    **dict.fromkeys(_COUNTS, integer_between(1)),
    **dict.fromkeys(_FROM_ZERO, FROM_ZERO),
    **dict.fromkeys(_NUMBERS, NUMBER),
    **dict.fromkeys(_TEXTS, TEXT),
    "temperature": ABOVE_ZERO,
    "reward_weights": NUMBERS,
    "scale_rewards": FieldRule("text, true or false", lambda value: isinstance(value, (str, bool))),
    "chat_template_kwargs": OBJECT,
    "model_init_kwargs": OBJECT,
}
"""Argument of TRL -> the rule for its value where that is not null."""


def require_arguments(values: Mapping[str, Any], origin: str) -> None:
    """Refuse arguments of the wrong kind with an InputError; unknown arguments and null pass."""
    set_values = {name: value for name, value in values.items() if value is not None}
    require_fields(set_values, _RULES, origin, hint="Write the arguments as the trainer had them.")
