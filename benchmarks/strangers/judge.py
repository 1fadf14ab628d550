"""gradscope's answers on one run, beside what the trainer logged and what autograd says."""

import contextlib
import io
import json
import math
from collections.abc import Iterable, Sequence
from typing import Any, Literal, get_args

import numpy as np
from msgspec import Struct

from benchmarks.strangers.case import Case, Folders
from benchmarks.strangers.oracle import Oracle, OracleStep, autocast_spread

Outcome = Literal[
    "exact",
    "spoiling found",
    "within the spread of bf16",
    "within its spread",
    "rightly refused",
    "refused for another reason",
    "refused without need",
    "wrong verdict",
    "crash",
    "oracle disagrees",
]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)  # from the best to the worst

TOLERANCE = 1e-5
FLOOR = 1e-6  # norms below this are rounding
MAX_SPREAD = 2e-2  # the widest spread that still tells something
MAX_SPREAD_ON_A_GRID = 3e-2
"""The same of gradients in bfloat16, whose norms are a multiple of 0.4 to 0.8 %: of two neighbours."""
MIN_SPREAD = 1e-3  # what another way of rounding shows, where the ways that were tried happened to agree


class Judgement(Struct):
    """What came of one case."""

    case: Case
    findings: list[tuple[Outcome, str]] = []
    oracle_error: float = math.nan  # largest relative distance of autograd's norm from the logged one
    replay_error: float = math.nan  # the same of gradscope's
    rank_error: float = math.nan
    """Largest distance of a singular value from autograd's, relative to the group's largest."""

    def find(self, outcome: Outcome, text: str) -> None:
        """Note something."""
        self.findings.append((outcome, text))

    @property
    def outcome(self) -> Outcome:
        """The worst of what was found."""
        return max((outcome for outcome, _ in self.findings), key=OUTCOMES.index, default="wrong verdict")

    @property
    def words(self) -> str:
        """What there is to say, each sentence once."""
        return "; ".join(dict.fromkeys(text for outcome, text in self.findings if text and outcome == self.outcome))


class Answer(Struct, frozen=True):
    """What a command wrote."""

    code: int
    result: dict[str, Any] | None
    said: str


def ask(command: str, case: Case, folders: Folders, *more: str) -> Answer:
    """One command on a run, in this process, its streams caught."""
    from gradscope.__main__ import main

    arguments = [command, str(folders.run), "--json", "--quiet", *_given(case, folders), *more]
    stdout, stderr = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.StringIO()
    with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
        code = main(arguments)
        stdout.flush()
    text = stdout.buffer.getvalue().decode()
    return Answer(code, json.loads(text)["result"] if text.strip() else None, " ".join(stderr.getvalue().split()))


def _given(case: Case, folders: Folders) -> Iterable[str]:
    """The options that the stranger gives."""
    initial = {"model": folders.base, "trainer": folders.initial}.get(case.saved)
    if case.saved == "wrong":
        initial = folders.root / case.initial
    if initial:
        yield from ("--initial", str(initial))
    if case.run_config:
        yield from ("--run-config", str(folders.arguments))


def judge(case: Case, folders: Folders) -> Judgement:
    """Everything about one run."""
    judgement, oracle = Judgement(case), Oracle(case, folders)
    truths = {step: oracle.step(step) for step in case.steps if _can_ask(case, step)}
    _judge_oracle(judgement, oracle, truths)
    _judge_replay(judgement, oracle, ask("replay", case, folders))
    _judge_rank(judgement, truths, ask("rank", case, folders, "--advantage", "logged"))
    return judgement


def _can_ask(case: Case, step: int) -> bool:
    """Whether the oracle has what it needs: it is not asked where the run was spoiled."""
    wanted = case.expected(step) in ("match", "match_bf16") or case.rank == "match"
    return case.oracle and wanted


