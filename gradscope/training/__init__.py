"""Reference runs: TRL's GRPOTrainer with gradscope's advantages plugged in; and a recorder for anybody's GRPOTrainer.

``RolloutRecorder`` is imported when first used, so that ``import gradscope.training`` loads no third-party package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gradscope.training.recording.recorder import RolloutRecorder

__all__ = ["RolloutRecorder"]


def __getattr__(name: str) -> Any:
    """The recorder, imported on first use (PEP 562).

    Args:
        name: The attribute that was asked for.

    Returns:
        The class.

    Raises:
        AttributeError: There is no such name.
    """
    if name != "RolloutRecorder":
        raise AttributeError(f"module 'gradscope.training' has no attribute {name!r}")
    from gradscope.training.recording.recorder import RolloutRecorder

    return RolloutRecorder
