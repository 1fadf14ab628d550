"""train: one reference run from its configuration to its folder, resumable at every moment.

The folder's layout is that of :mod:`gradscope.rollouts.run_folder`. The same configuration gives the same rollouts and
weights on one machine, whether or not the run was interrupted, unless vLLM samples.
"""

from __future__ import annotations

import shlex
from contextlib import ExitStack, nullcontext, suppress
from importlib import util
from pathlib import Path
from typing import TYPE_CHECKING

from gradscope.advantages.formulation import is_in_file
from gradscope.advantages.registry import formulation
from gradscope.errors import GradscopeError, InputError, MissingDependencyError, UsageError
from gradscope.machine import num_processes, report_own_error
from gradscope.progress import Progress, ProgressCallback, reporter
from gradscope.rollouts.run_folder import base_model_path, heldout_path, manifest_path, read_manifest, write_manifest
from gradscope.training import processes
from gradscope.training.checkpoints import complete_checkpoints, remove_resume_files
from gradscope.training.config import EMBEDDED_MODEL, TrainConfig
from gradscope.training.libraries import check_vllm, trainer_arguments
from gradscope.training.run_checks import check_free, check_settings, check_task, require_separate_folders
from gradscope.training.tasks.load import load_task, max_completion_length
from gradscope.writing import naming, new_folder, one_writer

if TYPE_CHECKING:
    from gradscope.training.grpo.policy import TrainedPolicy
    from gradscope.training.tasks.task import Task

_FREE_ON_RESUME = ("output", "device")  # settings that may differ on resume; all others decide the result


def train(config: TrainConfig, *, resume: bool = False, force: bool = False, progress: Progress = False) -> Path:
    """Make a reference run: sample, score, update, record.

    Interrupted at any moment, it keeps every finished step, and with ``resume`` goes on from the newest complete
    checkpoint to the same rollouts and weights that it would have had. Returns the run's folder.

    Args:
        resume: Go on with the run in ``config.output``; a finished one is left as it is.
        force: Replace the run in ``config.output``.
        progress: True for a line on stderr, or a callback, called after each step and while held-out prompts are
            sampled.

    Raises:
        UsageError: ``resume`` and ``force`` together, or settings that do not go together.
        OutputBusyError: Another process trains in the folder.
    """
    progress = reporter(progress)
    if resume and force:
        raise UsageError("--resume goes on with a run and --force replaces it.", hint="Give one of the two.")
    check_settings(config)
    processes.check_launch(config.num_prompts * config.group_size, config.gradient_accumulation_steps)
    run = Path(config.output)
    if not resume and num_processes() == 1:  # TRL takes seconds to load
        _check_output(run, config, force=force)
    _require_trl()
    if num_processes() > 1:
        processes.start_group(on_cpu=_on_cpu(config.device))
    processes.run_everywhere(lambda: check_vllm(config))
    finished = resume and processes.run_on_main(lambda: is_finished(run, config))
    with ExitStack() as held:
        processes.run_on_main(lambda: held.enter_context(one_writer(run)))
        if finished:  # it may have been ended before it was tidied
            processes.run_on_main(lambda: remove_resume_files(run))
        else:
            if not resume:
                processes.run_on_main(lambda: _check_output(run, config, force=force))
            task = processes.run_everywhere(lambda: _load_task(config))
            _run(run, config, task, resume=resume, progress=progress)
    processes.end_group()
    return run


def _check_output(run: Path, config: TrainConfig, *, force: bool) -> None:
    check_free(run, force=force)
    require_separate_folders(run, config)


def _load_task(config: TrainConfig) -> Task:
    task = load_task(config)
    check_task(config, task)
    return task


def resume_command(run: Path) -> str:
    """The command by which an interrupted run goes on.

    >>> resume_command(Path("my-run"))
    'gradscope train --resume --config my-run/manifest.json --output my-run'
    """
    size = num_processes()
    program = ["gradscope"] if size == 1 else ["torchrun", "--nproc-per-node", str(size), "-m", "gradscope"]
    if processes.shards_model():
        program = [*processes.SHARDED_LAUNCH, "--num_processes", str(size), "-m", "gradscope"]
    arguments = ["--resume", "--config", str(manifest_path(run)), "--output", str(run)]
    with suppress(GradscopeError):  # without a manifest there is no formulation of the user's own to name again
        named = read_manifest(run).advantage
        arguments += ["--advantage", named] if is_in_file(named) else []
    return shlex.join([*program, "train", *arguments])


