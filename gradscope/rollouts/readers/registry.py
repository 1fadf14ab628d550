"""The formats that are read, in the order in which they are asked whether a log is theirs."""

from __future__ import annotations

import difflib

from gradscope.errors import UsageError
from gradscope.rollouts.readers import gradscope_run, reduced
from gradscope.rollouts.readers.evaluations import harnesses, inspect_ai, samples
from gradscope.rollouts.readers.flat import generic
from gradscope.rollouts.readers.format import Format, RowFormat
from gradscope.rollouts.readers.prime_rl import token_export, traces
from gradscope.rollouts.readers.slime import miles, relax
from gradscope.rollouts.readers.slime import rollouts as slime
from gradscope.rollouts.readers.trainers import (
    areal,
    art,
    ms_swift,
    nemo_rl,
    open_instruct,
    ragen,
    rlinf,
    rllm,
    roll,
    tinker,
    trackio,
)
from gradscope.rollouts.readers.trl import reader as trl
from gradscope.rollouts.readers.verl import rollouts as verl

TRAINERS: tuple[Format | RowFormat, ...] = (
    reduced.FORMAT,
    gradscope_run.FORMAT,
    trl.FORMAT,
    verl.FORMAT,
    open_instruct.FORMAT,
    nemo_rl.FORMAT,
    traces.FORMAT,
    token_export.FORMAT,
    ms_swift.FORMAT,
    slime.FORMAT,
    miles.FORMAT,
    relax.FORMAT,
    areal.FORMAT,
    roll.FORMAT,
    rllm.FORMAT,
    art.FORMAT,
    tinker.FORMAT,
    ragen.FORMAT,
    rlinf.FORMAT,
    trackio.FORMAT,
)
"""Logs of trainers, whose files have names of their own."""

FORMATS: tuple[Format | RowFormat, ...] = (
    *TRAINERS,
    harnesses.EVALPLUS,
    harnesses.LM_EVAL,
    harnesses.LIGHTEVAL,
    inspect_ai.FORMAT,
    harnesses.VERIFIERS,
    harnesses.SKYRL,
    samples.FORMAT,
    generic.FORMAT,
)
"""All of them; what anybody may have written comes last."""


def format_named(name: str) -> Format | RowFormat:
    """A format by its name in ``--reader``.

    Returns:
        The format.

    Raises:
        UsageError: There is none of that name.
    """
    names = [format.name for format in FORMATS]
    if name in names:
        return FORMATS[names.index(name)]
    near = difflib.get_close_matches(name, names, n=1)
    choices = f"The formats are {', '.join(names)}."
    raise UsageError(f"There is no format {name!r}.", hint=f"Did you mean {near[0]!r}? {choices}" if near else choices)
