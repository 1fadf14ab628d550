from __future__ import annotations

import pytest

from gradscope.render.words.tensor_names import short_tensor


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("model.layers.11.mlp.up_proj.weight", "11.mlp.up_proj"),
        ("model.embed_tokens.weight", "embed_tokens"),
        ("transformer.h.0.attn.c_attn.bias", "transformer.h.0.attn.c_attn.bias"),
    ],
)
def test_words_that_all_parameters_share_are_left_out(name: str, short: str) -> None:
    assert short_tensor(name) == short
