"""How large the house is: the table of CONTRIBUTING.md, and the budget that tests/test_house.py holds.

``python -m benchmarks.house`` prints lines, modules, shares and words; ``--run LOG`` adds what a `report` of a log
without weights loads and calls.
"""

import argparse
import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from inspect import CO_OPTIMIZED
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from traceback import walk_stack
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
BUDGET = {"gradscope": (78_670, 324), "tests": (65_475, 407), "benchmarks": (5_380, 43)}
"""Folder -> most lines and modules. Lower them when the house has shrunk; raise one only with a reason."""


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=Path, help="A log whose report is traced.")
    arguments = parser.parse_args()
    rows = [*sizes(), *shares(), ("widest public signature but `train`'s", widest_signature()), *words()]
    if arguments.run is not None:
        rows += traced(arguments.run)
    print("| what | now |\n|---|--:|")
    for what, number in rows:
        print(f"| {what} | {number} |")


def modules_of(folder: str, root: Path = ROOT) -> list[Path]:
    """The Python files of a folder of the repository."""
    return sorted((root / folder).rglob("*.py"))


def num_lines(path: Path) -> int:
    """Lines of a file."""
    return len(path.read_text(encoding="utf-8").splitlines())


def sizes() -> Iterator[tuple[str, str]]:
    """Lines and modules of each folder."""
    for folder in BUDGET:
        files = modules_of(folder)
        yield f"`{folder}/`: lines, modules", f"{sum(map(num_lines, files)):,} in {len(files)}"


def shares() -> Iterator[tuple[str, str]]:
    """The median module of the package, and which part of its lines imports and comments are."""
    files = [path for path in modules_of("gradscope") if path.name != "__init__.py"]
    total = sum(map(num_lines, files))
    imports = sum(
        (node.end_lineno or node.lineno) - node.lineno + 1
        for path in files
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Import | ast.ImportFrom)
    )
    yield "median module, lines", str(round(median(map(num_lines, files))))
    yield "imports, comments", f"{imports / total:.1%}, {sum(map(num_comments, files)) / total:.1%}"


def num_comments(path: Path) -> int:
    """Comments that say something to a reader, not to a tool."""
    tokens = tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline)
    return sum(
        token.type == tokenize.COMMENT and not re.match(r"#\s*(type:|noqa|pragma)", token.string) for token in tokens
    )


def widest_signature() -> str:
    """The public function with the most parameters; the commands themselves count, `train` does not."""
    functions = [
        (len([*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]), node.name)
        for path in modules_of("gradscope")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_") and node.name != "train"
    ]
    number, name = max(functions)
    return f"{number} (`{name}`)"


def words() -> Iterator[tuple[str, str]]:
    """Words of the docs: what a person reads, and the research notes."""
    for what, notes in (("docs, words", False), ("research notes, words", True)):
        pages = [page for page in (ROOT / "docs").rglob("*.md") if ("research" in page.parts) == notes]
        yield what, f"{sum(len(page.read_text(encoding='utf-8').split()) for page in pages):,}"


def traced(log: Path) -> Iterable[tuple[str, str]]:
    """What a `report` without gradients calls: functions of ours, the modules loaded, the deepest stack."""
    from gradscope.cli.app import app

    called, deepest = set[tuple[str, int]](), 0

    def is_ours(frame: FrameType) -> bool:
        # comprehensions, lambdas and bodies of classes have frames too, and are no functions that somebody named
        code, is_function = frame.f_code, bool(frame.f_code.co_flags & CO_OPTIMIZED)
        return is_function and "/gradscope/" in code.co_filename and not code.co_name.startswith("<")

    def profile(frame: FrameType, event: str, _: Any) -> None:
        nonlocal deepest
        if event != "call" or not is_ours(frame):
            return
        called.add((frame.f_code.co_filename, frame.f_code.co_firstlineno))
        deepest = max(deepest, sum(is_ours(caller) for caller, _ in walk_stack(frame)))

    with TemporaryDirectory() as folder, redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        sys.setprofile(profile)
        try:
            app(["report", str(log), "--no-gradients", "-q", "-o", f"{folder}/page.html"], standalone_mode=False)
        finally:
            sys.setprofile(None)
    loaded = sum(name.split(".")[0] == "gradscope" for name in sys.modules)
    return [("functions that a `report` of a log calls; modules loaded; depth", f"{len(called)}; {loaded}; {deepest}")]


if __name__ == "__main__":
    main()
