import shutil
import tempfile
from itertools import groupby

import numpy as np
import pytest
import torch
from torch import nn

from gradscope.gradients.engines import stream as stream_module
from gradscope.gradients.engines.loop import GramAccumulator
from gradscope.gradients.engines.stream import PartStore, PendingParts, _stored_bytes, free_bytes, stream_gram
from gradscope.gradients.layers.factors import OuterProduct, Scatter, Summed
from gradscope.gradients.model.head import plain_head
from gradscope.gradients.plan.prepared_step import prepare_step
from tests.gradients.models import DAPO, measured_step, policy_of, tiny_experts, tiny_groups, tiny_policy

CPU = torch.device("cpu")


@pytest.mark.parametrize(("stored", "times"), [(0, 6), (2**28, 1)])
def test_what_a_pass_has_freed_goes_back_before_the_next_one_where_much_waits(monkeypatch, stored, times):
    policy = tiny_policy("llama_untied_biases")
    step = prepare_step(policy, tiny_groups(), DAPO)
    batches, total, seen = step.batches(range(6), 1), GramAccumulator(6, policy.device), []
    policy.model.model.embed_tokens.register_forward_hook(lambda *_: seen.append("ran"))
    monkeypatch.setattr("gradscope.gradients.engines.stream.trim_heap", lambda: seen.append("trimmed"))
    step.budget.pending_bytes = stored
    stream_gram(step, batches, total, lambda *_: None)
    assert [event for event, _ in groupby(seen)] == ["ran", "trimmed"] * times  # the last when nothing waits any more


TRAINABLE = {"a": nn.Parameter(torch.zeros(2)), "b": nn.Parameter(torch.zeros(1))}


def summed(*rows: list[float]) -> list[Summed]:
    return [Summed(rows=torch.tensor(rows))]


@pytest.mark.parametrize("waits", [True, False])
def test_rows_of_different_batches_meet(waits):
    accumulator = GramAccumulator(2, CPU)
    with PendingParts(TRAINABLE, accumulator, waits=waits, max_pending_bytes=0) as pending:
        pending.take("a", (1,), summed([1.0, 2.0]))
        pending.take("a", [0], summed([3.0, -1.0]))
        pending.take("b", (0, 1), summed([1.0], [1.0]))
        assert not accumulator.gram.any()
        pending.combine("a")
        assert accumulator.gram.tolist() == [[10.0, 1.0], [1.0, 5.0]]
        pending.combine_all({"a"})
    assert accumulator.gram.tolist() == [[11.0, 2.0], [2.0, 6.0]]
    assert accumulator.num_parameters == 3


def test_what_no_rule_covers_is_dropped():
    accumulator = GramAccumulator(1, CPU)
    with PendingParts(TRAINABLE, accumulator, waits=True) as pending:
        pending.take("a", (0,), summed([1.0, 2.0]))
        pending.take("b", (0,), summed([3.0]))
        pending.combine_all({"a"})
    assert accumulator.gram.tolist() == [[9.0]]
    assert accumulator.num_parameters == 1


@pytest.mark.parametrize(
    ("free", "names", "rounds"),
    [
        (10**6, ["a", "b"], 1),
        (2 * 3 * 12, ["a", "b"], 1),  # twelve bytes a row of three
        (2 * 3 * 12 - 2, ["b"], 2),
        (2 * 3 * 4, ["b"], 2),
        (0, ["b"], 2),  # one at a time, room or not
    ],
)
def test_what_is_too_much_is_left_for_another_round_from_the_top_of_the_model_on(free, names, rounds, monkeypatch):
    monkeypatch.setattr(stream_module, "free_bytes", lambda: free)
    accumulator = GramAccumulator(3, CPU)
    with PendingParts(TRAINABLE, accumulator, waits=True, max_pending_bytes=0) as pending:
        for row in range(3):
            pending.take("a", (row,), summed([1.0, 2.0]))  # its gradient comes first: it is nearer to the output
            pending.take("b", (row,), summed([3.0]))
            if row == 0:
                assert pending.defer_oversized(tokens=50.0, rows=3.0) == rounds
        pending.combine_all(())
    assert list(pending.left) == [name for name in TRAINABLE if name not in names]
    expected = 5.0 * ("a" in names) + 9.0
    assert accumulator.gram.tolist() == [[expected] * 3] * 3
    assert accumulator.num_parameters == 2 * ("a" in names) + 1


