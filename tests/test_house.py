"""How the house is built: who may know whom, how full a folder is, where the test of a module stands, what loads."""

import ast
import pydoc
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import gradscope
from benchmarks.house import BUDGET, modules_of, num_lines

PACKAGE = Path(__file__).resolve().parent.parent / "gradscope"
MAX_LINES = 600
MAX_MODULES = 14
TESTS = PACKAGE.parent / "tests"
FAMILIES = {
    "catalog": "its rows are data, held to the results that they describe",
    "results": "its records are data, held to the documents that they become",
    "render/figures": "every figure is drawn from one list of examples",
    "render/terminal": "every table is printed from one list of examples",
    "render/views": "every declared table is drawn from one list of examples",
}
"""Folders whose modules are tested as one family, by the file of the folder's name beside the folder."""
OF_THE_WHOLE = {
    f"test_{name}.py" for name in ("architecture", "house", "readme", "replay_page", "site", "verdicts", "wheel")
}
"""Tests of no module: this one, those of the docs, and the commands of the README. Tests of several modules at once, of
a run from its first step to its tables, stand in folders named ``end_to_end``."""

BOTTOM = {
    f"gradscope.{name}"
    for name in (
        *("copies", "errors", "estimate", "machine", "option", "progress", "reason", "say", "shown", "version"),
        *(
            "outside.limits",
            "outside.numerals",
            "outside.plain_json",
            "outside.rules",
            "outside.torch_archive",
            "writing",
        ),
    )
}
BESIDE_THE_BOTTOM = {"gradscope.outside.plain_json": {"numpy"}, "gradscope.shown": {"matplotlib", "pandas", "pyarrow"}}
"""What reads JSON, and what a result turns into, named for type checkers alone."""
ALLOWED = {
    "catalog": set(),
    "metrics": set(),
    "advantages": {"metrics"},
    "results": set(),
    "rollouts": {"results", "metrics.outcomes.groups"},
    "gradients": {"rollouts", "metrics", "results"},
    "findings": {"results", "metrics", "advantages.registry"},
    "diagnostics": {
        *("gradients", "rollouts", "advantages", "metrics", "catalog", "results", "findings", "render.views")
    },
    "training": {"gradients", "rollouts", "advantages", "metrics"},
    "render": {"results", "catalog"},
    "cli": {
        *("diagnostics", "training", "render", "results", "catalog", "advantages.registry", "rollouts.read_options"),
        *("gradients.engine_options", "gradients.processes"),
    },
    "notebook": {"diagnostics", "render", "results"},
    "__main__": {"cli"},
}
"""Layer -> the layers or single modules of ours that it may import beside the bottom. `cli` makes
flags of two option records, and completes names of metrics and formulations. The recorder of somebody's own script
measures gradients while they train."""

EVERYWHERE = sys.stdlib_module_names | {"msgspec"}  # all records are its structs
THIRD_PARTY = {
    "catalog": set(),
    "metrics": {"numpy", "scipy"},
    "advantages": {"numpy", "scipy"},
    "results": set(),
    "rollouts": {"numpy", "pyarrow", "yaml", "fsspec", "aiohttp"},
    "gradients": {"numpy", "torch", "transformers", "peft", "safetensors", "huggingface_hub"},
    "findings": {"numpy"},
    "diagnostics": {"numpy", "safetensors"},
    "training": {
        *("numpy", "torch", "transformers", "peft", "safetensors", "trl", "datasets", "tokenizers", "accelerate"),
        "math_verify",
    },
    "render": {"numpy", "matplotlib", "rich", "safetensors", "jinja2", "markupsafe", "pyarrow", "pandas"},
    "cli": {"typer", "rich"},
    "notebook": {"matplotlib", "pyarrow", "pandas"},
    "__main__": {"typer"},
}


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def nodes_of(path: Path) -> list[ast.AST]:
    """As by ``ast.walk`` in a third of its time, without the nodes that say whether a name is read or written."""
    nodes: list[ast.AST] = [tree_of(path)]
    for node in nodes:
        for value in vars(node).values():
            if isinstance(value, list):
                nodes += (item for item in value if isinstance(item, ast.AST))
            elif isinstance(value, ast.AST) and not isinstance(value, ast.expr_context):
                nodes.append(value)
    return nodes


@pytest.fixture(scope="module", autouse=True)
def _forget_trees() -> Iterator[None]:
    """A million nodes, through which each garbage collection of later tests would go: half a second a training."""
    yield
    tree_of.cache_clear()
    nodes_of.cache_clear()


