"""A model whose weights are sharded over all processes: how it is loaded, and how it differs from an unsharded one.

transformers distributes a model before it reads the weights (FSDP2, from 5.14.1 on), so no process ever holds all of
them. In a forward or backward pass each decoder layer is put together, used and let go; so every process must make
the same passes in the same order. Outside of a pass parameters are DTensors, each process's own slice.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import accumulate, pairwise
from typing import Any, cast

import torch
import transformers
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from gradscope.errors import MissingDependencyError, UsageError
from gradscope.gradients.processes import all_gather, num_connected

_SINCE = (5, 14, 1)  # the first transformers whose DistributedConfig knows ``fsdp_size``


def own_device(kind: str) -> torch.device:
    """The device of this process, ``cpu`` or ``cuda``; of several processes on a machine each has a GPU of its own.

    Raises:
        UsageError: There are more processes than GPUs, or a machine with GPUs is to compute on its CPUs.
    """
    if num_connected() == 1:
        return torch.device(kind)
    if kind == "cpu":
        if torch.cuda.is_available():
            raise UsageError(
                "Several processes share a model on the GPUs of a machine that has some.",
                hint="Leave out --device cpu, or hide the GPUs: CUDA_VISIBLE_DEVICES=''.",
            )
        return torch.device("cpu")
    index, num_gpus = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if index >= num_gpus:
        raise UsageError(
            f"Each process needs a GPU of its own, and this machine has {num_gpus}.",
            hint=f"Start {num_gpus} here: torchrun --nproc-per-node {num_gpus}.",
        )
    torch.cuda.set_device(index)
    return torch.device("cuda", index)


def sharding_arguments(model_class: Any, config: Any) -> dict[str, Any]:
    """Arguments of ``from_pretrained`` with which each process loads its part; none for a single process.

    Raises:
        MissingDependencyError: The installed transformers cannot distribute a model while it loads.
    """
    if num_connected() == 1:
        return {}
    _require_sharding(transformers.__version__)
    from transformers.distributed import DistributedConfig

    # every decoder layer by itself, whatever the architecture calls them; the rest is transformers' plan
    with torch.device("meta"):
        build = getattr(model_class, "from_config", None) or model_class._from_config
        skeleton = build(config)
    depth = getattr(config.get_text_config(), "num_hidden_layers", None)
    layers = next((n for n, m in skeleton.named_modules() if isinstance(m, nn.ModuleList) and len(m) == depth), None)
    plan = {f"{layers}.*": "free_full_weight"} if layers is not None else None
    return {"distributed_config": DistributedConfig(fsdp_size=num_connected(), fsdp_plan=plan)}


def _require_sharding(version: str) -> None:
    """Refuse a version of transformers that cannot shard models."""
    numbers = tuple(int(part) for part in version.split(".")[:3] if part.isdecimal())
    if numbers < _SINCE:
        raise MissingDependencyError(
            f"Several processes share a model from transformers 5.14.1 on, and {version} is installed.",
            hint="pip install --upgrade transformers, or call gradscope without torchrun.",
        )


def settle(model: nn.Module) -> None:
    """Make a freshly loaded model fit for hooks; an unsharded model stays as it is.

    The embedding, the last norm and the head stay together until the pass is over, for their hooks look at their
    weights. After a pass without gradients they are freed too, so that gradients switched on and off reach them.
    """
    roots = [module for module in model.modules() if isinstance(module, FSDPModule)]
    for module in roots:
        if any(True for _ in cast(nn.Module, module).parameters(recurse=False)):
            module.set_reshard_after_forward(False, recurse=False)
    if roots:
        root = cast(nn.Module, roots[0])
        root.register_forward_hook(lambda *_: None if torch.is_grad_enabled() else reshard(root))


def call_as_module(adapted: Any) -> None:
    """Let an adapted model call its base as a module: PEFT calls its forward alone, past the hooks of sharding."""
    tuner = adapted.base_model
    if isinstance(tuner.model, FSDPModule):
        tuner.forward = cast(nn.Module, tuner.model).__call__


def reshard(model: nn.Module) -> None:
    """Take a model's weights apart again, where any are together."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def start_of_pass(output: torch.Tensor) -> torch.Tensor:
    """A layer's replaced output; where weights are sharded a graph begins at it."""
    if num_connected() == 1 or not torch.is_grad_enabled():
        return output
    return output.requires_grad_(True).clone()  # the model may change it in place, as it may not the start of a graph


def end_of_pass(numbers: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
    """Extra outputs of a pass, unchanged; their backward pass begins at that output.

    FSDP looks there for a backward pass, at whose end it reduces gradients. Where nothing below the output layer has
    one, as where the layer's own weight is differentiated alone, it would see no pass, and the gradient would be lost.
    The output is computed from the tensor that :func:`start_of_pass` gave one of the layers.
    """
    if not (numbers.requires_grad and output.requires_grad):
        return numbers
    ended: torch.Tensor = _EndOfPass.apply(numbers, output)  # type: ignore[no-untyped-call]
    return ended


class _EndOfPass(torch.autograd.Function):
    """The first tensor; the second gets a gradient of zero."""

    @staticmethod
    def forward(ctx: Any, numbers: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(output)
        return numbers.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        (output,) = ctx.saved_tensors
        return grad, torch.zeros_like(output)


def full_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor gathered from the parts of all processes; an unsharded one as it is."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def local_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """This process's part of a tensor; all of an unsharded one."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def row_bounds(tensor: torch.Tensor) -> list[tuple[int, int]]:
    """First and last-plus-one index of each process's part of a tensor in parts, along its first dimension."""
    edges = [0, *accumulate(all_gather(len(local_tensor(tensor))))]
    assert edges[-1] == len(tensor), "outside of passes parameters are in parts"
    return list(pairwise(edges))


def is_distributed(tensor: torch.Tensor) -> bool:
    """Whether a parameter is sharded over the processes of this command, which gather it for a pass."""
    return num_connected() > 1 and isinstance(tensor, DTensor)


def is_sharding_hook(hook: Callable[..., Any]) -> bool:
    """Whether a module's hook is there to put its weights together and to let them go."""
    return str(getattr(hook, "__module__", "")).startswith(FSDPModule.__module__)


def original_type(module: nn.Module) -> type:
    """The class of a module, of which FSDP makes one of its own where the module is a unit."""
    return type(module).__mro__[2] if isinstance(module, FSDPModule) else type(module)


def require_one_process(subject: str) -> None:
    """Refuse a measurement that needs an unsharded model: "Rows of tokens are" is a ``subject``.

    Raises:
        UsageError: Several processes share the model.
    """
    if num_connected() > 1:
        raise UsageError(
            f"{subject} measured by one process, and {num_connected()} share this model.",
            hint="Call gradscope without torchrun, on a model that one device holds.",
        )
