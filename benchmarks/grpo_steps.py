"""Three real steps of TRL's GRPO on random completions, recorded, and what `replay` makes of the norms that it logged.

Nothing is generated: the completions are drawn, so that a class whose cache is broken is trained all the same.
"""

import contextlib
import io
import logging
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.strangers.texts import TokenizerChoice, build_tokenizer
from benchmarks.tiny_models import EOS, FIRST_TEXT, SPECIAL, VOCAB

STEPS = 3
LIMIT = 8  # most tokens of a completion


def replayed_steps(folder: Path, model: Any) -> str:
    """Train a model or adapter in memory, replay its run, and say in a few words what came out."""
    from gradscope.diagnostics.replay.measure import replay_run
    from gradscope.errors import GradscopeError
    from gradscope.rollouts.read_options import ReadOptions

    logging.disable(logging.WARNING)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            _train(folder, model.float())
    except Exception as error:
        return f"TRL fails: {_short(error)}"
    try:
        base = folder / "base"
        report = replay_run(folder / "run", read=ReadOptions(model=str(base)) if base.is_dir() else None)
    except GradscopeError as error:
        return f"refused: {_short(error)}"
    except Exception as error:
        return f"crash: {type(error).__name__}: {_short(error)}"
    errors = [step.relative_error["grad_norm"] for step in report.steps if "grad_norm" in step.relative_error]
    cause = next((step.cause for step in report.steps if step.verdict == report.verdict and step.cause), "")
    largest = f", {max(errors):.0e}" if errors else ""
    if report.verdict == "match":
        return f"{report.headline}{largest}"
    own = "; TRL's fused head is not the model's" if report.verdict == "mismatch" and not has_own_head(model) else ""
    return f"{report.headline}{largest}{own}: {cause[:200]}".replace(f"{folder}/", "").replace("|", "/")


def has_own_head(model: Any) -> bool:
    """Whether TRL's head (the last hidden state, the output embedding, a scale and a soft cap) is the model's own."""
    import torch
    from trl.trainer.utils import add_fused_lm_head

    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    ids = torch.arange(FIRST_TEXT, FIRST_TEXT + 6).unsqueeze(0)
    with torch.no_grad():
        base.forward = type(base).forward.__get__(base)
        own = torch.log_softmax(model(input_ids=ids, use_cache=False).logits[0, :-1].float(), -1)
        add_fused_lm_head(base)
        fused = model(input_ids=ids, labels=ids, fused_lm_head=True).log_probs[0]
    return torch.allclose(own.gather(1, ids[0, 1:, None])[:, 0], fused.float(), atol=1e-4)


def _train(folder: Path, model: Any) -> None:
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    from gradscope.training import RolloutRecorder

    rng = np.random.default_rng(0)

    def draw(prompts: list[Any], trainer: Any) -> dict[str, Any]:
        lengths = rng.integers(2, LIMIT + 1, len(prompts))
        completions = [rng.integers(FIRST_TEXT, SPECIAL, length).tolist() for length in lengths]
        completions = [ids if len(ids) == LIMIT else [*ids, EOS] for ids in completions]
        ids = trainer.processing_class(prompts)["input_ids"]
        return {"prompt_ids": ids, "completion_ids": completions, "logprobs": [[0.0] * len(c) for c in completions]}

    def reward(completion_ids: list[list[int]], **_: Any) -> list[float]:
        return [float(np.mean(ids)) for ids in completion_ids]

    prompts = [" ".join(f"w{i}" for i in rng.integers(FIRST_TEXT, SPECIAL, rng.integers(3, 10))) for _ in range(12)]
    arguments = GRPOConfig(
        output_dir=str(folder / "trl"),
        per_device_train_batch_size=8,
        num_generations=2,
        max_completion_length=LIMIT,
        max_steps=STEPS,
        learning_rate=1e-3,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        bf16=False,
        use_cpu=True,
        gradient_checkpointing=False,
        router_aux_loss_coef=0.0,
        disable_tqdm=True,
    )
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=reward,
        args=arguments,
        train_dataset=Dataset.from_dict({"prompt": prompts}),
        processing_class=build_tokenizer(TokenizerChoice(size=VOCAB)),
        rollout_func=draw,
    )
    RolloutRecorder(trainer, folder / "run", weights_every=1)
    trainer.train()


def _short(error: BaseException) -> str:
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"[:160].replace("|", "/")
