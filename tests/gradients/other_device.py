"""A second device on the CPU: tensors that say they are elsewhere, hold real numbers, and refuse to meet local ones.

A GPU refuses to add a tensor of its own to one of the CPU, and makes the program wait whenever it asks for a number.
Neither shows on a machine without one. Here an operation on both devices raises as CUDA does, the numbers come out as
they are, and each wait is written down with the function that caused it.

The device is called ``lazy`` because PyTorch knows the name, runs its backward passes in the calling thread, and has
nothing behind it that could answer in our place.
"""

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import gradscope

REMOTE = torch.device("lazy")
PACKAGE = Path(gradscope.__file__).parent

ASKS = {"_local_scalar_dense", "equal", "is_nonzero", "nonzero", "masked_select", "_unique2", "unique_dim", "bincount"}
"""Operations whose answer, or the size of whose answer, the program waits for."""
INDEXED = {"index", "index_put", "index_put_", "_index_put_impl_"}
"""Those that take indices from the CPU, and copy them; an index of booleans is counted first."""
MOVES = {"_to_copy", "copy_", "_copy_from"}


class Elsewhere(torch.Tensor):
    """A tensor on the other device."""

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Any:
        return torch.Tensor._make_wrapper_subclass(
            cls,
            inner.shape,
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=REMOTE,
        )

    def __init__(self, inner: torch.Tensor) -> None:
        self.inner = inner

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"Elsewhere({tuple(self.shape)}, {self.dtype})"

    def data_ptr(self) -> int:
        return self.inner.data_ptr()

    @property
    def data(self) -> Any:
        return self.detach()

    @data.setter
    def data(self, value: Any) -> None:
        torch.Tensor.data.__set__(self, value)  # type: ignore[attr-defined]
        self.inner = value.inner

    def tolist(self) -> Any:
        return self.cpu().tolist()

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(f"{func} ran on the other device outside of its mode")


class OtherDevice(TorchDispatchMode):
    """Runs the operations of the other device while it is on.

    Attributes:
        waits: How often the program waited for it, by the function of ours that made it wait.
    """

    def __init__(self) -> None:
        super().__init__()
        self.waits: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = dict(kwargs or {}), func._schema.name.removeprefix("aten::")
        tensors: list[torch.Tensor] = []
        _mapped((*args, *kwargs.values()), tensors.append)
        remote = any(isinstance(tensor, Elsewhere) for tensor in tensors)
        device = kwargs.get("device")
        if device is not None:
            kwargs["device"] = torch.device("cpu")
        if name in MOVES:
            goes = torch.device(device).type == REMOTE.type if device is not None else isinstance(args[0], Elsewhere)
            comes = isinstance(args[1 if name == "copy_" else 0], Elsewhere)
            waits = goes != comes and args[0].numel() > 0
            later = kwargs.get("non_blocking") or (name == "copy_" and args[2:3] == (True,))
            if waits and later and not goes:
                raise RuntimeError(f"{_caller()} copies to the CPU and goes on before the numbers have come")
            if waits and not later:
                self._wait("up" if goes else "down")
            remote = goes
        elif remote:
            self._require_one_device(name, tensors)
            if name in ASKS:
                self._wait("asked")
            if name in INDEXED:
                indices = [index for index in args[1] if index is not None]
                if any(index.dtype in (torch.bool, torch.uint8) for index in indices):
                    self._wait("asked")
                if any(not isinstance(index, Elsewhere) for index in indices):
                    self._wait("up")
        elif device is not None:
            remote = torch.device(device).type == REMOTE.type
        if name == "histc":  # counts whole numbers on a GPU, and only fractions here
            args = (args[0].inner.float(), *args[1:])
        result = func(*_mapped(args, _inner), **{name: _mapped(value, _inner) for name, value in kwargs.items()})
        if name in ("_local_scalar_dense", "equal"):
            return result
        if not remote:
            return result
        outer = {id(tensor.inner): tensor for tensor in tensors if isinstance(tensor, Elsewhere)}
        return _mapped(result, lambda tensor: outer.get(id(tensor)) if id(tensor) in outer else Elsewhere(tensor))

    def _require_one_device(self, name: str, tensors: list[torch.Tensor]) -> None:
        local = [tensor for tensor in tensors if not isinstance(tensor, Elsewhere) and tensor.dim() > 0]
        if local and name not in INDEXED:
            shapes = [tuple(tensor.shape) for tensor in local]
            raise RuntimeError(f"{name}: expected all tensors to be on the same device, but {shapes} are on the CPU")

    def _wait(self, kind: str) -> None:
        self.waits[f"{kind}: {_caller()}"] += 1


class _Constructors(TorchFunctionMode):
    """What PyTorch makes of plain numbers by itself, without asking the mode of the device."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func in (torch.tensor, torch.as_tensor) and torch.device(kwargs.get("device") or "cpu") == REMOTE:
            return func(*args, **kwargs | {"device": "cpu"}).to(REMOTE)
        if func in (torch.Tensor.__setitem__, torch.Tensor.__getitem__) and isinstance(args[0], Elsewhere):
            tensor, index, *values = args
            index = tuple(map(_index, index)) if isinstance(index, tuple) else _index(index)
            if values and isinstance(values[0], int | float):
                values = [torch.full((), values[0], dtype=tensor.dtype, device=REMOTE)]
            return func(tensor, index, *values)
        return func(*args, **kwargs)


def _index(part: Any) -> Any:
    """A part of an index; a list of places is copied to the device."""
    return torch.tensor(list(part)).to(REMOTE) if isinstance(part, list | range) else part


def _mapped(value: Any, change: Callable[[torch.Tensor], Any]) -> Any:
    """What an operation takes or gives with each tensor changed; PyTorch's trees would take half of all the time."""
    if isinstance(value, torch.Tensor):
        return change(value)
    return type(value)(_mapped(part, change) for part in value) if isinstance(value, list | tuple) else value


def _inner(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.inner if isinstance(tensor, Elsewhere) else tensor


def _caller() -> str:
    """The innermost function of ours on the stack, or of the library that a model is from."""
    frame = sys._getframe(2)
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(PACKAGE):
            return f"{path.relative_to(PACKAGE).with_suffix('')}.{frame.f_code.co_name}"
        if {"transformers", "peft"} & set(path.parts):
            return f"{path.stem}.{frame.f_code.co_name}"
        frame = frame.f_back
    return "?"


def moved(model: Any) -> Any:
    """A model with its parameters and buffers on the other device, tied ones still tied."""
    done: dict[torch.Tensor, Any] = {}
    for module in model.modules():
        for held in (module._parameters, module._buffers):
            for name, tensor in held.items():
                if tensor is not None and tensor not in done:
                    remote: Any = Elsewhere(tensor.detach())
                    is_parameter = isinstance(tensor, nn.Parameter)
                    done[tensor] = nn.Parameter(remote, tensor.requires_grad) if is_parameter else remote
                held[name] = None if tensor is None else done[tensor]
    return model


@contextmanager
def other_device() -> Iterator[OtherDevice]:
    """Let the other device exist for a while."""
    # where PyTorch looks for the state of a device's random numbers, of which this one has none
    vars(torch)[REMOTE.type] = ModuleType(REMOTE.type)
    try:
        with _Constructors(), OtherDevice() as mode:
            yield mode
    finally:
        del vars(torch)[REMOTE.type]
