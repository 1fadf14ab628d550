"""GradscopeCallback: one line in a user's own TRL script, and every command of gradscope can read the run.

::

    trainer = GRPOTrainer(..., callbacks=[GradscopeCallback("my-run")])

It hands the trainer to RolloutRecorder, which takes one itself: ``RolloutRecorder(trainer, "my-run")``.
Two methods of the trainer are wrapped on the instance, and their results pass through unchanged:
``_calculate_rewards`` has exact ids and each function's rewards, ``_generate_and_score_completions`` the inputs that
the loss will see. A callback writes a step once its update is done. Nothing is drawn at random and no mode is left
changed, so the training is the same to the last bit.

Shapes: R rollouts of a generation batch, F reward functions.
"""

from __future__ import annotations

import inspect
import json
import logging
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import gather_object
from transformers import TrainerCallback
from trl import GRPOTrainer, RLOOTrainer

from gradscope.errors import GradscopeError, InputError, UsageError
from gradscope.gradients.model.policy import declared_ends, padding_row
from gradscope.gradients.plan.objective import Objective
from gradscope.metrics.outcomes.groups import all_equal, binary_threshold, classify_group
from gradscope.outside.plain_json import read_json
from gradscope.rollouts import run_folder
from gradscope.rollouts.groups import RolloutGroup
from gradscope.rollouts.run import TrainerSettings, WeightsRef
from gradscope.rollouts.store import write_step_rollouts
from gradscope.training.checkpoints import complete_checkpoints, mark_complete, rewind
from gradscope.training.protocols import Trainer, TrainerArguments
from gradscope.training.recording.live_gradients import measure_live
from gradscope.training.recording.rows import Row, local_rows, make_groups, unique_names
from gradscope.training.run_checks import begun_manifest, check_free
from gradscope.writing import atomic_write, new_folder, one_writer

_RECORDED_ONCE = "A generation batch that feeds several updates is recorded once, at the first of them."
_TRAINERS = (GRPOTrainer, RLOOTrainer)
_SCALED = {"group": "grpo", "none": "dr_grpo"}
"""TRL's ``scale_rewards`` -> the formulation that it is; with ``batch`` it is none of ours."""
_SHAPING = (
    *("loss_type", "beta", "temperature", "epsilon", "epsilon_high", "delta", "importance_sampling_level"),
    *("num_generations", "generation_batch_size", "steps_per_generation", "gradient_accumulation_steps"),
    *("num_iterations", "max_completion_length", "reward_weights", "scale_rewards", "mask_truncated_completions"),
)
"""Arguments without which recorded steps cannot be read, so that a run keeps them when it is resumed."""


def _recorded_manifest(trainer: Trainer, notes: Sequence[str]) -> run_folder.RunManifest:
    """The manifest of a run that is recorded from now on."""
    return begun_manifest(
        "recorded",
        command=shlex.join(["python", *sys.argv]),
        config={},  # no command of ours repeats a user's script
        seed=trainer.args.seed,
        model=str(trainer.model.config._name_or_path),
        task="recorded",
        trainer_arguments=_plain_arguments(trainer.args),
        advantage=_formulation_of(trainer),
        notes=(_logprobs_note(trainer.args), *([_RECORDED_ONCE] if _is_reused(trainer.args) else []), *notes),
    )


def _plain_arguments(arguments: TrainerArguments) -> dict[str, Any]:
    """The arguments of a trainer as far as they are plain JSON; the folder of checkpoints is absolute."""
    values = {name: value for name, value in arguments.to_dict().items() if _is_plain(value)}
    return values | {"output_dir": str(Path(arguments.output_dir).resolve())}


def _formulation_of(trainer: Any) -> str:
    """How the trainer makes advantages: a formulation of ours, ``trl`` for TRL's own that is none, or ``custom``."""
    generate = type(trainer)._generate_and_score_completions
    aggregation = getattr(trainer.args, "multi_objective_aggregation", "sum_then_normalize")
    if generate not in [k._generate_and_score_completions for k in _TRAINERS] or aggregation != "sum_then_normalize":
        return run_folder.CUSTOM_ADVANTAGE
    return _SCALED.get(str(getattr(trainer.args, "scale_rewards", None)), run_folder.TRL_ADVANTAGE)


def _is_plain(value: Any) -> bool:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return False
    return True


def _logprobs_note(arguments: TrainerArguments) -> str:
    if arguments.use_vllm:
        return "The log-probabilities in the rollouts are vLLM's, of sampling."
    if _is_reused(arguments) and hasattr(arguments, "loss_type"):
        return "The log-probabilities in the rollouts are the trainer's, recomputed with the weights that sampled."
    return (
        "The rollouts have no log-probabilities: Hugging Face's generation returns none, and TRL computes none for a "
        "batch that is used once, and none by token for RLOO."
    )


