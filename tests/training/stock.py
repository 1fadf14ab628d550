"""Somebody's own script: a stock GRPOTrainer on the embedded model, as small as can be, and what is recorded of it."""

from pathlib import Path
from typing import Any

from gradscope.results.norms import ReplayReport
from gradscope.training import RolloutRecorder
from gradscope.training.grpo.policy import EMBEDDED_FOLDER
from gradscope.training.libraries import own_random_state, quiet_libraries
from gradscope.training.tasks.running_sums import grade_answer, make_problems


def answer(completions: list[Any], answer: list[str], **_: Any) -> list[float | None]:
    return [grade_answer(text, right) for text, right in zip(completions, answer, strict=True)]


def graded(completions: list[Any], answer: list[str], **_: Any) -> list[float | None]:
    """Hardly ever the same twice in a group, so that every step has a gradient."""
    return [grade_answer(text, right) - 0.01 * len(text) for text, right in zip(completions, answer, strict=True)]


def short(completions: list[Any], **_: Any) -> list[float | None]:
    """Nothing to say about every third completion."""
    return [None if row % 3 == 0 else -0.1 * len(text) for row, text in enumerate(completions)]


def stock_trainer(output: Path, *, rewards: Any = graded, trainer: Any = None, **arguments: Any) -> Any:
    """A trainer of four prompts, four completions each, one update a generation."""
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.trainer_callback import PrinterCallback
    from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer

    model, kind = arguments.pop("model", EMBEDDED_FOLDER), RLOOTrainer if trainer == "rloo" else trainer or GRPOTrainer
    rows = arguments.pop("rows", None) or [
        {"prompt": problem.prompt, "answer": problem.answer} for problem in make_problems(32, seed=0, heldout=False)
    ]
    rest = {name: arguments.pop(name) for name in ("peft_config", "eval_dataset") if name in arguments}
    settings: dict[str, Any] = {
        "max_steps": 3,
        "per_device_train_batch_size": 16,
        "num_generations": 4,
        "max_completion_length": 14,
        "learning_rate": 3e-4,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
        "bf16": False,
        "dataloader_pin_memory": False,
        "gradient_checkpointing": False,
    }
    with quiet_libraries(), own_random_state():
        made = kind(
            model=AutoModelForCausalLM.from_pretrained(model),
            processing_class=AutoTokenizer.from_pretrained(model, padding_side="left"),
            reward_funcs=rewards,
            args=(RLOOConfig if kind is RLOOTrainer else GRPOConfig)(output_dir=str(output), **settings | arguments),
            train_dataset=Dataset.from_list(rows),
            **rest,
        )
    made.create_model_card = lambda *_, **__: None
    made.remove_callback(PrinterCallback)
    return made


def train(trainer: Any, **arguments: Any) -> dict[str, Any]:
    """Train from the seed of the settings, and return the weights."""
    from accelerate.utils import set_seed

    with quiet_libraries(), own_random_state():
        set_seed(trainer.args.seed, device_specific=True)
        trainer.train(**arguments)
    return {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}


def record(tmp_path: Path, *, weights_every: int | None = 1, **arguments: Any) -> tuple[Any, Path]:
    """A stock trainer that was trained under the recorder, and the run."""
    remaining = {name: arguments.pop(name) for name in ("gradients_every", "success_threshold") if name in arguments}
    trainer = stock_trainer(tmp_path / "trl", **arguments)
    RolloutRecorder(trainer, tmp_path / "run", weights_every=weights_every, **remaining)
    train(trainer)
    return trainer, tmp_path / "run"


def assert_reproduced(report: ReplayReport, steps: tuple[int, ...] = (1, 2, 3)) -> None:
    assert tuple(step.step for step in report.steps) == steps
    assert report.verdict == "match"
    assert all(step.logged["grad_norm"] > 0.001 for step in report.steps)
    assert all(step.relative_error["grad_norm"] < 1e-5 for step in report.steps)
