"""How much of the package the tests hold: mutants of its modules, and which test kills each.

``python -m benchmarks.mutants FOLDER`` copies the checkout into FOLDER, changes one place of one module at a time there
(a comparison flipped, a term dropped, an early return taken out ...), and runs the tests: those of the module's own
test file, then, of what survives, every test file that imports the module, the nearest first, up to ``--limit``
seconds. A test that kills is run once more without the mutant. What is known already in FOLDER is not run again.

Modules are drawn by their lines, kinds of change evenly, all from ``--seed``; the changes are no equivalent of
mutmut's or cosmic-ray's, which run every mutant of a module, days for a package of this size.
"""

import argparse
import ast
import itertools
import json
import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from textwrap import shorten
from typing import Any

from msgspec import Struct

from benchmarks.house import ROOT, modules_of, num_lines

Change = tuple[str, ast.AST, ast.AST]  # a kind of change, a node, and what stands there instead

FLIPPED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    **{ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq},
    **{ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is},
}
OTHER_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    **{ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Div}
}
ORIGINAL = ".original"
HANGS = 600.0  # seconds after which a module's own tests hang, on a busy machine too
NO_CODE = ast.Raise | ast.JoinedStr | ast.Import


class Mutant(Struct, frozen=True):
    """One change of one module."""

    module: str
    line: int
    kind: str
    source: str
    before: str
    after: str

    @property
    def name(self) -> str:
        """Where it is and what it does, on one line."""
        return f"{self.module}:{self.line} {self.kind}: {shorten(self.before, 90)} -> {shorten(self.after, 90)}"


def main() -> None:
    """Make the mutants, run the tests on each, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="The copy and results.jsonl; made where it is missing.")
    parser.add_argument("--number", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=float, default=300.0, help="Seconds of tests beyond the module's own.")
    parser.add_argument("--only", help="Only mutants whose name has this text, run again.")
    arguments = parser.parse_args()
    copy, results = arguments.folder.resolve() / "copy", arguments.folder.resolve() / "results.jsonl"
    if not copy.is_dir():
        copy_checkout(copy)
    for left in copy.rglob(f"*{ORIGINAL}"):  # a run that was killed left its mutant behind
        left.replace(left.with_suffix(""))
    lines = results.read_text().splitlines() if results.exists() else []
    known = {row["mutant"]: row["killed_by"] for row in map(json.loads, lines)}
    for mutant in drawn_mutants(copy, arguments.number, arguments.seed):
        if (arguments.only or "") not in mutant.name:
            continue
        if mutant.name not in known or arguments.only:
            known[mutant.name] = killer_of(mutant, copy, arguments.limit)
            with results.open("a") as file:
                file.write(json.dumps({"mutant": mutant.name, "killed_by": known[mutant.name]}) + "\n")
        print(f"{mutant.name}\n    {known[mutant.name] or 'SURVIVES'}", flush=True)
    print(f"{sum(killer is not None for killer in known.values())} of {len(known)} are killed")


def copy_checkout(copy: Path) -> None:
    """Copy what git tracks, as it is in the working tree."""
    names = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in names.splitlines():
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name)


def drawn_mutants(root: Path, number: int, seed: int) -> list[Mutant]:
    """As many different mutants as asked for; the first ones are the same whatever the number."""
    rng, mutants = random.Random(seed), dict[str, Mutant]()
    modules = [path for path in modules_of("gradscope", root) if path.name != "__init__.py"]
    weights = [num_lines(path) for path in modules]
    while len(mutants) < number:
        path = rng.choices(modules, weights)[0]
        source = path.read_text(encoding="utf-8")
        by_kind: dict[str, list[Change]] = {}
        for change in changes_of(ast.parse(source)):
            by_kind.setdefault(change[0], []).append(change)
        if by_kind:
            kind, node, instead = rng.choice(by_kind[rng.choice(sorted(by_kind))])
            mutant = mutant_of(str(path.relative_to(root)), source, kind, node, instead)
            mutants.setdefault(mutant.name, mutant)
    return list(mutants.values())


def mutant_of(module: str, source: str, kind: str, node: Any, instead: ast.AST) -> Mutant:
    """The module's text with one node written anew; columns of the syntax tree count bytes."""
    text, after = source.encode(), ast.unparse(instead)
    starts = [0, *itertools.accumulate(map(len, text.splitlines(keepends=True)))]
    start, end = starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset
    changed = text[:start] + f"({after})".encode() + text[end:]
    return Mutant(module, node.lineno, kind, changed.decode(), text[start:end].decode(), after)


