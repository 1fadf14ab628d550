"""Reference runs: TRL's GRPOTrainer with gradscope's advantages plugged in; and a recorder for anybody's GRPOTrainer.

A run (:func:`gradscope.training.train.train`) refuses what cannot work (``run_checks``), loads the task and
the policy (``tasks.load.load_task``, ``grpo.policy.load_trained_policy``), writes the manifest
(``run_checks.make_manifest``), and does what the folder still lacks (``run_training.fit``): weights before the
first update, held-out samples, the steps, held-out samples again.

A step (``grpo.trainer.RecordingTrainer``):

1. Choose the prompts: a row of ``tasks.task.prompt_order``, G times each.
2. Generate and score completions, in rounds (``sampling.make_sampling``): TRL generates, and calls the task's
   graders or the probability of the answer (``grpo.policy.RewardFunctions``).
3. Take the log-probabilities of the weights that sampled, which generation does not return (``_sampler_logprobs``).
4. Gather the rollouts of all processes (``processes.gather``).
5. Turn rewards into advantages (``advantages.online.OnlineAdvantage``), which replace TRL's.
6. Keep the rollouts aside (``grpo.trainer.Recorder.stage``).
7. Loss, backward, clipping and AdamW are TRL's own; ``grpo.trainer.NormMatch`` may scale the gradient before it.
8. Once the step is logged, write its rollouts and metrics (``Recorder.write``); every so often save a checkpoint, with
   the formulation's memory, and mark it complete (``checkpoints``).

``GradscopeCallback`` and ``RolloutRecorder`` are imported when first used, so that ``import gradscope.training`` loads
no third-party package.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from gradscope.gradients.engine_options import require_libraries

if TYPE_CHECKING:
    from gradscope.training.recording.recorder import GradscopeCallback, RolloutRecorder

__all__ = ["GradscopeCallback", "RolloutRecorder"]


def __getattr__(name: str) -> Any:
    """The recorder or its callback, imported on first use (PEP 562).

    Raises:
        AttributeError: There is no such name.
        MissingDependencyError: PyTorch, transformers, peft or TRL are not installed.
    """
    if name not in __all__:
        raise AttributeError(f"module 'gradscope.training' has no attribute {name!r}")
    require_libraries("trl")
    return getattr(import_module("gradscope.training.recording.recorder"), name)
