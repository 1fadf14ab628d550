"""How to read a run: one record, from which the flags of every command that reads one are made."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

from gradscope.errors import InputError
from gradscope.option import Option, options_of

_INPUT = "Input"
_MODEL = "Model"


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnNames:
    """The columns of a generic log; None: guessed where the name is usual."""

    prompt: Annotated[
        str | None, Option(("--prompt-column",), "Column that names the prompt.", _INPUT, metavar="NAME")
    ] = None
    """The prompt's text or messages."""
    completion: str | None = None
    """The completion's text or messages."""
    reward: Annotated[str | None, Option(("--reward-column",), "Column of rewards.", _INPUT, metavar="NAME")] = None
    """The scalar reward."""
    step: Annotated[str | None, Option(("--step-column",), "Column of training steps.", _INPUT, metavar="NAME")] = None
    """The trainer's step."""
    group: Annotated[
        str | None, Option(("--group-column",), "Column that names the group.", _INPUT, metavar="NAME")
    ] = None
    """What the rollouts of one group share."""
    prompt_id: str | None = None
    """What all groups of one prompt share."""
    advantage: str | None = None
    """The advantage that the optimizer saw."""
    num_samples: Annotated[
        str | None, Option(("--n-column",), "Column of how many samples a prompt has.", _INPUT, metavar="NAME")
    ] = None
    """n of a table of counts."""
    num_correct: Annotated[
        str | None, Option(("--c-column",), "Column of how many of them are correct.", _INPUT, metavar="NAME")
    ] = None
    """c of a table of counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """How to read a run. The defaults recognize the format and take what the folder itself tells."""

    reader: Annotated[
        str | None, Option(("--reader",), "Force a reader instead of detecting it.", _INPUT, metavar="NAME")
    ] = None
    """The name of a reader."""
    model: Annotated[
        str | Path | None,
        Option(
            ("--model",),
            "The base model, where the log names none or it moved.",
            _MODEL,
            metavar="PATH_OR_ID",
        ),
    ] = None
    """The base model of the run's adapters: a folder, or an id of the hub's cache."""
    initial_weights: Annotated[
        str | Path | None,
        Option(
            ("--initial", "--initial-weights"),
            "The weights before the first update (model or adapter folder), where the run does not hold them.",
            _MODEL,
            metavar="PATH",
        ),
    ] = None
    """A model or adapter folder. TRL does not save these weights, and the first step and the KL term need them."""
    columns: ColumnNames = ColumnNames()
    """Columns of a generic log, where their names are not usual."""
    trainer_args: Annotated[
        str | Path | None,
        Option(
            ("--run-config", "--trainer-args"),
            "The trainer's arguments as JSON, where the folder lacks them.",
            _INPUT,
            metavar="FILE",
        ),
    ] = None
    """A JSON file. TRL keeps its arguments in a pickle, which is never opened."""
    completion_ids: Annotated[
        str | Path | None,
        Option(
            ("--completion-ids",),
            "Exact completion token ids (step, row, completion_ids).",
            _INPUT,
            metavar="FILE",
        ),
    ] = None
    """Parquet or JSON lines, for a log that holds text alone."""
    metric_columns: Annotated[
        list[str] | None,
        Option(
            ("--metric-column",),
            "A metric under a name of your own: frac_reward_zero_std=groups/dead.",
            _INPUT,
            metavar="NAME=COLUMN",
            shows_default=False,
        ),
    ] = None
    """Common names of metrics and the log's own, of a log of metrics alone."""
    metric_run: Annotated[
        str | None,
        Option(("--metric-run",), "Which run, where a file of metrics holds several.", _INPUT, metavar="NAME"),
    ] = None
    """A run's name, or its number where the file names none."""
    strict: Annotated[bool, Option(("--strict",), "Refuse a log with unusable rows.", _INPUT)] = False
    """Whether a row that cannot be used is an error; else it is set aside and counted."""
    of_run: Mapping[str, ReadOptions] = field(default_factory=dict)
    """Of several runs those that are read in a way of their own, by their names as given."""

    def for_run(self, path: str | Path) -> ReadOptions:
        """How to read one of several runs."""
        return next((own for name, own in self.of_run.items() if Path(name) == Path(path)), self)

    def with_initial_if_whole(self, folder: str) -> ReadOptions:
        """These options with the weights before the first update, where that folder still holds whole ones."""
        from gradscope.rollouts.checkpoint_folders import weights_kind  # `--help` need not wait for it

        with suppress(InputError):
            weights_kind(Path(folder))
            return replace(self, initial_weights=folder)
        return self

    def spelled(self) -> Iterator[tuple[str, str]]:
        """What differs from the defaults, as a person would type it.

        Yields:
            Flag and value; of switches nothing.
        """
        for record in (self, self.columns):
            for name, option in options_of(type(record)).items():
                value = getattr(record, name)
                if value is not None and option.metavar is not None:
                    yield from ((option.flags[0], str(one)) for one in (value if isinstance(value, list) else [value]))