def _judge_oracle(judgement: Judgement, oracle: Oracle, truths: dict[int, OracleStep]) -> None:
    """That "obtainable" is so: autograd from the disk gives the logged norm."""
    errors = [
        _error(truth.norm, oracle.logged[step])
        for step, truth in truths.items()
        if step in oracle.logged and judgement.case.expected(step) in ("match", "match_bf16")
    ]
    judgement.oracle_error = max(errors, default=math.nan)
    limit = 0.1 if "match_bf16" in (judgement.case.expect, *judgement.case.at.values()) else TOLERANCE
    if judgement.oracle_error > limit:
        judgement.find("oracle disagrees", f"autograd is {judgement.oracle_error:.2g} off the log")


def _error(value: float, logged: float) -> float:
    """Relative, and none where both are rounding."""
    if abs(logged) < FLOOR and abs(value) < FLOOR:
        return 0.0
    return abs(value - logged) / abs(logged) if logged else abs(value)


def _judge_replay(judgement: Judgement, oracle: Oracle, answer: Answer) -> None:
    """Each step's verdict against what is expected of it."""
    case = judgement.case
    if _is_crash(answer, (0, 1, 2)):
        judgement.find("crash", f"replay, exit {answer.code}: {answer.said[:300]}")
        return
    found = {} if answer.result is None else {step["step"]: step for step in answer.result["steps"]}
    for step in case.steps:
        if answer.result is None:
            judgement.find(*_refusal(case, step, f"replay, exit {answer.code}: {answer.said[:300]}"))
        elif step not in found:
            judgement.find(*_refusal(case, step, f"step {step} is not in the report"))
        else:
            _judge_step(judgement, oracle, found[step])


def _is_crash(answer: Answer, allowed: Sequence[int]) -> bool:
    return answer.code not in allowed or "Traceback" in answer.said or (answer.code == 0 and answer.result is None)


def _refusal(case: Case, step: int, reason: str) -> tuple[Outcome, str]:
    """What it means that a step was refused."""
    expected = case.expected(step)
    if expected == "mismatch":
        return "rightly refused", reason
    if expected in ("match", "match_bf16", "match_within"):
        return "refused without need", reason
    if any(word in reason.lower() for word in case.word.lower().split("|")):
        return "rightly refused", reason
    return "refused for another reason", reason


def _judge_step(judgement: Judgement, oracle: Oracle, found: dict[str, Any]) -> None:
    case, step = judgement.case, int(found["step"])
    quantities = {one["name"]: one for one in found["quantities"]}
    norm, logged = quantities["grad_norm"], oracle.logged.get(step, math.nan)
    error = _error(found["recomputed"].get("grad_norm", math.nan), logged)
    said = [part for part in (norm["cause"] or found["cause"], norm.get("advice")) if part]
    expected, cause = case.expected(step), f"step {step}: {'. '.join(said)}"
    if expected == "mismatch":
        judgement.find(*_spoiled(found, cause))
        return
    if not math.isnan(error):
        judgement.replay_error = float(np.nanmax([error, judgement.replay_error]))
    if norm["verdict"] == "no_gradient":
        judgement.find("exact" if logged == 0.0 else "wrong verdict", "" if logged == 0.0 else f"no gradient, {cause}")
    elif expected == "no_gradient":
        judgement.find("wrong verdict", f"{norm['verdict']}, {cause}")
    elif norm["verdict"] == "cannot":
        judgement.find(*_refusal(case, step, cause))
    elif norm["verdict"] == "mismatch":
        judgement.find("wrong verdict", cause)
    elif expected == "match_bf16":
        _judge_bf16(judgement, oracle, step, error)
    elif expected == "match_within":
        _judge_within(judgement, found, error)
    else:
        judgement.find(
            "exact" if error <= TOLERANCE else "wrong verdict", "" if error <= TOLERANCE else f"match, {cause}"
        )
    _judge_rest(judgement, step, quantities)


def _spoiled(found: dict[str, Any], cause: str) -> tuple[Outcome, str]:
    """A step that was spoiled on purpose must not be called a match."""
    if found["verdict"] == "match":
        return "wrong verdict", f"match although spoiled, {cause}"
    return ("rightly refused" if found["verdict"] == "cannot" else "spoiling found"), cause


