"""The readers, one row a format: what each looks for, how it is recognized, how it is read."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass

from gradscope.errors import UsageError
from gradscope.rollouts.readers import gradscope_run
from gradscope.rollouts.readers.evaluations import evalplus, inspect_ai, lighteval, lm_eval, samples
from gradscope.rollouts.readers.flat import generic
from gradscope.rollouts.readers.parsing.request import ReadRequest
from gradscope.rollouts.readers.prime_rl import token_export, traces
from gradscope.rollouts.readers.trainers import art, ms_swift, nemo_rl, open_instruct, ragen, rllm, slime, tinker
from gradscope.rollouts.readers.trl import reader as trl
from gradscope.rollouts.readers.verl import rollouts
from gradscope.rollouts.run import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """One format."""

    name: str
    """Its name in ``--reader`` and ``Source.format``."""
    looks_for: str
    """What it recognizes, for people."""
    recognizes: Callable[[ReadRequest], bool]
    """Whether it knows the path."""
    read: Callable[[ReadRequest], Run]
    """Read it."""
    takes: frozenset[str] = frozenset()
    """What it makes use of: ``columns`` that are named, or the ``reward_column`` alone; ``completion_ids`` in a side
    file."""


TRAINERS = (
    Reader(
        name="gradscope",
        looks_for="manifest.json beside rollouts/step_*.parquet (gradscope)",
        recognizes=gradscope_run.recognizes,
        read=gradscope_run.read,
    ),
    Reader(
        name="trl",
        looks_for="completions/completions_*.parquet (TRL)",
        recognizes=trl.recognizes,
        read=trl.read,
        takes=frozenset({"completion_ids"}),
    ),
    Reader(
        name="verl",
        looks_for="<step>.jsonl with input, output, score and step (verl)",
        recognizes=rollouts.recognizes,
        read=rollouts.read,
    ),
    Reader(
        name="open-instruct",
        looks_for="*_rollouts_*.jsonl with prompt_tokens and response_tokens (open-instruct)",
        recognizes=open_instruct.recognizes,
        read=open_instruct.read,
    ),
    Reader(
        name="nemo-rl",
        looks_for="train_data_step*.jsonl with content and rewards (NeMo-RL)",
        recognizes=nemo_rl.recognizes,
        read=nemo_rl.read,
    ),
    Reader(
        name="prime-rl",
        looks_for="step_*/train/{all,effective}/traces.jsonl (prime-rl)",
        recognizes=traces.recognizes,
        read=traces.read,
    ),
    Reader(
        name="prime-rl-tokens",
        looks_for="token_exports/step_*/rank_*.jsonl (prime-rl)",
        recognizes=token_export.recognizes,
        read=token_export.read,
    ),
    Reader(
        name="ms-swift",
        looks_for="completions.jsonl with a list a column (ms-swift)",
        recognizes=ms_swift.recognizes,
        read=ms_swift.read,
    ),
    Reader(
        name="slime",
        looks_for="rollout_data/<step>.pt with samples (slime)",
        recognizes=slime.recognizes,
        read=slime.read,
        takes=frozenset({"reward_column"}),
    ),
    Reader(
        name="rllm",
        looks_for="episodes/train_step_*/episode_*.json (rLLM)",
        recognizes=rllm.recognizes,
        read=rllm.read,
    ),
    Reader(
        name="art",
        looks_for="trajectories/train/<step>.parquet (ART)",
        recognizes=art.recognizes,
        read=art.read,
    ),
    Reader(
        name="tinker",
        looks_for="iteration_*/train_rollout_summaries.jsonl (Tinker cookbook)",
        recognizes=tinker.recognizes,
        read=tinker.read,
    ),
    Reader(
        name="ragen",
        looks_for="val_rollouts_*.jsonl with metadata.group_id (RAGEN)",
        recognizes=ragen.recognizes,
        read=ragen.read,
    ),
)
"""Logs of trainers, in the order in which they are asked; their files have names of their own."""

READERS = (
    *TRAINERS,
    Reader(
        name="evalplus",
        looks_for="*eval_results.json (EvalPlus)",
        recognizes=evalplus.recognizes,
        read=evalplus.read,
    ),
    Reader(
        name="lm-eval",
        looks_for="samples_*.jsonl with doc_id, resps and filter (lm-eval)",
        recognizes=lm_eval.recognizes,
        read=lm_eval.read,
        takes=frozenset({"reward_column"}),
    ),
    Reader(
        name="lighteval",
        looks_for="details_*.parquet with doc, model_response and metric (lighteval)",
        recognizes=lighteval.recognizes,
        read=lighteval.read,
        takes=frozenset({"reward_column"}),
    ),
    Reader(
        name="inspect-ai",
        looks_for="*.eval, or .json with eval and samples (inspect_ai)",
        recognizes=inspect_ai.recognizes,
        read=inspect_ai.read,
        takes=frozenset({"reward_column"}),
    ),
    Reader(
        name="samples",
        looks_for="samples of prompts: task_id with passed, score or n and c (sample files)",
        recognizes=samples.recognizes,
        read=samples.read,
        takes=frozenset({"columns"}),
    ),
    Reader(
        name="generic",
        looks_for="rows with a reward, a group or prompt, and a step (any JSONL, Parquet or CSV)",
        recognizes=generic.recognizes,
        read=generic.read,
        takes=frozenset({"columns"}),
    ),
)
"""All of them, in the order in which they are asked: what anybody may have written comes last."""


def reader_named(name: str) -> Reader:
    """A reader by its name.

    Args:
        name: As in ``--reader``.

    Returns:
        The reader.

    Raises:
        UsageError: There is none of that name.
    """
    names = [reader.name for reader in READERS]
    if name in names:
        return READERS[names.index(name)]
    near = difflib.get_close_matches(name, names, n=1)
    known = f"The formats are {', '.join(names)}."
    raise UsageError(f"There is no format {name!r}.", hint=f"Did you mean {near[0]!r}? {known}" if near else known)
