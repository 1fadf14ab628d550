"""The middle of a run: initial weights, held-out samples, the training itself, held-out samples again.

Each part leaves a file once it is complete, so going on after an interruption means doing what is not there yet.
"""

from __future__ import annotations

import dataclasses
import difflib
import random
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from importlib import util
from pathlib import Path
from typing import Any, Literal

import numpy as np
from accelerate import PartialState
from datasets import Dataset
from transformers.trainer_callback import PrinterCallback

from gradscope.advantages.online import OnlineAdvantage, online_advantage
from gradscope.errors import InputError, MissingDependencyError, UsageError
from gradscope.machine.processes import num_processes, process_index
from gradscope.progress import ProgressCallback
from gradscope.rollouts.run_folder import checkpoint_path, checkpoints_path, heldout_path
from gradscope.training.checkpoints import (
    complete_checkpoints,
    mark_complete,
    recall_memory,
    resumable,
    rewind,
    write_memory,
)
from gradscope.training.config import TrainConfig
from gradscope.training.grpo.policy import (
    AnswerProbability,
    RewardFunctions,
    TrainedPolicy,
    load_saved_policy,
    sample,
    write_heldout,
)
from gradscope.training.grpo.recorder import Recorder
from gradscope.training.grpo.trainer import NormMatch, RecordingTrainer, StepCallback, TokenCritic
from gradscope.training.processes import gather, run_on_main, shards_model
from gradscope.training.sampling import make_sampling
from gradscope.training.tasks.task import Problem, Task, prompt_order

_FIXED: dict[str, Any] = {
    # The loss.
    "num_iterations": 1,
    "epsilon": 0.2,
    "epsilon_high": None,
    "delta": None,
    "importance_sampling_level": "token",
    "use_bias_correction_kl": True,
    "multi_objective_aggregation": "sum_then_normalize",
    "mask_truncated_completions": False,
    "top_entropy_quantile": 1.0,
    "sync_ref_model": False,
    "disable_dropout": True,  # else neither log-probabilities nor gradients could be recomputed
    # Bears only on what TRL logs: the advantages are replaced. In "group", frac_reward_zero_std counts groups.
    "scale_rewards": "group",
    # Sampling.
    "top_p": 1.0,
    "top_k": 0,
    "min_p": None,
    "repetition_penalty": 1.0,
    "shuffle_dataset": False,  # the rows come in our order: TRL's own does not survive a resume after the first epoch
    # The optimizer.
    "optim": "adamw_torch",
    "weight_decay": 0.0,
    "adam_beta1": 0.9,
    "adam_beta2": 0.999,
    "adam_epsilon": 1e-8,
    "lr_scheduler_type": "constant",
    "warmup_steps": 0,
    "gradient_checkpointing": False,
    "fp16": False,
    # The log.
    "logging_strategy": "steps",
    "logging_steps": 1,
    "logging_first_step": False,
    "logging_nan_inf_filter": False,
    "save_strategy": "steps",
    "save_total_limit": None,
    "eval_strategy": "no",
}

_SINCE_LATER: dict[str, Any] = {
    "entropy_coef": 0.0,
    "use_adaptive_entropy": False,
    "router_aux_loss_coef": 0.0,
    "cast_lm_head_to_fp32": False,
    "use_transformers_continuous_batching": False,
}
"""Options that younger releases of TRL know, set to what older ones do."""
_VLLM: dict[str, Any] = {
    "vllm_importance_sampling_correction": True,
    "vllm_importance_sampling_mode": "sequence_mask",
}
"""What bears on the loss where vLLM samples; a configuration may say otherwise."""


def trainer_arguments(config: TrainConfig, max_completion_length: int, num_processes: int = 1) -> dict[str, Any]:
    """The arguments of TRL's ``GRPOConfig`` that bear on the result, as plain JSON.

    Args:
        config: The configuration.
        max_completion_length: Most tokens of a completion.
        num_processes: Processes that a step's rollouts are divided among.

    Returns:
        Argument -> value.
    """
    rollouts = config.num_prompts * config.group_size
    sampler = {} if config.vllm is None else _VLLM | {f"vllm_{name}": value for name, value in config.vllm.items()}
    return (
        _FIXED
        | sampler
        | {
            "use_vllm": config.vllm is not None,
            "seed": config.seed,
            "data_seed": config.seed,
            "max_steps": config.steps,
            "save_steps": config.checkpoint_every,
            "num_generations": config.group_size,
            "generation_batch_size": rollouts,
            "per_device_train_batch_size": rollouts // config.gradient_accumulation_steps // num_processes,
            "gradient_accumulation_steps": config.gradient_accumulation_steps,
            "steps_per_generation": config.gradient_accumulation_steps,
            "max_completion_length": max_completion_length,
            "temperature": config.temperature,
            "learning_rate": config.learning_rate,
            "max_grad_norm": config.max_grad_norm,
            "beta": config.beta,
            "loss_type": config.loss_type,
            "bf16": config.dtype == "bfloat16",
            "reward_weights": [0.0, 1.0]
            if config.reward == "answer_probability"
            else None,  # the outcome counts nothing
        }
    )