def _run(run: Path, config: TrainConfig, task: Task, *, resume: bool, progress: ProgressCallback) -> None:
    """Load and check everything, and only then touch the folder."""
    from gradscope.training.grpo.policy import check_prompts, load_trained_policy, most_answer_tokens, weights_dtype
    from gradscope.training.libraries import own_random_state, quiet_libraries, single_thread
    from gradscope.training.run_checks import make_manifest
    from gradscope.training.run_training import SMALL_MODEL, fit

    on_cpu = _on_cpu(config.device)
    with quiet_libraries(), own_random_state():
        length = max_completion_length(config)
        arguments = trainer_arguments(config, length, num_processes())

        def load() -> TrainedPolicy:
            policy = load_trained_policy(config.model, dtype=weights_dtype(config), chat=task.chat)
            problems = (*task.train, *task.heldout)
            check_prompts(policy, problems, length + most_answer_tokens(policy, task, problems, config))
            return policy

        def start() -> None:
            with new_folder(run) as folder:
                write_manifest(folder, make_manifest(config, arguments, (*task.notes, *policy.notes)))
                if config.model == EMBEDDED_MODEL and config.lora_rank is not None:
                    policy.model.save_pretrained(base_model_path(folder))  # the run can then move without its package
                    policy.tokenizer.save_pretrained(base_model_path(folder))

        policy = processes.run_everywhere(load)
        # From here on the folder is the run's: its manifest first, so that the rest can be resumed.
        if not resume:
            with naming(run):
                processes.run_on_main(start)
        small = sum(parameter.numel() for parameter in policy.model.parameters()) < SMALL_MODEL
        with single_thread() if on_cpu and small else nullcontext(), naming(run):
            try:
                fit(run, config, task, policy, arguments, on_cpu=on_cpu, progress=progress)
            except GradscopeError:
                report_own_error()  # from here on a process may meet an error alone
                raise
            except RuntimeError as error:
                if _NO_PROBABILITIES not in str(error):
                    raise
                report_own_error()
                raise InputError(
                    f"Training diverged: the weights of {run} give tokens probabilities that are no numbers.",
                    hint="Start another run with a smaller --learning-rate.",
                ) from error


_NO_PROBABILITIES = "probability tensor contains"  # what torch.multinomial says of NaN


def _require_trl() -> None:
    from gradscope.training.libraries import quiet_libraries

    if any(util.find_spec(package) is None for package in ("trl", "datasets")):
        raise MissingDependencyError(
            "Training needs TRL, which is not installed.", hint="pip install 'gradscope[train]'"
        )
    try:
        with quiet_libraries():
            from trl import GRPOTrainer  # noqa: F401  # it loads lazily; missing dependencies show only here
    except (ImportError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[-1]
        raise MissingDependencyError(
            f"TRL is installed but does not load: {reason}", hint="pip install --upgrade 'gradscope[train]'"
        ) from error


def is_finished(run: Path, config: TrainConfig) -> bool:
    """Whether every step, the last weights and the held-out samples are there, in a run's folder that has its manifest.

    Raises:
        UsageError: The run was made with other settings, or by another number of processes.
    """
    # A manifest of an older version lacks the settings that came later: it means their defaults.
    manifest = read_manifest(run)
    before, now = TrainConfig.from_json(manifest.config, origin=str(run)).to_json(), config.to_json()
    different = [name for name in now if name not in _FREE_ON_RESUME and before[name] != now[name]]
    if different:
        listed = ", ".join(f"{name} ({before[name]!r}, now {now[name]!r})" for name in different)
        raise UsageError(f"{run} was started with other settings: {listed}.", hint=resume_command(run))
    if manifest.advantage_digest not in (None, formulation(config.advantage).digest):
        raise UsageError(
            f"{config.advantage} has changed since {run} was started.",
            hint="Restore the file as it was, or start another run: --output",
        )
    started_by = config.num_prompts * config.group_size // config.gradient_accumulation_steps
    started_by //= int(manifest.trainer_arguments.get("per_device_train_batch_size", started_by))
    if started_by != num_processes():
        raise UsageError(
            f"{run} was made with {started_by} at a time, and the number of processes is {num_processes()}.",
            hint=f"Each process has a random state of its own: start {started_by}.",
        )
    sampled = config.heldout_prompts == 0 or heldout_path(run, "after").is_file()
    return sampled and max(complete_checkpoints(run), default=0) == config.steps


def _on_cpu(device: str) -> bool:
    """Whether the run stays off the GPU, with one GPU at most: more would need a launcher."""
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        raise InputError("There is no CUDA device.", hint="Leave out --device, or give --device cpu.")
    on_cpu = device == "cpu" or not torch.cuda.is_available()
    if not on_cpu and torch.cuda.device_count() > 1 and num_processes() == 1:
        raise UsageError(
            f"{torch.cuda.device_count()} GPUs are visible, and one process uses one.",
            hint="Use all by `accelerate launch --multi_gpu -m gradscope train ...`, or set CUDA_VISIBLE_DEVICES=0.",
        )
    return on_cpu
