"""What a loader raises names the folder, and running out of memory stays what it is."""

from __future__ import annotations

from pathlib import Path

import pytest
from huggingface_hub.errors import StrictDataclassError

from gradscope.errors import InputError
from gradscope.gradients.model.checked.loading import is_out_of_memory, opened_tensors, refusing


@pytest.mark.parametrize(
    "error",
    [ValueError("a\n b"), ZeroDivisionError("a b"), StrictDataclassError("a b"), RuntimeError("a b"), Exception("a b")],
)
def test_a_loader_that_gives_up_is_an_error_of_the_input(error: Exception) -> None:
    with (
        pytest.raises(InputError, match="folder does not load: a b") as caught,
        refusing("folder does not load", "Copy it."),
    ):
        raise error
    assert (caught.value.hint, caught.value.cause) == ("Copy it.", "weights_unreadable")


def test_an_error_without_words_says_its_kind() -> None:
    with pytest.raises(InputError, match="folder: AssertionError"), refusing("folder"):
        raise AssertionError


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory")])
def test_memory_that_ran_out_is_no_error_of_the_input(error: Exception) -> None:
    assert is_out_of_memory(error)
    with pytest.raises(type(error)), refusing("folder"):
        raise error


def test_a_file_of_tensors_that_is_none_is_named_with_a_next_step(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b'\x08\0\0\0\0\0\0\0{"a": 1}')
    file = tmp_path / "model.safetensors"
    with pytest.raises(InputError, match=r"model\.safetensors cannot be read: ") as caught, opened_tensors(file):
        pass
    assert caught.value.hint == "Save it again with save_pretrained()."