def test_memory_is_room_too_and_pairs_grow_with_tokens(monkeypatch):
    monkeypatch.setattr(stream_module, "free_bytes", lambda: 0)
    table = Scatter(ids=(torch.tensor([0]),), grads=(torch.ones(1, 1),))  # 8 bytes and 4
    for tokens, left in ((4.0, []), (4.1, ["a"])):
        with PendingParts(TRAINABLE, GramAccumulator(9, CPU), waits=True, max_pending_bytes=48 + 36) as pending:
            pending.take("a", (0,), [table])
            pending.take("b", (0,), summed([3.0]))
            assert pending.defer_oversized(tokens=tokens, rows=9.0) == 1 + len(left)
        assert list(pending.left) == left
    with PendingParts(TRAINABLE, GramAccumulator(1, CPU), waits=False, max_pending_bytes=0) as pending:
        pending.take("a", (0,), summed([1.0, 2.0]))
        pending.take("b", (0,), summed([3.0]))
        assert pending.defer_oversized(tokens=1.0, rows=1.0) == 1  # a single batch leaves nothing
        assert pending.left == {}


@pytest.fixture
def files(monkeypatch):
    """The temporary files that were opened."""
    opened = []
    open_file = tempfile.TemporaryFile

    def spy(*arguments, **options):
        opened.append(open_file(*arguments, **options))
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
        (first, parts), (second, last) = store.take("w", CPU)
        assert store.names == []
    assert (first, second) == ((0, 1), (2,))
    for restored, use in zip((*parts, *last), (*uses, uses[2]), strict=True):
        assert type(restored) is type(use)
        for name in use.__struct_fields__:
            torch.testing.assert_close(getattr(restored, name), getattr(use, name), rtol=0, atol=0)
    assert [file.closed for file in files] == [True]


def test_memory_is_used_up_first_and_parts_are_counted_in_it_and_on_disk(files, tmp_path, monkeypatch):
    part = Summed(rows=torch.ones(2, 4))
    with PartStore(max_bytes=32) as store:
        store.keep("a", (0, 1), [part])
        assert files == []
        store.keep("b", (0, 1), [part, part])
        assert len(files) == 1
        assert {name: _stored_bytes(stored) for name, stored in store.factors()} == {"a": 32, "b": 64}
        store.drop("b")
        assert store.names == ["a"]
        assert all(torch.equal(use.rows, part.rows) for _, uses in store.take("a", CPU) for use in uses)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert 0 < free_bytes() <= shutil.disk_usage(tmp_path).total


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["qwen3_gqa_norms", "gpt2_tied_conv1d", "mixtral"])
def test_the_gram_is_the_same_from_disk(kind, files):
    policy = policy_of(tiny_experts("mixtral")) if kind == "mixtral" else tiny_policy(kind)
    groups = tiny_groups()
    stored = measured_step(policy, groups, DAPO, batch_tokens=12, engine="stream")
    assert files == []
    spilled = measured_step(policy, groups, DAPO, batch_tokens=12, engine="stream", pending_bytes=2000)
    np.testing.assert_array_equal(spilled.gram, stored.gram)
    assert [file.closed for file in files] == [True]


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
        measured_step(policy, tiny_groups(), DAPO, batch_tokens=1, engine="stream", pending_bytes=0)
    assert [file.closed for file in files] == [True]
    assert list(tmp_path.iterdir()) == []
