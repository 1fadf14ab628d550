"""Gradient rows by one float64 backward pass a rollout through the plain model, with no code of the package.

Shapes: R rollouts, T tokens of a completion, P parameters.
"""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from msgspec import Struct

Layout = Literal["trainer", "compact"]
"""As the trainer pads (prompts on the left, completions on the right, no positions given), or each rollout alone."""


class Sampled(Struct, frozen=True, kw_only=True):
    """One rollout's token ids."""

    prompt: tuple[int, ...]  # the prompt's
    completion: tuple[int, ...]  # the completion's


class Gram(Struct, frozen=True, kw_only=True):
    """Inner products of the rows, [R, R]."""

    matrix: np.ndarray  # the matrix
    dtype: str  # float64, or float32 where the model runs in no other


def ragged(low: int, high: int) -> list[Sampled]:
    """Four groups of two rollouts of unequal length behind one prompt; their ids are from ``low`` to below ``high``."""
    rng = np.random.default_rng(0)

    def draw(shortest: int, longest: int) -> tuple[int, ...]:
        return tuple(int(token) for token in rng.integers(low, high, rng.integers(shortest, longest + 1)))

    prompts = [draw(3, 9) for _ in range(4)]
    return [Sampled(prompt=prompt, completion=draw(2, 8)) for prompt in prompts for _ in range(2)]


def score_gram(model: Any, rollouts: Sequence[Sampled], layout: Layout, *, wide: bool = True) -> Gram:
    """The Gram matrix of a model in training mode, whose weights become float64 if it is ``wide`` and runs in that."""
    for module in model.modules():
        if hasattr(getattr(module, "config", None), "_experts_implementation"):
            module.config._experts_implementation = "eager"  # the fused kernels know no float64
    if wide:
        try:
            rows = score_rows(model.double().train(), rollouts, layout)
        except RuntimeError:  # a layer that computes in float32 alone
            rows = np.array([np.nan])
        if np.isfinite(rows).all():  # to a softmax in float32, float64's largest mask is infinite
            return Gram(matrix=rows @ rows.T, dtype="float64")
    rows = score_rows(model.float().train(), rollouts, layout)
    return Gram(matrix=rows @ rows.T, dtype="float32")


def score_rows(model: Any, rollouts: Sequence[Sampled], layout: Layout) -> np.ndarray:
    """The gradient of each completion's summed log-probability over the step's tokens, [R, P].

    Returns:
        One column an element of the parameters that want a gradient, in the model's order.
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    num_tokens = sum(len(rollout.completion) for rollout in rollouts)
    rows = []
    for part in [rollouts] if layout == "trainer" else [[rollout] for rollout in rollouts]:
        rows += [gradient_row(row.sum() / num_tokens, parameters).numpy() for row in _logprobs(model, part)]
    return np.stack(rows)


def gradient_row(value: torch.Tensor, parameters: Sequence[torch.Tensor]) -> torch.Tensor:
    """A number's gradient by some parameters in one row of float64, zeros where there is none, [P]."""
    if not value.requires_grad:
        return torch.zeros(sum(parameter.numel() for parameter in parameters), dtype=torch.float64)
    grads = torch.autograd.grad(value, parameters, retain_graph=True, allow_unused=True, materialize_grads=True)
    return torch.cat([grad.reshape(-1) for grad in grads]).double()


def largest_difference(found: np.ndarray, expected: np.ndarray) -> float:
    """Largest difference of two Gram matrices, each entry in units of its rows' norms."""
    norms = np.sqrt(np.clip(np.diag(expected), 1e-300, None))
    return float(np.max(np.abs(found - expected) / np.outer(norms, norms)))


def spectrum_error(found: Sequence[float], expected: np.ndarray) -> float:
    """Largest difference of the singular values of some rows, as a share of the largest; those not found are zero."""
    values = np.zeros(len(expected))
    values[: len(found)] = found[: len(expected)]
    return float(np.abs(values - expected).max() / expected.max())


def padded(rollouts: Sequence[Any], pad: int, multiple: int = 1) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Ids and attention mask of a batch, [R, P + T], and P, up to which prompts are padded on their left.

    P and T are multiples of a number.
    """
    width, height = (
        -(-max(len(getattr(rollout, part)) for rollout in rollouts) // multiple) * multiple
        for part in ("prompt", "completion")
    )
    ids = torch.full((len(rollouts), width + height), pad)
    mask = torch.zeros_like(ids)
    for row, rollout in enumerate(rollouts):
        start, stop = width - len(rollout.prompt), width + len(rollout.completion)
        ids[row, start:stop] = torch.tensor(rollout.prompt + rollout.completion)
        mask[row, start:stop] = 1
    return ids, mask, width


def _logprobs(model: Any, rollouts: Sequence[Sampled]) -> list[torch.Tensor]:
    """Log-probabilities of each completion, as the trainer lays a batch out; one rollout has no padding, [R][T]."""
    ids, mask, width = padded(rollouts, getattr(model.config.get_text_config(), "pad_token_id", None) or 0)
    logits = model(input_ids=ids, attention_mask=mask, use_cache=False).logits
    found = []
    for row, rollout in enumerate(rollouts):
        log_pi = torch.log_softmax(logits[row, width - 1 : width - 1 + len(rollout.completion)].double(), dim=-1)
        found.append(log_pi[torch.arange(len(rollout.completion)), torch.tensor(rollout.completion)])
    return found