def layer_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@cache
def imports_of(path: Path) -> list[tuple[str, int]]:
    """Every imported module with its line; `from a import b` counts as `a.b` where that is a module of ours."""
    pairs: list[tuple[str, int]] = []
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            pairs += ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            pairs += ((name if is_module(name) else str(node.module), node.lineno) for name in inner)
    return pairs


def is_module(name: str) -> bool:
    path = PACKAGE.parent.joinpath(*name.split("."))
    return name.startswith("gradscope.") and (path.is_dir() or path.with_suffix(".py").is_file())


def permitted(layer: str, name: str) -> bool:
    if name in BOTTOM:
        return True
    inside = name.removeprefix("gradscope.")
    return any(inside == allowed or inside.startswith(f"{allowed}.") for allowed in {layer, *ALLOWED[layer]})


def test_imports_point_down_and_each_layer_knows_its_own_third_party_names() -> None:
    wrong = []
    for path in (path for path in modules() if layer_of(path) in ALLOWED):
        layer = layer_of(path)
        allowed = THIRD_PARTY[layer] | EVERYWHERE
        for name, line in imports_of(path):
            top = name.split(".")[0]
            if not (permitted(layer, name) if top == "gradscope" else top in allowed):
                wrong.append(f"{path.relative_to(PACKAGE)}:{line} imports {name}")
    assert not wrong


@pytest.mark.parametrize("folder", BUDGET)
def test_the_house_stays_within_its_budget(folder: str) -> None:
    most_lines, most_modules = BUDGET[folder]
    files = modules_of(folder)
    assert sum(map(num_lines, files)) <= most_lines
    assert len(files) <= most_modules


def test_each_benchmark_makes_what_a_page_names_or_helps_one_that_does() -> None:
    """What nobody names is measured by nobody."""
    root = PACKAGE.parent
    text = "\n".join(pages().values())
    sources = {
        path: path.read_text(encoding="utf-8") for path in modules_of("benchmarks") if path.name != "__init__.py"
    }
    names = {path: path.relative_to(root).as_posix() for path in sources}
    commands = {
        path: name.removesuffix(".py").removesuffix("/__main__").replace("/", ".") for path, name in names.items()
    }
    waiting = [path for path in sources if names[path] in text or commands[path] in text]
    reached = set(waiting)
    while waiting:
        source = sources[waiting.pop()]
        waiting += (helpers := [path for path in sources.keys() - reached if re.search(rf"\b{path.stem}\b", source)])
        reached |= set(helpers)
    assert sorted(names[path] for path in sources.keys() - reached) == []


def pages() -> dict[str, str]:
    root = PACKAGE.parent
    files = [root / "README.md", root / "CONTRIBUTING.md", *sorted((root / "docs").rglob("*"))]
    return {
        path.relative_to(root).as_posix(): path.read_text(encoding="utf-8")
        for path in files
        if path.suffix in (".md", ".csv") and path.stem != "published_files"  # which names the files of others
    }


def test_pages_name_tests_that_exist() -> None:
    """By path, module or name, as ``module.py::test``, ``module (test, ...)`` or a link, but for ``(at <commit>)``."""
    tests = {
        path.relative_to(PACKAGE.parent).as_posix(): set(re.findall(r"\bdef (test_\w+)", path.read_text("utf-8")))
        for path in TESTS.rglob("test_*.py")
    }
    names = set().union({Path(path).stem for path in tests}, *tests.values())
    missing = []
    for page, text in pages().items():
        text = re.sub(r"`[^`]+` \(at [0-9a-f]{8}\)", "", text)
        wrong = {path for path in re.findall(r"\btests/[\w./]*\w", text) if not (PACKAGE.parent / path).exists()}
        wrong |= set(re.findall(r"\btest_\w+", text)) - names
        pairs = re.findall(r"([\w/]*test_\w+)(?:\.py)?(?:::|` \()(test_\w+|(?:`test_\w+`(?:, )?)+\))", text)
        pairs += [(module, name) for name, module in re.findall(r"\[`(test_\w+)`\]\([./]*([\w/]+)\.py\)", text)]
        for module, of_module in pairs:
            defined = set().union(*(own for path, own in tests.items() if f"/{path}".endswith(f"/{module}.py")))
            wrong |= {f"{module}::{name}" for name in set(re.findall(r"test_\w+", of_module)) - defined}
        missing += [f"{page}: {name}" for name in sorted(wrong)]
    assert missing == []


def test_every_file_is_in_a_layer_or_at_the_bottom() -> None:
    bottom = {"__init__", *(name.removeprefix("gradscope.").partition(".")[0] for name in BOTTOM)}
    assert {layer_of(path) for path in modules()} == set(ALLOWED) | bottom


