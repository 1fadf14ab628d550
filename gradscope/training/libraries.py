"""Arguments of TRL and PEFT, and how a run restores them and its process.

Nothing heavy is imported before it is used: a missing library is then reported in a sentence.
"""

from __future__ import annotations

import difflib
import random
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from importlib import util
from typing import Any

import numpy as np

from gradscope.errors import MissingDependencyError, UsageError
from gradscope.training.config import TrainConfig

# A run's configuration in TRL's words: every option that bears on the result is written out, none left to a default.
#
# Defaults move between TRL's releases, and a run must mean the same under each. The same mapping goes into the
# manifest, where a diagnosis finds the settings of the loss.
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
    # Bears only on TRL's own metrics: the advantages are replaced. In "group", frac_reward_zero_std counts groups.
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
"""Options of newer releases of TRL, set to the behavior of older ones."""
_VLLM: dict[str, Any] = {"vllm_importance_sampling_correction": True, "vllm_importance_sampling_mode": "sequence_mask"}
"""Options that bear on the loss where vLLM samples; a configuration may override them."""


def trainer_arguments(config: TrainConfig, max_completion_length: int, num_processes: int = 1) -> dict[str, Any]:
    """The arguments of TRL's ``GRPOConfig`` that bear on the result, as plain JSON."""
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

    names = [field.name.removeprefix("vllm_") for field in fields(GRPOConfig) if field.name.startswith("vllm_")]
    for name in config.vllm:
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
            raise UsageError(
                f"TRL's GRPOConfig has no argument vllm_{name}.",
                hint=f"Did you mean {near[0]!r}?" if near else f"Known names: {', '.join(names)}.",
            )
    if util.find_spec("vllm") is None:
        raise MissingDependencyError(
            "--vllm samples by vLLM, which is not installed.",
            hint="pip install 'trl[vllm]', or leave out --vllm to sample by transformers.",
        )


def grpo_config(arguments: Mapping[str, Any], *, output_dir: str, on_cpu: bool) -> Any:
    """TRL's ``GRPOConfig`` of :func:`trainer_arguments`, with checkpoints in ``output_dir``."""
    from trl import GRPOConfig

    trl_fields = {field.name for field in fields(GRPOConfig)}
    newer = {name: value for name, value in _SINCE_LATER.items() if name in trl_fields}
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
        **newer,
    )


def lora_config(config: TrainConfig) -> Any:
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
    """Restore the state of all random generators at the end."""
    import torch

    python, numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng():
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)


@contextmanager
def single_thread() -> Iterator[None]:
    """Let PyTorch compute with one thread."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
