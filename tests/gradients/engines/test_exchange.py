import json
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from gradscope.gradients.engines import exchange
from gradscope.gradients.layers.factors import GradientFactor, HeadProduct, OuterProduct, Routed, Scatter, Summed
from gradscope.gradients.model.head import HeadTokens, PlainHead
from tests.gradients.engines import cases
from tests.gradients.models import DAPO, naive_rows, prepared, rollouts_of, tiny_groups, tiny_policy, weight_of
from tests.launched import finish, group_of_one, start_processes

Results = list[dict[str, Any]]
SIZE = 2  # processes of a launch
IN_FLOAT64 = (
    *("tied, small batches", "qwen3_moe", "lora with kl", "entropies, uneven", "soft cap, float64"),
    *("head with a bias, a unit of its own", "head with a bias, in the root", "many words"),
    "fewer rollouts than processes",
)
"""Cases whose score vectors are held to backward passes in float64."""
ALL_LOGITS = ("adapter head", "one finds another scale")
"""Cases in which several processes form all logits at once."""
_MODULE = ("-m", "tests.gradients.engines.cases")
_FAILING = """
import os, sys
from pathlib import Path
from gradscope.gradients.model import passes as forward
from tests.gradients.engines import cases

def fail(*inputs, **more):
    raise RuntimeError("No room for slices.")

if os.environ["RANK"] == "1":
    forward.sliced_outputs = fail
cases.main(Path(sys.argv[1]), ["entropies, uneven"])
"""
REFUSED = {
    "adapter dora": "DoRA takes norms of whole weights",
    "adapter saved head": "it trains copies of whole modules (modules_to_save)",
    "adapter head, tied": "it adapts a tied head",
    "adapter of another kind": "it is not LoRA",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cases")
    cases.save_models(folder)
    return folder


@pytest.fixture(scope="module")
def by_several(folder: Path) -> Results:
    """The results of each process of a launch."""
    for code, _, err in finish(start_processes(SIZE, *_MODULE, str(folder), *cases.CASES)):
        assert code == 0, err
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(SIZE)]


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in cases.CASES if name not in REFUSED])
def test_several_processes_find_what_one_finds(name: str, folder: Path, by_several: Results) -> None:
    single, (main, *rest) = cases.measured(folder, name), [results[name] for results in by_several]
    assert main["coverage"] == single["coverage"] == 1.0
    values, expected = np.array(main["singular_values"]), np.array(single["singular_values"])
    assert np.abs(values - expected).max() <= 1e-6 * expected.max()
    assert main["relative_row_error"] == pytest.approx(single["relative_row_error"], rel=1e-3)
    assert main["slow"] == single["slow"]
    for row, expected_row in zip(main["logprobs"], single["logprobs"], strict=True):
        np.testing.assert_allclose(row, expected_row, atol=1e-5)
    per_process = {"sent": 0, "largest": 0}
    for other in rest:  # to the last bit, or processes would take different decisions
        assert other | per_process == main | per_process
    assert main["in_slices"] == (name not in ALL_LOGITS)
    if name in cases.WITH_NORMS:
        norms, by_one, is_rough = main["norms"], single["norms"], "bfloat16" in name
        assert norms["squares"] == pytest.approx(by_one["squares"], rel=1e-4, abs=1e-12)
        assert norms["trained"] == pytest.approx(by_one["trained"], rel=2e-2 if is_rough else 1e-4)
        assert norms["head_norms"] == pytest.approx(by_one["head_norms"], rel=2e-2 if is_rough else 1e-5)
        assert norms["unchanged"] == by_one["unchanged"]
    if name in IN_FLOAT64:
        policy, groups = cases.policy_of_case(folder, name), cases.groups_of(name)
        policy.model.config._experts_implementation = "eager"
        rows = naive_rows(policy, groups, weight_of(groups), cases.objective_of(name).temperature)
        exact = np.linalg.svd(rows, compute_uv=False)
        assert np.abs(values - exact).max() <= 1e-6 * exact.max()


