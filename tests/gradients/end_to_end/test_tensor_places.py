"""The source of `gradients/`: tensors are made where they are needed, and inner loops ask the device for nothing.

``test_other_device.py`` sees what runs; this sees what does not run there.
"""

import ast
from collections.abc import Iterator

import pytest

from tests.conftest import REPOSITORY

GRADIENTS = REPOSITORY / "gradscope" / "gradients"
MAKERS = {
    *("arange", "as_tensor", "empty", "eye", "from_numpy", "full", "linspace", "ones", "rand", "randint", "randn"),
    *("randperm", "scalar_tensor", "tensor", "zeros", "Generator"),
}
"""Functions of torch that make a tensor on the CPU where no device is named."""
ON_THE_CPU = {
    "engines/stream._read": "what was on disk; the caller moves it",
    "engines/exchange._pack": "nothing to send",
    "engines/exchange._exchange_letters": "sizes, which processes tell each other on the CPU",
    "layers/trace.ForwardTrace": "a placeholder without elements",
    "model/batches.pad_batch": "filled row by row, and copied to the device at once",
    "model/checkpoint.changed_in_bfloat16": "weights of a file, which never see a model",
    "plan/rows._token_advantages": "logged numbers, which are sent where they are used",
    "plan/rows.plan_rows": "likewise",
    "plan/untested._weights": "log-probabilities that numpy had, one a token",
    "plan/losses.factors_out": "two numbers that stand for any completion",
    "step/heldout.measure_heldout_gram": "logged flags, which are sent where they are used",
    "step/heldout._scales": "one number a token, for numpy",
    "step/measure.coverage": "a count, which processes add on the CPU",
    "tokens/sums.corrected": "one number a token, for numpy",
    "tokens/sums.sequence_factors": "logged numbers, one a rollout, for numpy",
    "tokens/sums.counted_tokens": "one number a token, for numpy",
    "tokens/sums._outputs": "one number a token and weighting, sent where they are used",
    "tokens/rows._weights": "one number a token, for numpy",
    "trained/norms._nudged": "the weights that it nudges are logged numbers",
    "trained/norms.trained_norms": "likewise",
}
"""Function -> why what it makes is on the CPU."""

INNER = (
    *("engines/loop", "engines/prompt", "engines/stream", "layers/", "model/batches", "model/passes", "plan/losses"),
    *("tokens/lockstep", "tokens/rows"),
)
"""Where passes run: what is asked here is asked for every batch, layer or row."""
WAITS = {"all", "any", "cpu", "item", "numpy", "tolist"}
"""Methods that a GPU is waited for; ``any`` and ``all`` where they decide."""
ASKED = {
    "engines/loop._add_routed": "how many tokens each expert has, once a parameter",
    "engines/stream._bytes": "what goes to disk is on the CPU by then",
    "engines/stream._write": "what goes to disk goes through the CPU",
    "layers/trace.settle": "whether rules fit, once a batch",
    "layers/rules._pairs": "which experts have tokens, and how many",
    "layers/factors.add_to": "likewise",
    "model/batches.from_settings": "plain settings of a trainer",
    "tokens/rows._weights": "one number a token, for numpy",
    "tokens/rows.token_tables": "likewise",
    "tokens/lockstep._touched": "which ids occur, once a table and chunk",
}
"""Function -> why it waits, or does not."""


def enclosed(tree: ast.AST, name: str = "") -> Iterator[tuple[str, ast.AST]]:
    """Every node, with the function that it is in, or the class where it is in no method of it."""
    for child in ast.iter_child_nodes(tree):
        inside = child.name if isinstance(child, ast.ClassDef | ast.FunctionDef) and not name.islower() else name
        yield inside, child
        yield from enclosed(child, inside)


def nodes() -> Iterator[tuple[str, ast.AST]]:
    for path in sorted(GRADIENTS.rglob("*.py")):
        module = path.relative_to(GRADIENTS).with_suffix("").as_posix()
        for name, node in enclosed(ast.parse(path.read_text(encoding="utf-8"))):
            yield f"{module}.{name}", node


def is_made_on_the_cpu(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and ast.unparse(node.func) in {f"torch.{name}" for name in MAKERS}
        and not any(keyword.arg == "device" for keyword in node.keywords)
    )


def is_a_wait(node: ast.AST) -> bool:
    """Whether a node may ask a device for a number: a copy to the CPU, a cast of what is computed, a decision."""
    if isinstance(node, ast.If | ast.While | ast.IfExp | ast.Assert):
        return any(is_method(part, {"all", "any"}) for part in ast.walk(node.test))
    if is_method(node, WAITS - {"all", "any"}):
        return True
    if is_method(node, {"to"}) and any(isinstance(a, ast.Constant) and a.value == "cpu" for a in node.args):
        return True
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("bool", "float", "int"):
        text = ast.unparse(node.args[0])
        return not isinstance(node.args[0], ast.Constant) and ".shape[" not in text and not text.endswith(".numel()")
    return False


def is_method(node: ast.AST, names: set[str]) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in names


@pytest.mark.slow
def test_tensors_are_made_on_a_named_device_and_inner_loops_ask_it_for_nothing() -> None:
    made = {where for where, node in nodes() if is_made_on_the_cpu(node)}
    waits = {where for where, node in nodes() if where.startswith(INNER) and is_a_wait(node)}
    assert made - ON_THE_CPU.keys() == set(), "name the device, take another tensor's, or say here why the CPU"
    assert waits - ASKED.keys() == set(), "keep it on the device, or say here why it is waited for"
    assert (ON_THE_CPU.keys() - made, ASKED.keys() - waits) == (set(), set()), "no longer so"


NOTICED = (
    *("x.item()", "x.cpu()", "x.tolist()", "x.numpy()", "x.to('cpu')", "float(x.sum())", "bool(x)", "int(x.max())"),
    *("if x.any(): pass", "y = 1 if (x > 0).all() else 2", "assert x.any()", "torch.zeros(3)", "torch.tensor([x])"),
)
HARMLESS = (
    *("int(x.shape[0])", "float('inf')", "x.to(y)", "any(x for x in y)", "if x: pass"),
    *("torch.zeros(3, device=d)", "torch.zeros_like(x)", "x.new_zeros(3)"),
)


def test_waits_are_noticed_and_what_is_harmless_is_not() -> None:
    def is_noticed(line: str) -> bool:
        return any(is_a_wait(node) or is_made_on_the_cpu(node) for node in ast.walk(ast.parse(line)))

    assert tuple(filter(is_noticed, (*NOTICED, *HARMLESS))) == NOTICED
