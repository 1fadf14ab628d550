import hashlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gradscope.advantages import registry
from gradscope.advantages.formulation import Formulation, is_in_file, read_formulation
from gradscope.errors import UsageError


def made_up(**fields: Any) -> Formulation:
    requirements = {"needs_binary": False, "min_group_size": 1, "zero_sum": False}
    return Formulation(**{"name": "made_up", "formula": "r", "source": "nobody"} | requirements | fields)


def test_rewards_with_an_advantage_have_no_reason_against_it() -> None:
    assert made_up().why_not([0.3, 7.0]) is None
    assert made_up(needs_binary=True).why_not([[0.0, 1.0], [1.0, 1.0]]) is None
    assert made_up(scope="step").why_not(np.zeros((3, 2))) is None


@pytest.mark.parametrize(
    ("scope", "words"),
    [("run", "earlier steps of the run"), ("token", "one advantage per token"), ("gram", "norms of score vectors")],
)
def test_what_rewards_do_not_decide_comes_before_everything_else(scope: str, words: str) -> None:
    assert words in str(made_up(scope=scope, min_group_size=9, needs_binary=True).why_not([0.5]))


HEAD = """from dataclasses import dataclass
import numpy as np
from gradscope import advantage_formulation

@dataclass
class Scale:
    by: float = 2.0
"""


def write(folder: Path, body: str, *, head: str = HEAD) -> str:
    file = folder / "my.py"
    file.write_text(head + body)
    return str(file)


def function(folder: Path, line: str, options: str = "") -> str:
    body = f'@advantage_formulation({options})\ndef own(r):\n    """the formula"""\n    {line}\n'
    return f"{write(folder, body)}:own"


def test_a_function_of_a_group_is_called_a_group_at_a_time(tmp_path: Path) -> None:
    name = function(tmp_path, "assert r.ndim == 1; return (r - np.median(r)) * Scale().by")
    entry = registry.named_formulation(name)
    assert (entry.name, entry.formula, entry.source) == (name, "the formula", str(tmp_path / "my.py"))
    assert entry.digest == hashlib.sha256((tmp_path / "my.py").read_bytes()).hexdigest()
    assert registry.compute_advantages(name, [[1.0, 0.0, 0.0], [0.5, 0.5, 0.0]]).tolist() == [
        [2.0, 0.0, 0.0],
        [0.0, 0.0, -1.0],
    ]
    ragged = registry.compute_step_advantages(name, [[1.0, 0.0, 0.0], [1.0]])
    assert [group.tolist() for group in ragged] == [[2.0, 0.0, 0.0], [0.0]]
    assert not list(tmp_path.glob("__pycache__"))


def test_a_function_of_a_step_is_called_once(tmp_path: Path) -> None:
    name = function(tmp_path, "return [g - np.mean([o.mean() for o in r]) for g in r]", "by_step=True")
    registry.named_formulation(name)
    advantages = registry.compute_step_advantages(name, [[1.0, 1.0, 1.0], [0.0]])
    assert [group.tolist() for group in advantages] == [[0.5, 0.5, 0.5], [-0.5]]
    with pytest.raises(UsageError, match="it is relative to all groups of a step, and this is one group"):
        registry.compute_advantages(name, [1.0, 0.0])


def test_a_function_may_write_to_its_rewards_and_its_requirements_hold(tmp_path: Path) -> None:
    name = function(tmp_path, "r -= 0.5; return r", "needs_binary=True, min_group_size=2")
    rewards = np.array([1.0, 0.0])
    registry.named_formulation(name)
    assert registry.compute_advantages(name, rewards).tolist() == [0.5, -0.5]
    assert rewards.tolist() == [1.0, 0.0]
    with pytest.raises(UsageError, match="needs groups of at least 2, this one has 1"):
        registry.compute_advantages(name, [1.0])
    with pytest.raises(UsageError, match=r"there is a reward of 0\.5"):
        registry.compute_advantages(name, [1.0, 0.5, 0.0])


