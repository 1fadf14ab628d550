"""A small run of TRL as its user has it: output_dir with completions, checkpoints and model card, and the arguments."""

import json
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from gradscope.diagnostics.replay.measure import replay_run
from gradscope.results.norms import ReplayReport
from gradscope.rollouts.read_options import ReadOptions
from tests.gradients.end_to_end.test_trl_losses import MODEL, TINY_TRAINING, tokenizer
from tests.gradients.models import tiny_model

ARGUMENTS = {
    **TINY_TRAINING,
    "max_steps": 4,
    "learning_rate": 0.02,
    "log_completions": True,
    "save_strategy": "steps",
    "save_steps": 1,
    "seed": 0,
}


def digit_sum(completion_ids: Sequence[Sequence[int]], log_extra: Callable[..., None], **_: Any) -> list[float]:
    """A reward that also logs exact ids."""
    log_extra("completion_ids", [list(map(int, ids)) for ids in completion_ids])
    return [float(sum(ids) % 3) for ids in completion_ids]


def trl_output(
    folder: Path,
    rewards: Any = digit_sum,
    peft_config: Any = None,
    model: Any = None,
    resumed: int = 0,
    start: Any = None,
    **values: Any,
) -> Path:
    """Train, where asked in two goes; the folder gets ``initial`` (a tiny Llama), ``run``, ``args.json``."""
    trl, datasets = pytest.importorskip("trl"), pytest.importorskip("datasets")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        (start or tiny_model(MODEL)).save_pretrained(folder / "initial")
        arguments = {**ARGUMENTS, **values}
        if model is not None:
            arguments.pop("model_init_kwargs")
        # w1 is a special token, and found within w10 too
        prompts = [" ".join(f"w{3 + (i + k) % 7}" for k in range(2 + i % 3)) for i in range(12)]
        for last in (resumed, arguments["max_steps"])[not resumed :]:
            args = trl.GRPOConfig(output_dir=str(folder / "run"), **{**arguments, "max_steps": last})
            trainer = trl.GRPOTrainer(
                model=model or str(folder / "initial"),
                reward_funcs=rewards,
                args=args,
                train_dataset=datasets.Dataset.from_dict({"prompt": prompts}),
                eval_dataset=datasets.Dataset.from_dict({"prompt": prompts[:1]}),
                processing_class=tokenizer(),
                peft_config=peft_config,
            )
            if peft_config is not None:
                trainer.model.save_pretrained(folder / "adapter")
            trainer.train(resume_from_checkpoint=bool(resumed and last != resumed))
    args_by_name = {name: value for name, value in args.to_dict().items() if not isinstance(value, type)}
    (folder / "args.json").write_text(json.dumps({"args": args_by_name}, default=str))
    return folder


def replayed(folder: Path, *, initial: str = "initial") -> ReplayReport:
    """What replay says of it."""
    read = ReadOptions(trainer_args=folder / "args.json", initial_weights=folder / initial)
    return replay_run(folder / "run", read=read)


def verdicts(report: ReplayReport, name: str) -> list[str]:
    """The verdict on a quantity at each step."""
    return [quantity.verdict for step in report.steps for quantity in step.quantities if quantity.name == name]
