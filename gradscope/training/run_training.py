"""The middle of a run: initial weights, held-out samples, the training itself, held-out samples again.

Each part leaves a file once it is complete, so going on after an interruption means doing the missing parts.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from accelerate import PartialState
from datasets import Dataset
from msgspec.structs import replace
from transformers.trainer_callback import PrinterCallback

from gradscope.advantages.online import OnlineAdvantage, online_advantage
from gradscope.errors import InputError
from gradscope.machine import num_processes, process_index
from gradscope.progress import ProgressCallback
from gradscope.rollouts.run_folder import checkpoint_path, checkpoints_path, heldout_path
from gradscope.training import checkpoints
from gradscope.training.config import TrainConfig
from gradscope.training.grpo import policy as policies
from gradscope.training.grpo.trainer import HEADS, NormMatch, Recorder, RecordingTrainer, StepCallback
from gradscope.training.libraries import grpo_config, lora_config, own_random_state
from gradscope.training.processes import gather, run_on_main, shards_model
from gradscope.training.sampling import make_sampling
from gradscope.training.tasks.task import Task, prompt_order

SMALL_MODEL = 5_000_000
"""Parameters below which a CPU is fastest with one thread, for more only wait for each other, and with many rows."""
_MIN_ROWS = 512
"""Held-out completions that a small model samples at once, at least: a call of few rows takes as long."""


def fit(
    run: Path,
    config: TrainConfig,
    task: Task,
    policy: policies.TrainedPolicy,
    arguments: Mapping[str, Any],
    *,
    on_cpu: bool,
    progress: ProgressCallback,
) -> None:
    """Do the missing parts of a run folder with a manifest; the policy has the weights before the first update."""
    # the policy and its trainer: TRL's with our advantages, sampling and recorder
    width, head = policy.model.config.get_text_config().hidden_size, HEADS.get(config.advantage)
    online = head(width, config.critic_learning_rate) if head else online_advantage(config.advantage)
    trainer = _make_trainer(run, config, task, policy, arguments, online, on_cpu=on_cpu, progress=progress)
    policy = replace(policy, model=trainer.model)

    def hold_out(phase: Literal["before", "after"]) -> None:
        run_on_main(lambda: _sample_heldout(phase, run, config, task, policy, arguments, progress))

    # the weights before the first update, unless an earlier start has written them
    newest = run_on_main(lambda: _newest(run))
    if newest is None:
        trainer.save_model(str(checkpoint_path(run, 0)))
        run_on_main(lambda: checkpoints.mark_complete(run, 0))
    # The updates: all of them, those that are missing, or none.
    if not newest:
        hold_out("before")
        trainer.train()
    elif newest < config.steps:
        folder = checkpoints.resumable(run, newest, num_processes())
        if online.remembers:
            checkpoints.recall_memory(folder, online)
        trainer.train(resume_from_checkpoint=str(folder))
    elif not shards_model():
        trainer._load_from_checkpoint(str(checkpoint_path(run, newest)))
    # completions of prompts that the trained policy never saw
    hold_out("after")


def _newest(run: Path) -> int | None:
    """The newest complete checkpoint, after everything later was removed."""
    newest = max(checkpoints.complete_checkpoints(run), default=None)
    checkpoints.rewind(run, newest or 0)
    return newest


def _make_trainer(
    run: Path,
    config: TrainConfig,
    task: Task,
    policy: policies.TrainedPolicy,
    arguments: Mapping[str, Any],
    online: OnlineAdvantage,
    *,
    on_cpu: bool,
    progress: ProgressCallback,
) -> RecordingTrainer:
    recorder = Recorder(run, task, policy)

    def on_step(step: int, logs: dict[str, Any]) -> None:
        if process_index() == 0:
            recorder.write(step, logs | online.metrics)
        progress(step, config.steps, "steps")

    def on_checkpoint(num_updates: int) -> None:
        gather([num_updates])  # each process has written its random state
        if process_index() == 0:
            if online.remembers:
                checkpoints.write_memory(run, num_updates, online.memory)
            checkpoints.mark_complete(run, num_updates)

    callbacks: list[Any] = [StepCallback(on_step, on_checkpoint)]
    if config.match_grad_norm is not None:
        callbacks.append(NormMatch(config.match_grad_norm))
    order = prompt_order(len(task.train), num_prompts=config.num_prompts, steps=config.steps, seed=config.seed)
    rows = [  # columns unknown to TRL come back with the batch
        {
            "prompt": policy.messages(problem) or problem.prompt,
            "answer": problem.answer,
            "prompt_id": problem.prompt_id,
            "text": problem.prompt,
        }
        for problem in task.train
    ]
    dense = None
    if config.reward == policies.ANSWER_PROBABILITY and task.answer_mark is not None:
        size = arguments["per_device_train_batch_size"]
        dense = policies.AnswerProbability(policy, task.answer_mark, temperature=config.temperature, batch_size=size)
    padding = getattr(policy.model.config.get_text_config(), "pad_token_id", None)
    try:
        trainer = RecordingTrainer(
            online=online,
            rewards=policies.RewardFunctions(task, dense),
            recorder=recorder,
            sampling=make_sampling(config, rows, padding=policy.tokenizer.pad_token_id),
            model=policy.model,
            processing_class=policy.tokenizer,
            args=grpo_config(arguments, output_dir=str(checkpoints_path(run)), on_cpu=on_cpu),
            train_dataset=Dataset.from_list([rows[index] for index in order]),
            peft_config=lora_config(config),
            callbacks=callbacks,
        )
    except ConnectionError as error:
        raise InputError(str(error).strip(), hint="Start it by `trl vllm-serve`, or name it in --vllm.") from error
    # TRL puts the tokenizer's padding token there, but the embedding was made without: checkpoints must not name it.
    policy.model.config.get_text_config().pad_token_id = padding
    trainer.remove_callback(PrinterCallback)  # it prints each log entry to stdout
    return trainer


def _sample_heldout(
    phase: Literal["before", "after"],
    run: Path,
    config: TrainConfig,
    task: Task,
    policy: policies.TrainedPolicy,
    arguments: Mapping[str, Any],
    progress: ProgressCallback,
) -> None:
    path = heldout_path(run, phase)
    if not task.heldout or path.exists():
        return
    if shards_model():
        folder = checkpoint_path(run, 0 if phase == "before" else config.steps)
        with own_random_state():
            policy = policies.load_saved_policy(policy, config, folder, PartialState().device)
    small = sum(parameter.numel() for parameter in policy.model.parameters()) < SMALL_MODEL
    completions = policies.sample(
        policy,
        task.heldout,
        policies.HeldoutSampling(
            num_samples=config.heldout_samples,
            # as many as a step samples, so that memory suffices
            batch_size=max(config.num_prompts * config.group_size, _MIN_ROWS * small),
            max_completion_length=arguments["max_completion_length"],
            temperature=config.temperature,
            seed=config.seed,
        ),
        progress,
        label=f"held-out prompts {phase}",
    )
    policies.write_heldout(path, policy, task, completions)