@pytest.mark.slow
def test_no_process_makes_a_tensor_of_one_rollouts_tokens_by_vocabulary(by_several: Results) -> None:
    largest = max(results["many words"]["largest"] for results in by_several)
    assert 0 < largest < cases.COMPLETION * cases.MANY_WORDS["vocab_size"] / 2


@pytest.mark.slow
def test_an_error_of_one_process_within_the_output_layer_ends_the_others(folder: Path) -> None:
    (code, _, err), (other_code, _, failed_err) = finish(start_processes(2, "-c", _FAILING, str(folder)))
    assert (code, other_code) == (1, 1)
    assert "LaunchError: Another process of this command ended" in err
    assert failed_err.endswith("RuntimeError: No room for slices.\n")


@pytest.mark.slow
@pytest.mark.parametrize("name", REFUSED)
def test_adapters_that_need_a_whole_base_are_refused(name: str, by_several: Results) -> None:
    reason = f"this adapter does not go on a base that several processes share: {REFUSED[name]}."
    assert reason in by_several[0][name]["error"]


@pytest.mark.slow
def test_the_shorter_side_goes_to_all_and_the_longer_one_in_pieces(by_several: Results) -> None:
    """Numbers of float32 that all processes together send, counted by hand for each token and layer."""
    size, config, rollouts = SIZE, LlamaConfig(**cases.LONG), rollouts_of(tiny_groups(4, 4))
    assert not any(name.endswith(".bias") for name, _ in LlamaForCausalLM(config).named_parameters())
    width, inner = config.hidden_size, config.intermediate_size
    num_tokens = sum(len(rollout.prompt_ids) + len(rollout.completion_ids) for rollout in rollouts)
    num_predicted = sum(len(rollout.completion_ids) for rollout in rollouts)
    cut = [(width, width)] * 4 + [(width, inner)] * 3  # q, k, v, o; gate, up, down
    a_token = config.num_hidden_layers * sum(short * (size - 1) + long * (size - 1) / size for short, long in cut)
    a_prediction = (width + 6) * (size - 1)  # its hidden state, four numbers, and an id of twice the bytes
    expected = 4 * (num_tokens * a_token + num_predicted * a_prediction)
    # the rest: each token's row of the embedding, norms, and which row is which
    assert expected < sum(results["traffic"]["sent"] for results in by_several) < 1.1 * expected


def test_who_has_fewer_batches_repeats_a_row_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    step = prepared(tiny_policy("llama_untied_biases"), tiny_groups(1, 3), DAPO)
    counted = []
    for index in range(2):
        monkeypatch.setattr("gradscope.gradients.engines.exchange.num_connected", lambda: 2)
        monkeypatch.setattr("gradscope.gradients.engines.exchange.connected_index", lambda index=index: index)
        batches = exchange._own_batches(step, batch_tokens=1)
        assert len(batches) == 2
        counted += [row for batch, counts in batches if counts for row in batch.rows]
    assert sorted(counted) == [0, 1, 2]
    assert torch.equal(batches[-1][0].input_ids, step.batch([int(np.argmin(step.plan.lengths))]).input_ids)


LENGTHS = (3, 5)
FIELDS = ("log_total", "rest", "entropy", "weights", "entropy_weights")


def tokens(*size: int, seed: int = 0) -> tuple[torch.Tensor, ...]:
    draw = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(length, *size, generator=draw, dtype=torch.float64) for length in LENGTHS)


def numbers(bound: int, seed: int = 0) -> tuple[torch.Tensor, ...]:
    draw = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(0, bound, (length,), generator=draw) for length in LENGTHS)