@pytest.mark.parametrize(
    ("line", "options", "message"),
    [
        ("return r[:1]", "", r"gives advantages of shape \(1,\) for rewards of shape \(2,\)"),
        ("return r[None]", "", r"gives advantages of shape \(1, 2\) for rewards of shape \(2,\)"),
        ("return None", "", "gives advantages of shape"),
        ("return ['a', 'b']", "", "gives no numbers: could not convert"),
        ("return [r, r[:1]]", "", "gives no numbers: setting an array element"),
        *((f"return r * np.{number}", "", "gives an advantage that is not finite") for number in ("nan", "inf")),
        ("return r[7]", "", r"fails: IndexError: index 7 is out of bounds .*\(line 11\)"),
        ("raise ValueError", "", r"fails: ValueError \(line 11\)"),
        *((line, "by_step=True", "gives no list of 2 arrays for 2 groups") for line in ("return r[:1]", "return 1.0")),
        ("return [g[:1] for g in r]", "by_step=True", r"shape \(1,\) for rewards of shape \(2,\)"),
    ],
)
@pytest.mark.filterwarnings("ignore:invalid value")
def test_an_answer_that_is_none_is_refused(tmp_path: Path, line: str, options: str, message: str) -> None:
    name = function(tmp_path, line, options)
    registry.named_formulation(name)
    with pytest.raises(UsageError, match=message):
        registry.compute_step_advantages(name, [[1.0, 0.0], [0.0, 2.0]])


MEND, DECORATE = "Mend the file.", "Put @gradscope.advantage_formulation() above it."


@pytest.mark.parametrize(
    ("body", "message", "hint"),
    [
        ("def own(r: return r", r"my.py does not run: SyntaxError: .* \(line 8\)", MEND),
        ("raise RuntimeError('no luck.')", r"does not run: RuntimeError: no luck \(line 8\)", MEND),
        ("import sys; sys.exit(3)", r"does not run: SystemExit: 3 \(line 8\)", MEND),
        ("import no_such_module", "does not run: ModuleNotFoundError: No module named", MEND),
        ("", "'own' is not there in .*my.py", DECORATE),
        ("def own(r): return r", "'own' is no formulation in", DECORATE),
        ("own = 3", "'own' is not there", DECORATE),
        ("@advantage_formulation()\ndef other(r): return r", "'own' is not there", "has other."),
    ],
)
def test_a_file_without_the_function_is_refused(tmp_path: Path, body: str, message: str, hint: str) -> None:
    modules = set(sys.modules)
    with pytest.raises(UsageError, match=message) as caught:
        read_formulation(f"{write(tmp_path, body)}:own")
    assert caught.value.hint.endswith(hint)
    assert "does not run" not in message or set(sys.modules) == modules


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "folder.py").mkdir()
    for path, message in (("none.py", "No such file"), ("folder.py", "not a regular file|directory")):
        with pytest.raises(Exception, match=message):
            read_formulation(f"{tmp_path / path}:own")


def test_nothing_runs_that_nobody_named(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    name = write(tmp_path, f"open({str(ran)!r}, 'w').close()\n") + ":own"
    assert not registry.is_formulation(name)
    with pytest.raises(UsageError, match="is code in a file, which runs only where you name it") as caught:
        registry.formulation(name)
    assert caught.value.hint == f"Add --advantage {name}"
    assert not ran.exists()


def test_a_file_is_read_again_when_it_is_named_again(tmp_path: Path) -> None:
    first = registry.named_formulation(function(tmp_path, "return r"))
    second = registry.named_formulation(function(tmp_path, "return 2 * r"))
    assert first.digest != second.digest
    assert registry.compute_advantages(second.name, [1.0]).tolist() == [2.0]
    assert registry.formulation(second.name) is second


def test_names_of_files() -> None:
    assert all(is_in_file(name) for name in ("a.py:b", "x/a.py:b"))
    assert not any(is_in_file(name) for name in ("a.py:", ":b", "a:b", "grpo"))
    assert registry.short_name("x/y/a.py:b") == "a.b"