def check_vllm(config: TrainConfig) -> None:
    """Refuse vLLM where it is not installed, and arguments of it that TRL does not have. TRL is installed.

    Raises:
        MissingDependencyError: There is no vLLM.
        UsageError: An argument has no counterpart in TRL's ``GRPOConfig``.
    """
    if config.vllm is None:
        return
    from trl import GRPOConfig

    known = [field.name.removeprefix("vllm_") for field in fields(GRPOConfig) if field.name.startswith("vllm_")]
    for name in config.vllm:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
            raise UsageError(
                f"TRL's GRPOConfig has no argument vllm_{name}.",
                hint=f"Did you mean {near[0]!r}?" if near else f"Known names: {', '.join(known)}.",
            )
    if util.find_spec("vllm") is None:
        raise MissingDependencyError(
            "--vllm samples by vLLM, which is not installed.",
            hint="pip install 'trl[vllm]', or leave out --vllm to sample by transformers.",
        )


def _grpo_config(arguments: Mapping[str, Any], *, output_dir: str, on_cpu: bool) -> Any:
    """TRL's ``GRPOConfig`` of :func:`trainer_arguments`, with checkpoints in ``output_dir``."""
    from trl import GRPOConfig

    trl_fields = {field.name for field in fields(GRPOConfig)}
    younger = {name: value for name, value in _SINCE_LATER.items() if name in trl_fields}
    # TRL takes only one of the two: a generation is for one update either way, and the record says how large it is.
    accepted = {name: value for name, value in arguments.items() if name != "generation_batch_size"}
    return GRPOConfig(
        output_dir=output_dir,
        use_cpu=on_cpu,
        report_to="none",
        disable_tqdm=True,
        dataloader_pin_memory=False,
        dataloader_num_workers=0,
        **accepted,
        **younger,
    )


def _lora_config(config: TrainConfig) -> Any:
    """A PEFT ``LoraConfig`` for all linear layers but the output layer; None where all weights are trained."""
    if config.lora_rank is None:
        return None
    from peft import LoraConfig

    return LoraConfig(
        r=config.lora_rank,
        lora_alpha=2 * config.lora_rank if config.lora_alpha is None else config.lora_alpha,
        lora_dropout=0.0,
        bias="none",
        target_modules="all-linear",
        task_type="CAUSAL_LM",
    )


@contextmanager
def quiet_libraries() -> Iterator[None]:
    """Only errors of transformers and datasets come through, and nothing of theirs is drawn."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import datasets
        from transformers.utils import logging

        verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
        dataset_bars = not datasets.are_progress_bars_disabled()
        logging.set_verbosity_error()
        logging.disable_progress_bar()
        datasets.disable_progress_bars()
        try:
            yield
        finally:
            logging.set_verbosity(verbosity)
            if bars:
                logging.enable_progress_bar()
            if dataset_bars:
                datasets.enable_progress_bars()


@contextmanager
def own_random_state() -> Iterator[None]:
    """What is seeded or drawn inside does not show outside."""
    import torch

    python, numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng():
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)


@contextmanager
def torch_threads(number: int | None) -> Iterator[None]:
    """Compute with so many threads; None leaves their number alone."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(number or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def fit(
    run: Path,
    config: TrainConfig,
    task: Task,
    policy: TrainedPolicy,
    arguments: Mapping[str, Any],
    *,
    on_cpu: bool,
    progress: ProgressCallback,
) -> None:
    """Do what a run folder, which has its manifest, still lacks.

    Args:
        run: The folder.
        config: The configuration.
        policy: The policy with the weights before the first update.
        arguments: The trainer's arguments.
        on_cpu: Whether to stay off the GPU.
        progress: Told after each step, and while held-out prompts are sampled.
    """
    # What is trained, and by what: TRL's trainer with our advantages, sampling and recorder in it.
    online = _trained_advantage(config, width=policy.model.config.get_text_config().hidden_size)
    trainer = _make_trainer(run, config, task, policy, arguments, online, on_cpu=on_cpu, progress=progress)
    policy = dataclasses.replace(policy, model=trainer.model)

    def hold_out(when: Literal["before", "after"]) -> None:
        run_on_main(lambda: _sample_heldout(when, run, config, task, policy, arguments, progress))

    # The weights before the first update, unless an earlier start has kept them.
    newest = run_on_main(lambda: _newest(run))
    if newest is None:
        trainer.save_model(str(checkpoint_path(run, 0)))
        run_on_main(lambda: mark_complete(run, 0))
    # The updates: all of them, those that are missing, or none.
    if not newest:
        hold_out("before")
        trainer.train()
    elif newest < config.steps:
        folder = resumable(run, newest, num_processes())
        if online.remembers:
            recall_memory(folder, online)
        trainer.train(resume_from_checkpoint=str(folder))
    elif not shards_model():
        trainer._load_from_checkpoint(str(checkpoint_path(run, newest)))
    # What the trained policy makes of prompts that it never saw.
    hold_out("after")