PIECES: dict[str, tuple[tuple[int, ...], list[GradientFactor]]] = {
    "more outputs": ((7, 4), [OuterProduct(left=tokens(7), right=tokens(4, seed=1))]),
    "more inputs": ((4, 7), [OuterProduct(left=tokens(4), right=tokens(7, seed=1))]),
    "table": ((9, 4), [Scatter(ids=numbers(9), grads=tokens(4))]),
    "tied": ((9, 4), [Scatter(ids=numbers(9), grads=tokens(4)), OuterProduct(left=tokens(9), right=tokens(4, seed=1))]),
    "wide table": (
        (3, 8),
        [Scatter(ids=numbers(3), grads=tokens(8)), OuterProduct(left=tokens(3), right=tokens(8, seed=1))],
    ),
    "experts": ((3, 2, 4), [Routed(experts=numbers(3), left=tokens(2), right=tokens(4, seed=1))]),
    "bias": ((5,), [Summed(rows=torch.randn(2, 5, dtype=torch.float64))]),
    "router": ((2, 6), [Summed(rows=torch.randn(2, 2, 6, dtype=torch.float64))]),
}


@pytest.fixture(name="group_of_one")
def single_process() -> Iterator[None]:
    with group_of_one():
        yield


@pytest.mark.usefixtures("group_of_one")
@pytest.mark.parametrize("name", PIECES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_message_arrives_as_it_was_sent(name: str, dtype: torch.dtype) -> None:
    shape, factors = PIECES[name]

    def cast(value: object) -> object:
        if isinstance(value, tuple):
            return tuple(cast(part) for part in value)
        assert isinstance(value, torch.Tensor)
        return value.to(dtype) if value.is_floating_point() else value

    factors = [
        type(factor)(**{field: cast(getattr(factor, field)) for field in factor.__slots__})  # type: ignore[attr-defined]
        for factor in factors
    ]
    (message,) = exchange._exchange([exchange._Message(shape=shape, parts=(((4, 2), factors),))], torch.device("cpu"))
    ((rows, got),) = message.parts
    assert (message.shape, rows) == (shape, (4, 2))
    for sent, received in zip(factors, got, strict=True):
        assert type(sent) is type(received)
        for field in sent.__slots__:  # type: ignore[attr-defined]
            torch.testing.assert_close(getattr(sent, field), getattr(received, field), rtol=0, atol=0)
    empty = exchange._Message(shape=(3, 4), parts=())
    assert exchange._exchange([empty], torch.device("cpu")) == [empty]


@pytest.mark.usefixtures("group_of_one")
@pytest.mark.parametrize("entropies", [False, True])
@pytest.mark.parametrize("shape", [(9, 3), (9,)])
def test_of_an_output_layer_only_tokens_are_sent(shape: tuple[int, ...], entropies: bool) -> None:
    head, other = (PlainHead(module=nn.Linear(3, 9), scale=2.0, cap=None) for _ in range(2))
    numbers = dict(zip(("log_total", "rest", "entropy", "weights"), torch.randn(4, 7), strict=True))
    tokens = HeadTokens(
        hidden=torch.randn(7, 3).bfloat16(),
        ids=torch.arange(7) - 2,
        entropy_weights=torch.randn(7) if entropies else None,
        **numbers,
    ).split([3, 4])
    factor = HeadProduct(head=head, tokens=tokens, is_bias=len(shape) == 1)
    (message,) = exchange._exchange(
        [exchange._Message(shape=shape, parts=(((4, 2), [factor]),))], torch.device("cpu"), other
    )
    ((rows, (got,)),) = message.parts
    assert isinstance(got, HeadProduct)
    assert (rows, got.head, got.is_bias) == ((4, 2), other, factor.is_bias)
    for sent, received in zip(tokens, got.tokens, strict=True):
        assert sent.tensors().keys() == received.tensors().keys()
        for name, tensor in sent.tensors().items():
            torch.testing.assert_close(received.tensors()[name], tensor, rtol=0, atol=0)


def rows_of(shape: Sequence[int], factors: Sequence[GradientFactor]) -> torch.Tensor:
    """The gradient of both rows, [2, *shape]."""
    made = torch.zeros(2, shape[0], torch.Size(shape[1:]).numel(), dtype=torch.float64)
    for row in range(2):
        for factor in factors:
            factor.add_to(row, 0, made[row])
    return made.view(2, *shape)


@pytest.mark.parametrize("name", PIECES)
@pytest.mark.parametrize("num_processes", [1, 2, 3, 10])
def test_pieces_put_together_are_the_whole(name: str, num_processes: int) -> None:
    shape, factors = PIECES[name]
    cut, side = exchange._cut_shape(torch.Size(shape), factors)
    assert cut == torch.Size(shape)
    pieces = [
        rows_of(
            (*cut[:side], stop - start, *cut[side + 1 :]),
            [exchange._piece_of(factor, side, start, stop) for factor in factors],
        )
        for start, stop in exchange._bounds_of(cut[side], num_processes)
        if start < stop
    ]
    # blocks of a product round apart
    torch.testing.assert_close(torch.cat(pieces, dim=side + 1), rows_of(shape, factors), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("edges", [(0, 9), (0, 5, 9), (0, 4, 4, 9)])
def test_ids_of_an_output_layer_put_together_are_the_whole(edges: tuple[int, ...], bias: bool) -> None:
    head = PlainHead(module=nn.Linear(16, 9).double(), scale=0.5, cap=3.0, temperature=0.7)
    fields = dict(zip(FIELDS, torch.rand(len(FIELDS), sum(LENGTHS), dtype=torch.float64), strict=True))
    states = HeadTokens(hidden=torch.cat(tokens(16)), ids=torch.cat(numbers(9)), **fields)
    factor = HeadProduct(head=head, tokens=states.split(LENGTHS), is_bias=bias)
    shape = torch.Size((9,) if bias else (9, 16))
    assert exchange._cut_shape(shape, [factor]) == (shape, 0)
    pieces = []
    for start, stop in pairwise(edges):
        part = head.with_rows(head.module.weight.detach()[start:stop], head.module.bias.detach()[start:stop])
        piece = exchange._piece_of(factor, 0, start, stop)
        assert isinstance(piece, HeadProduct)
        pieces.append(rows_of((stop - start, *shape[1:]), [replace(piece, head=part)]))
    torch.testing.assert_close(torch.cat(pieces, dim=1), rows_of(shape, [factor]), rtol=1e-12, atol=1e-12)


def test_a_table_held_the_other_way_round_is_cut_by_its_ids() -> None:
    factors = [Scatter(ids=numbers(9), grads=tokens(4))]
    assert exchange._cut_shape(torch.Size((4, 9)), factors) == (torch.Size((9, 4)), 0)


def test_the_longer_side_is_cut_so_that_the_shorter_one_goes_to_all() -> None:
    (factor,) = PIECES["more inputs"][1]
    piece = exchange._piece_of(factor, 1, 2, 5)
    assert isinstance(piece, OuterProduct)
    assert [part.shape[1] for part in (*piece.left, *piece.right)] == [4, 4, 3, 3]


def test_what_is_no_known_factor_is_an_error() -> None:
    with pytest.raises(TypeError, match="str cannot be cut"):
        exchange._piece_of("factor", 0, 0, 1)  # type: ignore[arg-type]


@pytest.mark.parametrize("num_processes", [1, 2, 3, 8])
def test_every_row_is_dealt_once_and_none_has_much_more(num_processes: int) -> None:
    lengths = np.random.default_rng(0).integers(10, 2000, 64).tolist()
    shares = exchange._deal_rows(lengths, num_processes)
    assert sorted(row for share in shares for row in share) == list(range(64))
    tokens = [sum(lengths[row] for row in share) for share in shares]
    assert max(tokens) - min(tokens) <= max(lengths)
    assert exchange._deal_rows([5, 7], 3) == [(1,), (0,), ()]