@pytest.mark.parametrize("name", sorted(BOTTOM))
def test_the_bottom_imports_nothing_above_it(name: str) -> None:
    imported = [module for module, _ in imports_of(PACKAGE.parent / f"{name.replace('.', '/')}.py")]
    allowed = EVERYWHERE | BESIDE_THE_BOTTOM.get(name, set())
    assert not [module for module in imported if module not in BOTTOM and module.split(".")[0] not in allowed]


def test_no_two_modules_import_each_other_even_around_corners() -> None:
    """Imports for type checkers count: a circle that only they see is one that a reader walks."""
    assert circles({name: {target for target in targets if target != name} for name, targets in graph().items()}) == []


def test_no_two_folders_side_by_side_import_each_other() -> None:
    """Each folder as one room: a module counts as its own room within its parent folder."""
    for folder in folders():
        depth = len(folder.relative_to(PACKAGE.parent).parts)
        prefix = ".".join(folder.relative_to(PACKAGE.parent).parts)
        rooms: dict[str, set[str]] = {}
        for name, targets in graph().items():
            inside = [other for other in {name, *targets} if other.startswith(f"{prefix}.")]
            if name in inside:
                room = name.split(".")[depth]
                rooms.setdefault(room, set()).update(other.split(".")[depth] for other in inside)
        assert circles({room: targets - {room} for room, targets in rooms.items()}) == [], prefix


def test_no_folder_is_a_corridor() -> None:
    full = {folder.name: len(list(folder.glob("[!_]*.py"))) for folder in folders()}
    assert {name: number for name, number in full.items() if number > MAX_MODULES} == {}


def test_each_module_has_its_test_where_its_name_says() -> None:
    wanted = {path: mirror_of(path.relative_to(PACKAGE)) for path in modules() if path.name != "__init__.py"}
    assert {str(path): str(test) for path, test in wanted.items() if not test.is_file()} == {}


def test_each_test_has_its_module_where_its_name_says() -> None:
    wanted = {mirror_of(path.relative_to(PACKAGE)) for path in modules()} | {TESTS / name for name in OF_THE_WHOLE}
    tests = {path for path in TESTS.rglob("test_*.py") if "end_to_end" not in path.parts}
    own_of_a_family = {test for test in tests if str(test.parent.relative_to(TESTS)) in FAMILIES}
    named = {TESTS / path.relative_to(PACKAGE).parent / f"test_{path.stem}.py" for path in modules()}
    assert sorted(map(str, tests - wanted - (own_of_a_family & named))) == []


def mirror_of(module: Path) -> Path:
    """Where the test of a module stands, its own or that of its family."""
    own = TESTS / module.parent / f"test_{module.stem.strip('_')}.py"
    if own.is_file() or module.parent.as_posix() not in FAMILIES:
        return own
    return TESTS / module.parent.parent / f"test_{module.parent.name}.py"


EMPTY_WORDS = {"the", "a", "an", "of", "its", "it", "this", "that", "their", "one", "to", "be", "is"}


def test_no_line_of_a_docstring_only_repeats_the_name_of_an_argument() -> None:
    echoes = []
    for path in modules():
        for node in nodes_of(path):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                section = (ast.get_docstring(node) or "").partition("Args:\n")[2].partition("\n\n")[0]
                for name, text in re.findall(r"^    \*{0,2}(\w+): ([^\n\[]*)$", section, flags=re.MULTILINE):
                    words = set(re.findall("[a-z]+", text.lower())) - EMPTY_WORDS
                    if words <= {word + plural for word in name.lower().split("_") for plural in ("", "s")}:
                        echoes.append(f"{path.name}: {node.name}: {name}: {text}")
    assert not echoes


def test_what_the_front_door_offers_is_there() -> None:
    for name in gradscope.__all__:
        assert getattr(gradscope, name) is not None
    with pytest.raises(AttributeError, match="module 'gradscope' has no attribute 'measure_ranks'"):
        _ = gradscope.measure_ranks


def test_tab_and_help_show_what_the_front_door_offers() -> None:
    assert dir(gradscope) == sorted(gradscope.__all__)
    page = pydoc.render_doc(gradscope, renderer=pydoc.plaintext)
    assert [name for name in gradscope.__all__ if f"\n    {name}(" not in page and f"class {name}(" not in page] == [
        "__version__"
    ]


def test_no_two_public_names_are_one() -> None:
    """A name that is defined twice is read twice. Commands are called as the command line calls them."""
    homes: dict[str, list[str]] = {}
    for path in modules():
        if path.parent != PACKAGE / "cli" / "commands":
            for node in tree_of(path).body:
                if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
                    homes.setdefault(node.name, []).append(name_of(path))
    assert {name: where for name, where in homes.items() if len(where) > 1} == {}


