"""Every causal-LM class that transformers ships, tiny: are gradscope's Gram matrices those of plain autograd?

`python -m benchmarks.architectures` prints the table of docs/research/architectures_2.csv: one step of ragged rollouts,
by the engines `stream` and `loop`, beside one float64 backward a rollout of the forward pass as the trainer runs it.
With `--train` each class also makes three steps of TRL's GRPO, and `replay` recomputes the norms that it logged.
`--only qwen3 gpt2` names model types.
"""

from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.compared_models import Subject, run
from benchmarks.tiny_models import tiny_model


def subjects() -> list[Subject]:
    """Every model type behind AutoModelForCausalLM."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CLASSES

    return [
        Subject(name=model_type, model=name, save=partial(_save, model_type)) for model_type, name in CLASSES.items()
    ]


def _save(model_type: str, folder: Path) -> Any:
    model = tiny_model(model_type)
    model.save_pretrained(folder / "model")
    return type(model).from_pretrained(folder / "model")


if __name__ == "__main__":
    run(subjects(), "model type", str(__doc__))
