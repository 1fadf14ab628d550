from __future__ import annotations

import shutil
import tempfile

import numpy as np
import pytest
import torch

from gradscope.gradients.engines.spill import PartStore, free_bytes, stored_bytes
from gradscope.gradients.layers.factors import OuterProduct, Scatter, Summed
from gradscope.gradients.model.head.plain import plain_head
from tests.gradients.models import DAPO, measured_step, policy_of, tiny_experts, tiny_groups, tiny_policy

CPU = torch.device("cpu")


@pytest.fixture
def files(monkeypatch):
    """The temporary files that were opened."""
    opened = []
    open_one = tempfile.TemporaryFile

    def spy(*arguments, **options):
        opened.append(open_one(*arguments, **options))
        return opened[-1]

    monkeypatch.setattr(tempfile, "TemporaryFile", spy)
    return opened


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_factors_come_back_from_disk_as_they_were(dtype, files):
    part = torch.arange(24).view(2, 12).t().to(dtype)  # not contiguous
    uses = [
        OuterProduct(left=(part, part[:0]), right=(part + 1, part[:0])),
        Scatter(ids=(torch.tensor([3, 1]),), grads=(part[:2],)),
        Summed(rows=part),
    ]
    with PartStore(max_bytes=0) as store:
        store.keep("w", (0, 1), uses)
        store.keep("w", (2,), uses[2:])
        assert store.names == ["w"]
        (first, found), (second, last) = store.take("w", CPU)
        assert store.names == []
    assert (first, second) == ((0, 1), (2,))
    for one, other in zip((*found, *last), (*uses, uses[2]), strict=True):
        assert type(one) is type(other)
        for name in type(one).__dataclass_fields__:
            values = [getattr(each, name) for each in (one, other)]
            pairs = zip(*values, strict=True) if isinstance(values[0], tuple) else [values]
            for here, there in pairs:
                assert here.dtype == there.dtype
                assert torch.equal(here, there)
    assert len(files) == 1
    assert files[0].closed


def test_memory_is_used_up_first(files):
    part = Summed(rows=torch.ones(2, 4))
    with PartStore(max_bytes=64) as store:
        store.keep("a", (0, 1), [part, part])
        assert files == []
        store.keep("a", (2, 3), [part])
        assert len(files) == 1
        assert all(torch.equal(use.rows, part.rows) for _, uses in store.take("a", CPU) for use in uses)


def test_what_is_kept_is_counted_here_and_on_disk_and_can_be_dropped(files, tmp_path, monkeypatch):
    part = Summed(rows=torch.ones(2, 4))
    with PartStore(max_bytes=32) as store:
        store.keep("a", (0, 1), [part])
        store.keep("b", (0, 1), [part, part])
        assert len(files) == 1
        assert {name: stored_bytes(kept) for name, kept in store.factors()} == {"a": 32, "b": 64}
        store.drop("b")
        assert store.names == ["a"]
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert 0 < free_bytes() <= shutil.disk_usage(tmp_path).total


@pytest.mark.parametrize("kind", ["qwen3_gqa_norms", "gpt2_tied_conv1d", "mixtral"])
def test_the_gram_is_the_same_from_disk(kind, files):
    policy = policy_of(tiny_experts("mixtral")) if kind == "mixtral" else tiny_policy(kind)
    groups = tiny_groups()
    kept = measured_step(policy, groups, DAPO, batch_tokens=12, engine="stream")
    assert files == []
    spilled = measured_step(policy, groups, DAPO, batch_tokens=12, engine="stream", max_kept_bytes=2000)
    np.testing.assert_array_equal(spilled.gram, kept.gram)
    assert len(files) == 1
    assert files[0].closed


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_the_file_is_gone_after_an_interruption(error, files, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    policy, passes = tiny_policy("llama_untied_biases"), []
    plain_head(policy.model)  # it runs the model, once and for all

    def stop(*arguments):
        passes.append(1)
        if len(passes) == 3:
            raise error

    policy.model.register_forward_pre_hook(stop)
    with pytest.raises(error):
        measured_step(policy, tiny_groups(), DAPO, batch_tokens=1, engine="stream", max_kept_bytes=0)
    assert len(files) == 1
    assert files[0].closed
    assert list(tmp_path.iterdir()) == []