def changes_of(tree: ast.AST) -> Iterator[Change]:
    """Every change of the code of a module; types, defaults of signatures and what is raised are left alone."""
    for node in executed(tree):
        match node:
            case ast.Compare(ops=[op, *_]):
                yield "comparison", node, replaced(node, ops=[FLIPPED[type(op)](), *node.ops[1:]])
            case ast.BinOp(op=op) if type(op) in OTHER_ARITHMETIC:
                yield "arithmetic", node, replaced(node, op=OTHER_ARITHMETIC[type(op)]())
                yield "dropped term", node, node.left
                if isinstance(op, ast.Sub | ast.Div):
                    yield "swapped sides", node, replaced(node, left=node.right, right=node.left)
            case ast.BoolOp(op=op, values=values):
                yield "and/or", node, replaced(node, op=ast.Or() if isinstance(op, ast.And) else ast.And())
                yield "dropped condition", node, replaced(node, values=values[1:]) if values[2:] else values[0]
            case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
                yield "dropped sign", node, operand
            case ast.Constant(value=bool(value)):
                yield "constant", node, ast.Constant(not value)
            case ast.Constant(value=int(value) | float(value)):
                yield "constant", node, ast.Constant(value + 1)
            case ast.If(body=[*_, ast.Return() | ast.Continue() | ast.Break()]):
                yield "removed early return", node.test, ast.Constant(False)
            case ast.IfExp():
                yield "other branch", node, replaced(node, body=node.orelse, orelse=node.body)
            case ast.Call(keywords=[*_, ast.keyword(arg=str(name))]) if node.args and name != "strict":
                yield "dropped argument", node, replaced(node, keywords=node.keywords[:-1])
            case ast.comprehension(ifs=[condition, *_]):
                yield "dropped filter", condition, ast.Constant(True)


def executed(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a syntax tree that compute something."""
    for field, value in ast.iter_fields(node):
        if field in {"annotation", "returns", "decorator_list", "args"} and not isinstance(node, ast.Call):
            continue
        if isinstance(node, ast.keyword) and node.arg == "strict":
            continue  # zip's own check, which no right caller reaches
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not isinstance(child, NO_CODE):
                yield child
                yield from executed(child)


def replaced(node: ast.AST, **fields: object) -> ast.AST:
    """A copy of a node with other fields."""
    other = deepcopy(node)
    for name, value in fields.items():
        setattr(other, name, value)
    return ast.fix_missing_locations(other)


def killer_of(mutant: Mutant, copy: Path, limit: float) -> str | None:
    """The first test that fails on a mutant, but not without it; None where none does."""
    path = copy / mutant.module
    original = path.rename(f"{path}{ORIGINAL}")
    near, far = tests_of(mutant.module, copy)
    try:
        path.write_text(mutant.source, encoding="utf-8")
        failed = first_failure(near, copy) or first_failure(far, copy, limit)
    finally:
        original.replace(path)
    name, _, _ = (failed or "time").partition(" - ")
    if not name.startswith("time") and (first_failure([name], copy) or "").startswith(name):
        raise SystemExit(f"{name} fails without a mutant as well")
    return failed


def first_failure(tests: list[str], copy: Path, limit: float | None = None) -> str | None:
    """The first test that fails, with its message; without a limit the tests are few, and one that hangs has failed."""
    if not tests:
        return None
    places = {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    if (data := ROOT.parent / "shared" / "data").is_dir():
        places["GRADSCOPE_SHARED_DATA"] = str(data)
    command = [sys.executable, "-m", "pytest", "-xq", "-n0", "-pno:cacheprovider", "--no-header", "--tb=no", *tests]
    command.append("--deselect=tests/test_house.py")  # which holds lines and names, and a mutant has others
    try:
        done = subprocess.run(
            command, cwd=copy, env=os.environ | places, capture_output=True, text=True, timeout=limit or HANGS
        )
    except subprocess.TimeoutExpired:
        return f"time: its own tests take more than {HANGS:g} s" if limit is None else None
    if done.returncode in {0, 5}:
        return None
    found = re.search(r"^(?:FAILED|ERROR) (.*)$", done.stdout, flags=re.MULTILINE)
    return found[1] if found else f"pytest itself: {(done.stdout + done.stderr)[-300:]}"


def tests_of(module: str, copy: Path) -> tuple[list[str], list[str]]:
    """The module's own test and its doctests; then all that import it, over how ever many others, the nearest first."""
    name, own = Path(module).relative_to("gradscope"), [module]
    for test in (name.parent / f"test_{name.stem.strip('_')}.py", name.parent.parent / f"test_{name.parent.name}.py"):
        if (copy / "tests" / test).is_file():
            own.append(f"tests/{test}")
            break
    importers: dict[str, set[str]] = {}
    imports = re.compile(r"(?:from|import) ((?:gradscope|tests|benchmarks)[\w.]*)(?: import (\([^)]*\)|.*))?")
    for path in (path for folder in ("gradscope", "tests", "benchmarks") for path in modules_of(folder, copy)):
        text = path.read_text(encoding="utf-8")
        for wanted, names in imports.findall(text):
            for module_or_name in (wanted, *(f"{wanted}.{name}" for name in re.findall(r"\w+", names))):
                importers.setdefault(module_or_name, set()).add(str(path.relative_to(copy)))
        for folder in re.findall(r'import_module\(f"(gradscope[\w.]*)\.\{', text):  # any of its modules, by name
            for below in (copy / folder.replace(".", "/")).glob("*.py"):
                importers.setdefault(f"{folder}.{below.stem}", set()).add(str(path.relative_to(copy)))
    order = [module]
    for path in order:  # which grows
        for importer in sorted(importers.get(path.removesuffix(".py").replace("/", "."), ())):
            if importer not in order:
                order.append(importer)
    return own, [path for path in order if path.split("/")[-1].startswith("test_") and path not in own]


if __name__ == "__main__":
    main()