def folders() -> list[Path]:
    return sorted({path.parent for path in modules()})


@cache
def graph() -> dict[str, set[str]]:
    """Module -> the modules of ours that it imports, the package's front door left out: it only points."""
    names = {name_of(path): path for path in modules() if path.parent != PACKAGE or path.name != "__init__.py"}
    return {name: {target for target, _ in imports_of(path) if target in names} for name, path in names.items()}


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")


def circles(arrows: dict[str, set[str]]) -> list[str]:
    """What is left when every room without a way out is taken away, again and again."""
    left = dict(arrows)
    while done := [room for room, targets in left.items() if not targets & left.keys()]:
        for room in done:
            del left[room]
    return sorted(left)


def test_nothing_but_the_project_is_tracked_at_the_top() -> None:
    tracked = subprocess.run(["git", "ls-files"], cwd=PACKAGE.parent, capture_output=True, text=True)
    if tracked.returncode:
        pytest.skip("the tests run outside a git checkout")
    at_the_top = {name.partition("/")[0] for name in tracked.stdout.splitlines()}
    folders = {".ci", "benchmarks", "docs", "fixtures", "gradscope", "tests"}
    texts = {"CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "README.md"}
    settings = {".gitignore", ".pre-commit-config.yaml", "mkdocs.yml", "pyproject.toml"}
    settings |= {"constraints.txt", "constraints.hashes.txt"}
    assert at_the_top - folders - texts - settings == set()


def test_files_stay_small() -> None:
    lengths = {str(path): num_lines(path) for path in modules()}
    assert {name: length for name, length in lengths.items() if length > MAX_LINES} == {}


def test_nothing_loads_a_pickle_or_remote_code() -> None:
    sources = [(path.name, path.read_text(encoding="utf-8")) for path in modules()]
    odd = {name for name, source in sources if "import pickle" in source or "trust_remote_code=True" in source}
    # The one module that takes plain data out of a pickle; its own tests hold that nothing in it runs.
    assert odd == {"torch_archive.py"}


def loaded_after(commands: list[list[str]], cwd: Path) -> list[set[str]]:
    """The top-level packages in memory after each of some commands, one after the other in a fresh interpreter."""
    code = (
        "import sys\n"
        "from gradscope.__main__ import main\n"
        f"for arguments in {commands!r}:\n"
        "    print('loaded', main(arguments), *{name.split('.')[0] for name in sys.modules}, file=sys.stderr)\n"
    )
    environment = {"PYTHONPATH": str(PACKAGE.parent), "PATH": ""}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=cwd, env=environment, capture_output=True, text=True, check=True
    )
    reported = [line.split()[1:] for line in done.stderr.splitlines() if line.startswith("loaded ")]
    assert [code for code, *_ in reported] == ["0"] * len(commands), done.stderr
    return [set(names) for _, *names in reported]


RIDDLES = frozenset(
    {"found", "told", "kept", "place", "places", "said", "there", "here", "known", "whole", "others", "some", "what"}
    | {
        "given",
        "beside",
        "taken",
        "of",
        "own",
        "one",
        "ones",
        "course",
        "courses",
        "alone",
        "apart",
        "again",
        "further",
    }
    | {"least", "several", "both", "none", "which", "how", "alike", "about", "asked", "odd"}
)
"""Names that say nothing of the thing that they name."""
FIELDS_OF_DOCUMENTS = {"kept", "places", "of", "course", "both"}  # of results, which scripts know


def names_in(path: Path) -> Iterator[str]:
    """The names of variables, parameters, fields, functions and classes."""
    for node in nodes_of(path):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                yield name
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                yield name


def test_names_say_what_a_thing_is() -> None:
    riddles = {
        f"{path.stem}: {name}"
        for path in modules()
        for name in names_in(path)
        if name.strip("_").lower() in RIDDLES
        and not (name.strip("_").lower() in FIELDS_OF_DOCUMENTS and layer_of(path) == "results")
    }
    assert riddles == set()


@pytest.mark.slow
def test_help_loads_nothing_heavy(tmp_path: Path) -> None:
    heavy = {"numpy", "scipy", "pyarrow", "matplotlib", "torch", "transformers"}
    heavy |= {"peft", "trl", "datasets", "accelerate", "pandas", "duckdb"}
    commands = [[*command, "--help"] for command in ([], ["rank"], ["degeneracy"], ["train"], ["check"], ["demo"])]
    assert [
        command for command, names in zip(commands, loaded_after(commands, tmp_path), strict=True) if heavy & names
    ] == []
