"""The shape of a catalogue entry."""

from __future__ import annotations

from functools import partial
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

Direction = Literal["higher", "lower", "neither"]


class Metric(Struct, frozen=True, kw_only=True):
    """One metric of the catalogue."""

    name: str = ""  # the name in JSON, requirements and code: its key in the family, from which the catalogue has it
    title: str  # the name in tables and figures
    formula: str  # how it is computed, in one line of plain text
    meaning: str  # what it tells, in one or two sentences
    range: str = "[0, 1]"  # the values it can take
    better: Direction = "neither"  # which way is better, where one is
    moved_by: str  # what makes it rise or fall
    source: str = "Definition."  # the paper or program that the formula is from
    command: str  # the command that computes it
    path: str = ""
    """Path of the number in that command's result, as ``gradscope check`` reads it: ``curve.`` and ``steps.`` mean
    the last step's, of a curve its largest group's; where a table has a row a kind, ``meaning`` says which is meant.
    Empty where it is not one number of a run. ``{0}`` is the name, ``{1}`` and ``{2}`` are its parts around the dot."""

    def named(self, name: str) -> Metric:
        """The entry under the name that it has in its family."""
        return replace(self, name=name, path=self.path.format(name, *name.split(".")))


rank_metric = partial(Metric, command="rank")  # a metric of ``gradscope rank``