def _is_reused(arguments: TrainerArguments) -> bool:
    """Whether updates share a generation batch, so that TRL needs an importance ratio."""
    return bool(arguments.gradient_accumulation_steps % (arguments.steps_per_generation * arguments.num_iterations))


def _save_weights(trainer: Trainer, run: Path, num_updates: int) -> None:
    """Save the policy after this many updates, without anything that only resuming needs."""
    # Every process calls it, for a sharded model is gathered by all; the main one writes.
    folder = run_folder.checkpoint_path(run, num_updates)
    partial = folder.with_name(f".{folder.name}.partial")
    trainer.save_model(str(partial), _internal_call=True)  # a call from outside would also push to the hub
    if not trainer.is_world_process_zero():
        return
    _name_padding(partial / "config.json", trainer.model)
    if folder.exists():
        shutil.rmtree(folder)
    partial.replace(folder)
    mark_complete(run, num_updates)


def is_sharded(trainer: Trainer) -> bool:
    """Whether the model may be sharded: FSDP, DeepSpeed."""
    return trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled


@contextmanager
def _gathered_weights(trainer: Trainer, run: Path) -> Iterator[WeightsRef | None]:
    """Gather the weights of a sharded model for a while. Every process calls it."""
    if not is_sharded(trainer):
        yield None
        return
    folder = run / ".gathered.partial"
    trainer.save_model(str(folder), _internal_call=True)
    try:
        if trainer.is_world_process_zero():
            _name_padding(folder / "config.json", trainer.model)
            yield run_folder.weights_at(folder, num_updates=0, base_of=lambda path: run_folder.find_base(path, run))
        else:
            yield None
    finally:
        if trainer.is_world_process_zero():
            shutil.rmtree(folder, ignore_errors=True)


def _name_padding(config: Path, model: Any) -> None:
    """Name the padding token that the embedding was made with."""
    # TRL writes the tokenizer's into the model's configuration after loading it. PyTorch gives the embedding of the one
    # named before no gradient, so whoever recomputes gradients has to know which that was.
    if config.is_file():  # an adapter has none
        document = read_json(config)
        document.get("text_config", document)["pad_token_id"] = padding_row(model)
        atomic_write(config, json.dumps(document, indent=2, sort_keys=True) + "\n", force=True)


_LOGGER = logging.getLogger("gradscope")
_PREFIX = "gradscope/"  # of our metrics in the trainer's log
_STEP_VALUES = ("grad_norm", "learning_rate")  # a log entry's values that are of its own step where it covers several


