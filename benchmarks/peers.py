"""Other people's per-sample gradients, brought to the same Gram matrix: what gradscope's engines are measured beside.

Each gives one row a rollout, of all parameters that it covers, and multiplies them as the engine ``loop`` does.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from workload import summed_logprobs

PACKAGES = {"vmap": "torch", "opacus": "opacus", "bergson": "bergson"}  # method -> package that it needs


def peer_work(method: str, model: Any, trainable: dict[str, Any], batch: Any) -> Callable[[], Any]:
    """One Gram matrix by a peer.

    Args:
        method: ``vmap``, ``opacus`` or ``bergson``.
        model: The model; for ``vmap`` with eager attention, for the fused kernels have no rule.
        trainable: Name -> parameter.
        batch: The rollouts, padded.

    Returns:
        What computes it, and returns the accumulator.
    """
    return {"vmap": _vmap, "opacus": _opacus, "bergson": _bergson}[method](model, trainable, batch)


def _accumulator(batch: Any) -> Any:
    import torch

    from gradscope.gradients.engines.loop import GramAccumulator

    return GramAccumulator(len(batch.rows), torch.device("cpu"))


def _vmap(model: Any, trainable: dict[str, Any], batch: Any) -> Callable[[], Any]:
    import torch
    from torch.func import functional_call, grad, vmap

    starts = torch.tensor([stop - num - 1 for (_, stop), num in zip(batch.spans, batch.num_completion, strict=True)])
    place = torch.arange(batch.length - 1)
    counted = (place >= starts[:, None]) & (place < torch.tensor([stop - 1 for _, stop in batch.spans])[:, None])
    first = int(starts.min())
    frozen = {name: p.detach() for name, p in model.named_parameters() if name not in trainable}

    def loss(parameters: dict[str, Any], ids: Any, mask: Any, positions: Any, inside: Any) -> Any:
        given = {
            "input_ids": ids[None],
            "attention_mask": mask[None],
            "position_ids": positions[None],
            "use_cache": False,
            "logits_to_keep": batch.length - first,
        }
        logits = functional_call(model, {**frozen, **parameters}, (), given).logits[0, :-1]
        chosen = logits.gather(1, ids[first + 1 :, None]).squeeze(1) - torch.logsumexp(logits, 1)
        return (chosen * inside[first:]).sum()

    rows_of = vmap(grad(loss), in_dims=(None, 0, 0, 0, 0))

    def work() -> Any:
        total = _accumulator(batch)
        parameters = {name: parameter.detach() for name, parameter in trainable.items()}
        rows = rows_of(parameters, batch.input_ids, batch.attention_mask, batch.position_ids, counted)
        for name in list(rows):
            total.add_rows(rows.pop(name).flatten(1))
        return total

    return work


def _opacus(model: Any, trainable: dict[str, Any], batch: Any) -> Callable[[], Any]:
    from opacus.grad_sample import GradSampleModule

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wrapped = GradSampleModule(model.train(), loss_reduction="sum")

    def work() -> Any:
        total = _accumulator(batch)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            summed_logprobs(wrapped, batch).backward()
        for parameter in trainable.values():
            total.add_rows(parameter.grad_sample.flatten(1))
            parameter.grad_sample = parameter.grad = None
        return total

    return work


def _bergson(model: Any, trainable: dict[str, Any], batch: Any) -> Callable[[], Any]:
    from bergson.collector.collector import HookCollectorBase

    owners = {name.removesuffix(".weight") for name in trainable if name.endswith(".weight")}
    found: dict[str, Any] = {}

    class Rows(HookCollectorBase):  # type: ignore[misc]
        """Keeps the rows of every layer that bergson knows."""

        def setup(self) -> None:
            """Nothing to prepare."""

        def teardown(self) -> None:
            """Nothing to write."""

        def process_batch(self, indices: list[int], **_: Any) -> None:
            """Nothing to do after a batch."""

        def backward_hook(self, module: Any, g: Any) -> None:
            """Keep one layer's rows."""
            found[module._name] = self._compute_gradient(module, g)

    known = set(Rows.discover_targets(model)) & owners
    collector = Rows(model=model, target_modules=known)

    def work() -> Any:
        total = _accumulator(batch)
        with collector:
            summed_logprobs(model, batch).backward()
        for name in list(found):
            total.add_rows(found.pop(name))
        for parameter in trainable.values():
            parameter.grad = None
        return total

    return work
