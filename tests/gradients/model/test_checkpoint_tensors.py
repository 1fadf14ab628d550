"""Weight matrices of checkpoints, from safetensors alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from gradscope.diagnostics.rank.weights.updates import measure_weight_updates
from gradscope.errors import InputError
from gradscope.gradients.model.checkpoint_tensors import changed_in_bfloat16, open_checkpoint
from gradscope.progress import no_progress
from tests.diagnostics.rank.weights.test_updates import NAME, adapter


def test_a_transposed_adapter_is_turned(tmp_path: Path) -> None:
    ref = adapter(tmp_path / "a", 1, torch.ones(6, 2), torch.ones(2, 4), fan_in_fan_out=True)
    assert open_checkpoint(ref).matrices[NAME]().shape == (4, 6)


@pytest.mark.parametrize("config", [{"use_dora": True}, {"rank_pattern": {"q_proj": 4}}, {"peft_type": "IA3"}])
def test_an_adapter_of_another_kind_is_refused(tmp_path: Path, config: dict[str, object]) -> None:
    refs = [adapter(tmp_path / f"a{t}", t, torch.ones(6, 2), torch.ones(2, 4), **config) for t in (0, 5)]
    with pytest.raises(InputError, match="this adapter is not one product of two factors"):
        measure_weight_updates(refs, no_progress)


def test_an_adapter_with_other_tensors_is_refused(tmp_path: Path) -> None:
    ref = adapter(tmp_path / "a", 1, torch.ones(6, 2), torch.ones(2, 4))
    save_file({"extra.weight": torch.ones(2, 2)}, ref.path / "adapter_model.safetensors")
    with pytest.raises(InputError, match=r"extra\.weight is no factor of a LoRA adapter"):
        open_checkpoint(ref)


def test_bfloat16_sees_large_changes_alone() -> None:
    before = np.array([[1.0, 1.0]])
    assert changed_in_bfloat16(before, before + np.array([[1e-4, 1e-1]])) == 0.5