class RolloutRecorder(TrainerCallback):  # type: ignore[misc]  # transformers has no types
    """Records the run of a GRPOTrainer or an RLOOTrainer, and logs the share of its dead groups.

    Each entry of the trainer's log gets ``gradscope/frac_reward_zero_std`` and, where rewards are 0 and 1 (or -1 and 1,
    or a threshold is given), ``gradscope/frac_all_fail`` and ``gradscope/frac_all_pass``.

    Args:
        output: The run's folder. It must not exist, unless the trainer resumes from a checkpoint: then what was
            recorded after that checkpoint is recorded again.
        weights_every: Save the weights before an update, every this many updates, the first included. None: only the
            trainer's own checkpoints are there to recompute gradients from.
        gradients_every: Every so many updates log norm, effective rank, cancellation and signal to noise of the
            rollouts' gradients, on the weights that sampled. Of several processes the main one measures, and the others
            wait.
        success_threshold: A rollout passes when its reward reaches this.
        force: Replace a run that is in the folder.

    Raises:
        UsageError: The trainer is neither of these, its gradient cannot be formed, or the arguments make no sense.
    """

    def __init__(
        self,
        trainer: Any,
        output: str | Path,
        *,
        weights_every: int | None = None,
        gradients_every: int | None = None,
        success_threshold: float | None = None,
        force: bool = False,
    ) -> None:
        if not isinstance(trainer, _TRAINERS):
            raise UsageError(
                f"RolloutRecorder records a GRPOTrainer or an RLOOTrainer of TRL, not a {type(trainer).__name__}.",
                hint="Give it the trainer, before trainer.train().",
            )
        for name, number in (("weights_every", weights_every), ("gradients_every", gradients_every)):
            if number is not None and number < 1:
                raise UsageError(f"{name} is {number}; the least is 1.", hint="Leave it out for never.")
        self._trainer = trainer
        self._run = Path(output)
        self._weights_every = weights_every
        self._gradients_every = gradients_every
        self._threshold = success_threshold
        self._force = force
        self._alone = ExitStack()
        self._objective = Objective.from_settings(TrainerSettings(values=_plain_arguments(trainer.args)))
        self._names = unique_names(trainer.reward_func_names)
        self._levels: set[float] = set()
        self._scored: tuple[Sequence[Sequence[int]], torch.Tensor] | None = None
        self._staged: dict[int, tuple[list[Row], torch.Tensor]] = {}
        self._last_saved = self._last_measured = -1
        self._check()
        self._calculate_rewards = trainer._calculate_rewards
        self._generate = trainer._generate_and_score_completions
        trainer._calculate_rewards = self._keep_rewards
        trainer._generate_and_score_completions = self._keep_batch
        trainer.add_callback(self)

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Start the run's folder, or rewind it to the checkpoint that the trainer resumes from."""
        done = state.global_step
        self._staged.clear()
        self._last_saved = _multiple(done - 1, self._weights_every)
        self._last_measured = _multiple(done - 1, self._gradients_every)
        if not self._trainer.is_world_process_zero():
            return
        self._alone.enter_context(one_writer(self._run))
        if done and run_folder.manifest_path(self._run).is_file():
            # steps that were recorded with other arguments could not be read with one set of them
            before, now = run_folder.read_manifest(self._run).trainer_arguments, _plain_arguments(self._trainer.args)
            different = [name for name in _SHAPING if before.get(name) != now.get(name)]
            if different:
                listed = ", ".join(f"{name} ({before.get(name)!r}, now {now.get(name)!r})" for name in different)
                raise UsageError(
                    f"{self._run} was recorded with other arguments: {listed}.",
                    hint="Record what follows into another folder.",
                )
            for number in complete_checkpoints(self._run):
                if number > done:
                    shutil.rmtree(run_folder.checkpoint_path(self._run, number))
            rewind(self._run, done)
            return
        check_free(self._run, force=self._force, in_script=True)
        notes = (f"Recording began after {done} updates.",) if done else ()
        with new_folder(self._run) as folder:
            run_folder.write_manifest(folder, _recorded_manifest(self._trainer, notes))

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Let others write the run."""
        self._alone.close()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Write the rollouts of the update."""
        staged = self._staged.pop(state.global_step, None)
        if staged is not None:
            write_step_rollouts(self._run, state.global_step, self._groups(state.global_step, *staged))

    def on_log(self, args: Any, state: Any, control: Any, logs: Mapping[str, Any] | None = None, **_: Any) -> None:
        """Keep a training step's log entry; those of evaluations and the summary at the end are none."""
        if logs is None or "loss" not in logs or not state.is_world_process_zero:
            return
        numbers = {name: float(value) for name, value in logs.items() if isinstance(value, int | float)}
        if state.logging_steps != 1:  # the rest is a mean over several steps
            numbers = {name: numbers[name] for name in _STEP_VALUES if name in numbers}
        run_folder.append_metrics(self._run, state.global_step, numbers)

    def _check(self) -> None:
        """Refuse settings that would only fail later."""
        if self._gradients_every is not None:
            if self._objective.cannot is not None:
                raise UsageError(
                    f"gradients_every cannot form this trainer's gradient: {self._objective.cannot}.",
                    hint="Leave it out; the rest is recorded all the same.",
                )
            if is_sharded(self._trainer) and self._objective.has_reference:
                raise UsageError(
                    "gradients_every needs the reference of the KL term, which is sharded too and not gathered.",
                    hint="Leave it out; give weights_every, and use `gradscope rank` afterwards.",
                )
        plugin = self._trainer.accelerator.state.fsdp_plugin if self._trainer.is_fsdp_enabled else None
        saves_shards = plugin is not None and "FULL" not in str(plugin.state_dict_type)  # which are no model to load
        if (self._weights_every or self._gradients_every) and saves_shards:
            raise UsageError(
                "FSDP is told to save a piece of the model in each process, and weights that sampled are saved whole.",
                hint="Set fsdp_state_dict_type: FULL_STATE_DICT in accelerate's configuration.",
            )
        output_dir = Path(self._trainer.args.output_dir).resolve()
        if output_dir.is_relative_to(self._run.resolve()):
            raise UsageError(
                f"The trainer's own output_dir, {output_dir}, is or lies in {self._run}.", hint="Give another folder."
            )

    def _keep_rewards(self, inputs: Any, prompts: Any, completions: Any, completion_ids: Any) -> Any:
        """TRL's own, recording exact ids and the rewards of all processes."""
        rewards = self._calculate_rewards(inputs, prompts, completions, completion_ids)
        self._scored = completion_ids, rewards.detach()
        return rewards

    def _keep_batch(self, inputs: Any) -> Any:
        """TRL's own, recording a training batch; an evaluation's is not."""
        output = self._generate(inputs)
        if self._trainer.model.training:
            self._stage(inputs, output)
        return output

    def _stage(self, inputs: Sequence[Mapping[str, Any]], output: Mapping[str, Any]) -> None:
        """Keep a batch until its update is done, and measure it."""
        if "pixel_values" in output:
            raise InputError(
                "RolloutRecorder records text, and this batch has images.", hint="Train without the recorder."
            )
        assert self._scored is not None, "TRL calculates rewards whenever it generates"
        (completion_ids, rewards), self._scored = self._scored, None
        done = self._trainer.state.global_step
        tokenizer = getattr(self._trainer.processing_class, "tokenizer", self._trainer.processing_class)
        ids = (tokenizer.eos_token_id, tokenizer.pad_token_id, *declared_ends(self._trainer.model))
        rows = local_rows(
            inputs,
            output,
            completion_ids,
            tokenizer=tokenizer,
            end_ids=frozenset(token for token in ids if token is not None),
            corrected="importance_sampling_ratio" in output,
        )
        if self._trainer.accelerator.num_processes > 1:
            rows = gather_object(rows)
        if self._weights_every is not None and self._last_saved < (turn := done // self._weights_every):
            self._last_saved = turn
            if not run_folder.checkpoint_path(self._run, done).exists():
                _save_weights(self._trainer, self._run, done)
        if self._trainer.is_world_process_zero():
            earlier = self._staged.get(done + 1)  # several generation batches may feed one update
            if earlier is not None:
                rows, rewards = [*earlier[0], *rows], torch.cat([earlier[1], rewards])
            self._staged = {done + 1: (rows, rewards)}
            self._tell(self._degeneracy(self._groups(done + 1, rows, rewards)))
        if self._gradients_every is not None and self._last_measured < (turn := done // self._gradients_every):
            self._last_measured = turn
            with _gathered_weights(self._trainer, self._run) as saved:
                if self._trainer.is_world_process_zero():  # the others wait, as they have the same weights
                    groups = self._groups(done + 1, *self._staged[done + 1])
                    try:
                        self._tell(measure_live(self._trainer, groups, self._objective, saved))
                    except GradscopeError as error:  # a failed measurement is no reason to end a user's training
                        _LOGGER.warning("step %d: no gradient was measured: %s", done + 1, error.message)
                self._trainer.accelerator.wait_for_everyone()

    def _tell(self, numbers: Mapping[str, float]) -> None:
        """Put our numbers where the trainer averages its own."""
        for name, value in numbers.items():
            self._trainer._metrics["train"][_PREFIX + name].append(value)

    def _degeneracy(self, groups: Sequence[RolloutGroup]) -> dict[str, float]:
        """Shares of groups; those that pass only where the rewards have a success threshold."""
        rewards = [[reward for reward in group.rewards if reward is not None] for group in groups]
        with_rewards = [values for values in rewards if values]
        if not with_rewards:
            return {}
        shares = {"frac_reward_zero_std": sum(map(all_equal, with_rewards)) / len(with_rewards)}
        self._levels.update(*with_rewards)
        threshold = self._threshold if self._threshold is not None else binary_threshold(sorted(self._levels))
        if threshold is not None:
            kinds = [classify_group(values, threshold) for values in with_rewards]
            shares |= {f"frac_{kind}": kinds.count(kind) / len(kinds) for kind in ("all_fail", "all_pass")}
        return shares

    def _groups(self, step: int, rows: Sequence[Row], rewards: torch.Tensor) -> tuple[RolloutGroup, ...]:
        weights = self._trainer.args.reward_weights or [1.0] * len(self._names)
        size = self._trainer.num_generations
        return make_groups(step, rows, rewards, names=self._names, weights=weights, group_size=size)


class GradscopeCallback(TrainerCallback):  # type: ignore[misc]
    """Records the run of the trainer that it is a callback of.

    Raises:
        TypeError: The recorder has no such option.
    """

    def __init__(self, output: str | Path, **options: Any) -> None:
        inspect.signature(RolloutRecorder).bind(None, output, **options)
        self._output, self._options = output, options
        self._recorder: RolloutRecorder | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Begin to record; the trainer calls the recorder right after this callback."""
        if self._recorder is not None:
            return
        frame = inspect.currentframe()  # transformers passes the model and the optimizer, but no trainer
        while frame is not None:
            trainer = frame.f_locals.get("self")
            if self in getattr(getattr(trainer, "callback_handler", None), "callbacks", ()):
                self._recorder = RolloutRecorder(trainer, self._output, **self._options)
                return
            frame = frame.f_back
        raise UsageError(
            "GradscopeCallback is called by no trainer.",
            hint='Give the trainer itself: RolloutRecorder(trainer, "my-run"), before trainer.train().',
        )


def _multiple(done: int, interval: int | None) -> int:
    """The index of the interval that comes after these updates; -1 without an interval."""
    return -1 if interval is None else done // interval
