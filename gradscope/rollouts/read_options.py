"""How to read a run: one record, from which the flags of every command that reads one are made."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Annotated

from msgspec import Struct
from msgspec.structs import replace

from gradscope.errors import InputError
from gradscope.option import Option, options_of

_input = partial(Option, panel="Input")
_model = partial(Option, panel="Model")


class ColumnNames(Struct, frozen=True, kw_only=True):
    """The columns of a generic log; None: guessed where the name is usual."""

    prompt: Annotated[str | None, _input("Column that names the prompt.", "NAME", flags=("--prompt-column",))] = None
    completion: str | None = None  # the completion's text or messages
    reward: Annotated[str | None, _input("Column of rewards.", "NAME", flags=("--reward-column",))] = None
    step: Annotated[str | None, _input("Column of training steps.", "NAME", flags=("--step-column",))] = None
    group: Annotated[str | None, _input("Column that names the group.", "NAME", flags=("--group-column",))] = None
    prompt_id: str | None = None  # what all groups of one prompt share
    advantage: str | None = None  # the advantage that the optimizer saw
    num_samples: Annotated[
        str | None, _input("Column of how many samples a prompt has, or a list of them.", "NAME", flags=("--n-column",))
    ] = None
    num_correct: Annotated[
        str | None, _input("Column of how many of them are correct.", "NAME", flags=("--c-column",))
    ] = None


class ReadOptions(Struct, frozen=True, kw_only=True):
    """How to read a run. The defaults recognize the format and use what the folder itself holds."""

    reader: Annotated[str | None, _input("Force a reader instead of detecting it.", "NAME")] = None
    model: Annotated[
        str | Path | None, _model("The base model, where the log names none or it moved.", "PATH_OR_ID")
    ] = None
    initial_weights: Annotated[
        str | Path | None,
        _model(
            "The weights before the first update (model or adapter folder), where the run does not hold them.",
            "PATH",
            flags=("--initial", "--initial-weights"),
        ),
    ] = None
    """TRL does not save these weights, and the first step and the KL term need them."""
    columns: ColumnNames = ColumnNames()  # of a generic log, where their names are not usual
    trainer_args: Annotated[
        str | Path | None,
        _input(
            "The trainer's arguments as JSON, where the folder lacks them.",
            "FILE",
            flags=("--run-config", "--trainer-args"),
        ),
    ] = None
    """TRL keeps its arguments in a pickle, which is never opened."""
    completion_ids: Annotated[
        str | Path | None, _input("Exact completion token ids (step, row, completion_ids).", "FILE")
    ] = None
    """Parquet or JSON lines, for a log that holds text alone."""
    metric_columns: Annotated[
        list[str] | None,
        _input(
            "A metric under a name of your own: frac_reward_zero_std=groups/dead.",
            "NAME=COLUMN",
            flags=("--metric-column",),
            shows_default=False,
        ),
    ] = None
    metric_run: Annotated[str | None, _input("Which run, where a file of metrics holds several.", "NAME")] = None
    """A run's name, or its number where the file names none."""
    strict: Annotated[bool, _input("Refuse a log with unusable rows.")] = False  # else they are set aside and counted
    of_run: Mapping[str, ReadOptions] = {}
    """Options of single runs that differ from those of the rest, by the runs' names as typed."""

    def for_run(self, path: str | Path) -> ReadOptions:
        """How to read one of several runs."""
        return next((options for name, options in self.of_run.items() if Path(name) == Path(path)), self)

    def with_initial_if_complete(self, folder: str) -> ReadOptions:
        """These options with the weights before the first update, where that folder still holds complete ones."""
        from gradscope.rollouts.run_folder import weights_kind  # `--help` need not wait for it

        with suppress(InputError):
            weights_kind(Path(folder))
            return replace(self, initial_weights=folder)
        return self

    def spelled(self) -> Iterator[tuple[str, str]]:
        """Flag and value of each option that differs from its default, as a user would type it; without switches."""
        for record in (self, self.columns):
            for name, option in options_of(type(record)).items():
                value = getattr(record, name)
                if value is not None and option.metavar is not None:
                    entries = value if isinstance(value, list) else [value]
                    yield from ((option.flags[0], str(entry)) for entry in entries)