def _trained_advantage(config: TrainConfig, *, width: int) -> OnlineAdvantage:
    """The formulation that a run is trained with, nothing remembered yet; ``width`` is that of the hidden states."""
    if config.advantage == "token_critic":
        return TokenCritic(width, config.critic_learning_rate)
    return online_advantage(config.advantage)


def _newest(run: Path) -> int | None:
    """The newest complete checkpoint, with what lies after it taken away."""
    newest = max(complete_checkpoints(run), default=None)
    rewind(run, newest or 0)
    return newest


def _make_trainer(
    run: Path,
    config: TrainConfig,
    task: Task,
    policy: TrainedPolicy,
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
                write_memory(run, num_updates, online.memory)
            mark_complete(run, num_updates)

    callbacks: list[Any] = [StepCallback(on_step, on_checkpoint)]
    if config.match_grad_norm is not None:
        callbacks.append(NormMatch(config.match_grad_norm))
    order = prompt_order(len(task.train), num_prompts=config.num_prompts, steps=config.steps, seed=config.seed)
    rows = [_row(policy, problem) for problem in task.train]
    padding = getattr(policy.model.config.get_text_config(), "pad_token_id", None)
    try:
        trainer = RecordingTrainer(
            online=online,
            rewards=RewardFunctions(task, _answer_probability(config, task, policy, arguments)),
            recorder=recorder,
            sampling=make_sampling(config, rows, padding=policy.tokenizer.pad_token_id),
            model=policy.model,
            processing_class=policy.tokenizer,
            args=_grpo_config(arguments, output_dir=str(checkpoints_path(run)), on_cpu=on_cpu),
            train_dataset=Dataset.from_list([rows[index] for index in order]),
            peft_config=_lora_config(config),
            callbacks=callbacks,
        )
    except ConnectionError as error:
        raise InputError(str(error).strip(), hint="Start it by `trl vllm-serve`, or name it in --vllm.") from error
    # TRL puts the tokenizer's padding token there, but the embedding was made without: checkpoints must not name it.
    policy.model.config.get_text_config().pad_token_id = padding
    trainer.remove_callback(PrinterCallback)  # it prints each log entry to stdout
    return trainer


def _answer_probability(
    config: TrainConfig, task: Task, policy: TrainedPolicy, arguments: Mapping[str, Any]
) -> AnswerProbability | None:
    if config.reward != "answer_probability" or task.answer_mark is None:
        return None
    rows_at_once = arguments["per_device_train_batch_size"]
    return AnswerProbability(policy, task.answer_mark, temperature=config.temperature, rows_at_once=rows_at_once)


def _row(policy: TrainedPolicy, problem: Problem) -> dict[str, Any]:
    """A row of TRL's dataset; what TRL does not know comes back with the batch."""
    return {
        "prompt": policy.messages(problem) or problem.prompt,
        "answer": problem.answer,
        "prompt_id": problem.prompt_id,
        "text": problem.prompt,
    }


def _sample_heldout(
    when: Literal["before", "after"],
    run: Path,
    config: TrainConfig,
    task: Task,
    policy: TrainedPolicy,
    arguments: Mapping[str, Any],
    progress: ProgressCallback,
) -> None:
    path = heldout_path(run, when)
    if not task.heldout or path.exists():
        return
    if shards_model():
        folder = checkpoint_path(run, 0 if when == "before" else config.steps)
        with own_random_state():
            policy = load_saved_policy(policy, config, folder, PartialState().device)
    completions = sample(
        policy,
        task.heldout,
        num_samples=config.heldout_samples,
        rows_at_once=config.num_prompts * config.group_size,  # as many as a step samples, so what trains also fits
        max_completion_length=arguments["max_completion_length"],
        temperature=config.temperature,
        seed=config.seed,
        progress=progress,
        label=f"held-out prompts {when}",
    )
    write_heldout(path, policy, task, completions)
