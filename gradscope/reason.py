"""Why a logged number cannot be recomputed, or was not met: every cause with its verdict and advice.

One table for all commands: the same cause has the same verdict wherever it was found, in the arguments, in the log, in
a model's configuration or in a file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

Verdict = Literal["match", "mismatch", "cannot", "no_gradient"]


class Cause(Struct, frozen=True):
    """One row of the table."""

    verdict: Verdict  # verdict on a number with this cause
    advice: str  # a sentence


CAUSES: Mapping[str, Cause] = {
    # the log
    "rollouts_missing": Cause("cannot", "Log every rollout of the step, or replay another step."),
    "batch_split": Cause("cannot", "Set steps_per_generation = gradient_accumulation_steps in the next run."),
    "micro_batches_unknown": Cause("cannot", "Set per_device_train_batch_size to the whole batch in the next run."),
    "several_updates": Cause("cannot", "Make the batch of a step one mini-batch and one epoch in the next run."),
    "window": Cause("cannot", "Set logging_steps = 1 in the next run."),
    "not_asked": Cause("cannot", "Ask for the step with --step."),
    "not_logged": Cause("cannot", "Log it at every step: logging_steps = 1, report what the trainer reports."),
    "advantages_missing": Cause("cannot", "Log advantages with the completions."),
    "rewards_missing": Cause("cannot", "Log a reward for every rollout."),
    "logprobs_missing": Cause("cannot", "Log the sampler's log-probabilities, or save the weights that sampled."),
    "several_sequences": Cause("cannot", "Replay a step whose rollouts are one sequence each."),
    # the tokens
    "ids_missing": Cause("cannot", "Log the exact ids of prompts and completions; see the docs on logs."),
    "ids_inferred": Cause("cannot", "Log exact ids with log_extra in a reward function; see the docs on logs."),
    "prompt_unknown": Cause("cannot", "Log the prompt's ids in a column prompt_ids; see the docs on logs."),
    "mask_unknown": Cause("cannot", "Log the mask in a column completion_mask, 1 for each token that was sampled."),
    "ids_misfit": Cause("cannot", "Point --model at the model and tokenizer of these rollouts."),
    "truncation_unknown": Cause("cannot", "Log exact ids: with or without the end-of-sequence token they tell."),
    # the weights
    "step_unknown": Cause("cannot", "Count steps from 1."),
    "weights_missing": Cause("cannot", "Save every step in the next run (save_steps = 1), or replay another step."),
    "first_weights_missing": Cause("cannot", "In the next run: trainer.save_model(FOLDER) before trainer.train()."),
    "reference_missing": Cause("cannot", "Pass the weights before the first update with --initial."),
    "weights_unmerged": Cause("cannot", "Merge the checkpoint into a Hugging Face model folder."),
    "weights_unreadable": Cause("cannot", "Copy the checkpoint again, or replay another step."),
    "unusable": Cause("cannot", "Mend what the message names, or replay another step."),
    # the loss
    "settings_unknown": Cause("cannot", "Give the trainer's arguments with --run-config."),
    "loss_unknown": Cause("cannot", "Give the trainer's arguments with --run-config if these are not the run's."),
    "loss_not_on_disk": Cause("cannot", "Nothing on disk tells this part of the loss; replay a run without it."),
    "code_not_named": Cause("cannot", "Name the file, which then runs: --advantage FILE.py:NAME."),
    "code_changed": Cause("cannot", "Restore the file as it was when the run began."),
    # the forward pass
    "dropout": Cause("cannot", "Train with disable_dropout = True, and no jitter or noise in model and adapter."),
    "lengths_unknown": Cause("cannot", "Log the completions of every step from the first on: logging_steps = 1."),
    "model_unsupported": Cause("cannot", "Report it with the model's config.json."),
    "overflow": Cause("cannot", "Look at the updates before it: these weights give no finite loss."),
    "precision": Cause("cannot", "Train in float32 to settle it, or replay on the device that trained."),
    "entropy_ties": Cause("cannot", "Nothing on disk tells which of them were masked; replay another step."),
    # the number itself
    "no_gradient": Cause("no_gradient", "Replay a step that has a gradient: this one proves nothing."),
    "differs": Cause("mismatch", "Check that weights, arguments and log are of one run."),
    "log_differs": Cause("mismatch", "Check that the log and the arguments are of one run."),
    "texts_differ": Cause("mismatch", "Check that no rows of the log were exchanged: what was trained on are the ids."),
    "not_finite": Cause("mismatch", "Look at the step: its update was not a number."),
}
"""Cause -> verdict and advice."""


class Reason(Struct, frozen=True):
    """A cause as it was met in a run."""

    cause: str  # its row of :data:`CAUSES`
    text: str  # the case, a sentence without a final period
    hint: str = ""  # advice for the case; empty: the row's

    @property
    def verdict(self) -> Verdict:
        """The verdict on a number with this cause."""
        return CAUSES[self.cause].verdict

    @property
    def advice(self) -> str:
        """The advice, as a sentence."""
        return self.hint or CAUSES[self.cause].advice

    def __str__(self) -> str:
        return self.text
