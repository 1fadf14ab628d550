"""Makes a case's run with TRL's own trainer, as a script of a stranger would."""

import json
import shutil
from importlib import import_module
from typing import Any

import torch

from benchmarks.strangers.case import Case, Folders
from benchmarks.strangers.models import adapter_config, build
from benchmarks.strangers.texts import TEMPLATES, build_tokenizer, by_ids, prompts

COMMON: dict[str, Any] = {
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 2,
    "num_generations": 4,
    "max_completion_length": 8,
    "max_steps": 2,
    "learning_rate": 1e-2,
    "logging_steps": 1,
    "save_strategy": "steps",
    "save_steps": 1,
    "log_completions": True,
    "bf16": False,
    "gradient_checkpointing": False,
    "report_to": [],
    "use_cpu": True,
    "disable_tqdm": True,
    "seed": 5,
}


def make_run(case: Case, folders: Folders) -> None:
    """Trains, unless the folder is complete from an earlier call."""
    if folders.truth.exists():
        return
    shutil.rmtree(folders.root, ignore_errors=True)
    folders.root.mkdir(parents=True)
    tokenizer = build_tokenizer(case.tokenizer)
    build(**case.model).save_pretrained(folders.base)
    tokenizer.save_pretrained(folders.base)
    trainer = _trainer(case, folders, tokenizer)
    truth = _truth(trainer)
    if case.saved != "nothing":
        trainer.save_model(str(folders.initial))
    _train(case, folders, trainer)
    arguments = {**trainer.args.to_dict(), **case.config_change}
    folders.arguments.write_text(json.dumps(arguments, default=str))
    if case.spoil:
        case.spoil(folders)
    folders.truth.write_text(json.dumps(truth, default=str))


def _trainer(case: Case, folders: Folders, tokenizer: Any) -> Any:
    """The trainer as the script constructs it."""
    from datasets import Dataset
    from transformers import AutoModelForCausalLM

    if case.tokenizer.script_template:
        tokenizer.chat_template = TEMPLATES[case.tokenizer.script_template]
    arguments = {**COMMON, **case.args}
    dataset = Dataset.from_dict({"prompt": list(case.prompts) or prompts(case.tokenizer)})
    model: Any = str(folders.base)
    if case.prepare:
        loaded = AutoModelForCausalLM.from_pretrained(folders.base, dtype=getattr(torch, case.dtype))
        model = case.prepare(loaded, folders)
    else:
        arguments.setdefault("model_init_kwargs", {"dtype": case.dtype})
    name, module = case.trainer_class
    trainer, config = (getattr(import_module(module), f"{name}{part}") for part in ("Trainer", "Config"))
    return trainer(
        model=model,
        reward_funcs=list(case.rewards) or [by_ids],
        args=config(output_dir=str(folders.run), **arguments),
        train_dataset=dataset,
        eval_dataset=dataset.select(range(2)) if "eval_strategy" in arguments else None,
        processing_class=tokenizer,
        peft_config=adapter_config(**case.peft) if case.peft is not None else None,
        **case.trainer,
    )


def _train(case: Case, folders: Folders, trainer: Any) -> None:
    """All updates, by a second job from where the first one ended."""
    from transformers import TrainerCallback

    class Stop(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            control.should_training_stop = state.global_step >= case.stops_after

    if case.stops_after:
        trainer.add_callback(Stop())
    trainer.train()
    if case.stops_after:
        second = _trainer(case, folders, build_tokenizer(case.tokenizer))
        second.train(resume_from_checkpoint=str(folders.checkpoint(case.stops_after)))


def _truth(trainer: Any) -> dict[str, Any]:
    """What the model was like when training started, for the oracle alone."""
    model = trainer.model
    embeddings = {
        name: getattr(module, "padding_idx", None)
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Embedding)
    }
    tokenizer = trainer.processing_class
    ends = getattr(trainer, "eos_token_ids", [tokenizer.eos_token_id])  # before TRL 1.15 the tokenizer's alone
    return {
        "padding": embeddings,
        "trained": [name for name, parameter in model.named_parameters() if parameter.requires_grad],
        "router_coefficient": trainer.router_aux_loss_coef if getattr(trainer, "aux_loss_enabled", False) else 0.0,
        "ends": [*ends, tokenizer.pad_token_id],
        "arguments": trainer.args.to_dict(),
    }