def _judge_bf16(judgement: Judgement, oracle: Oracle, step: int, error: float) -> None:
    spread = max(autocast_spread(oracle, step), MIN_SPREAD)
    if error <= 4 * spread:
        judgement.find("within the spread of bf16", f"{error:.2g} off, spread {spread:.2g}")
    else:
        judgement.find("wrong verdict", f"match although {error:.2g} off, and the spread is {spread:.2g}")


def _judge_within(judgement: Judgement, found: dict[str, Any], error: float) -> None:
    """A norm that only batches nobody logged would tell exactly: the answer says how closely it can be told."""
    within = found.get("told_within") or 0.0  # none where the norm came out in float32, such as a norm of zero
    most = MAX_SPREAD if judgement.case.dtype == "float32" else MAX_SPREAD_ON_A_GRID
    if error <= max(within, TOLERANCE) and within <= most:
        judgement.find("within its spread", f"{error:.2g} off, told within {within:.2g}")
    else:
        judgement.find("wrong verdict", f"match although {error:.2g} off, told within {within}")


def _judge_rest(judgement: Judgement, step: int, quantities: dict[str, Any]) -> None:
    """Rewards, advantages and the share of dead groups."""
    for name, one in quantities.items():
        if name == "grad_norm" or one["verdict"] == "match":
            continue
        if one["verdict"] == "mismatch":
            judgement.find("wrong verdict", f"step {step}, {name}: {one['cause']}")
        elif name not in judgement.case.partly:
            judgement.find("refused without need", f"step {step}, {name}: {one['cause']}")


def _judge_rank(judgement: Judgement, truths: dict[int, OracleStep], answer: Answer) -> None:
    """Each group's singular values against autograd's."""
    case = judgement.case
    if _is_crash(answer, (0, 2)):
        judgement.find("crash", f"rank, exit {answer.code}: {answer.said[:300]}")
        return
    for step in case.steps:
        expected = case.rank
        if expected == "as replay":
            kind = case.expected(step)
            expected = "any" if kind == "mismatch" else "cannot" if kind == "cannot" else "match"
        found = [] if answer.result is None else _spectra(answer.result, step)
        if expected == "any":
            continue
        if not found and expected == "match":
            judgement.find("refused without need", f"rank: {_why_not(answer, step)}")
        elif found and expected == "cannot":
            judgement.find("wrong verdict", f"rank of step {step} has numbers")
        elif found and step in truths:
            _compare_spectra(judgement, step, found, truths[step].spectra)


def _why_not(answer: Answer, step: int) -> str:
    if answer.result is None:
        return f"exit {answer.code}: {answer.said[:300]}"
    return str(answer.result["skipped"].get(str(step)) or answer.result["refused"] or f"no spectra of step {step}")


def _spectra(result: dict[str, Any], step: int) -> list[dict[str, Any]]:
    """Spectra of the step's groups as logged, in the order of the log."""
    ours = [one for one in result["spectra"] if one["step"] == step and one["group_id"] is not None]
    largest = max((one["group_size"] for one in ours), default=0)
    return [one for one in ours if one["group_size"] == largest]


def _compare_spectra(
    judgement: Judgement, step: int, found: Sequence[dict[str, Any]], truths: Sequence[np.ndarray]
) -> None:
    if len(found) != len(truths):
        judgement.find("wrong verdict", f"rank of step {step} has {len(found)} groups of {len(truths)}")
        return
    is_bf16 = judgement.case.expected(step) == "match_bf16" or judgement.case.dtype != "float32"
    for one, truth in zip(found, truths, strict=True):
        values = np.zeros(len(truth))
        values[: len(one["singular_values"])] = one["singular_values"][: len(truth)]
        largest = float(truth.max())
        error = float(np.abs(values - truth).max()) / largest if largest > FLOOR else float(values.max() > FLOOR)
        judgement.rank_error = float(np.nanmax([error, judgement.rank_error]))
        allowed = max(TOLERANCE, one["noise_floor"] / largest if largest > FLOOR and is_bf16 else 0.0)
        if error > allowed:
            judgement.find("wrong verdict", f"rank of step {step}, group {one['group_id']}: {error:.2g} off")
