from __future__ import annotations

import torch

from gradscope.gradients.trained.router import router_losses
from tests.gradients.models import VOCAB, tiny_experts


def test_the_term_is_that_of_the_pass_with_its_graph() -> None:
    model, ids = tiny_experts("mixtral"), torch.arange(12).reshape(2, 6) % VOCAB
    expected = model(input_ids=ids, output_router_logits=True)
    found: list[torch.Tensor] = []
    with router_losses(model, found):
        logits = model(input_ids=ids).logits
    torch.testing.assert_close(logits, expected.logits)
    torch.testing.assert_close(found[0], expected.aux_loss)
    found[0].backward()
    assert model.model.layers[0].mlp.gate.weight.grad is not None
    assert not model._forward_pre_hooks
    assert not model._forward_hooks
