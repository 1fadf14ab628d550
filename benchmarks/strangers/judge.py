"""gradscope's answers on one run, beside what the trainer logged and what autograd says."""

import contextlib
import io
import json
import math
from collections.abc import Sequence
from typing import Any, Literal, get_args

import numpy as np
from msgspec import Struct

from benchmarks.oracle import spectrum_error
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

    def check(self, is_right: bool, outcome: Outcome, right: str, wrong: str) -> None:
        """Note an outcome with what there is to say of it, or a wrong verdict."""
        self.find(outcome if is_right else "wrong verdict", right if is_right else wrong)

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

    command: str
    code: int
    result: dict[str, Any] | None
    stderr: str

    @property
    def said(self) -> str:
        """What it said where it gave no result."""
        return f"{self.command}, exit {self.code}: {self.stderr[:300]}"

    @property
    def is_crash(self) -> bool:
        """Whether it ended in no way that is documented."""
        allowed = (0, 1, 2) if self.command == "replay" else (0, 2)
        return self.code not in allowed or "Traceback" in self.stderr or (self.code == 0 and self.result is None)


def ask(command: str, case: Case, folders: Folders, *more: str) -> Answer:
    """One command on a run, in this process, with the options that the stranger gives; its streams are caught."""
    from gradscope.__main__ import main

    initial = {"model": folders.base, "trainer": folders.initial, "wrong": folders.root / case.initial}.get(case.saved)
    options = ["--initial", str(initial)] if initial else []
    options += ["--run-config", str(folders.arguments)] if case.run_config else []
    stdout, stderr = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.StringIO()
    with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
        code = main([command, str(folders.run), "--json", "--quiet", *options, *more])
        stdout.flush()
    text, said = stdout.buffer.getvalue().decode(), " ".join(stderr.getvalue().split())
    return Answer(command, code, json.loads(text)["result"] if text.strip() else None, said)


def judge(case: Case, folders: Folders) -> Judgement:
    """Everything about one run; the oracle is not asked where the run was spoiled."""
    judgement, oracle = Judgement(case), Oracle(case, folders)
    wanted = [step for step in case.steps if case.rank == "match" or case.expected(step) in ("match", "match_bf16")]
    truths = {step: oracle.step(step) for step in wanted if case.oracle}
    _judge_oracle(judgement, oracle, truths)
    _judge_replay(judgement, oracle, ask("replay", case, folders))
    _judge_rank(judgement, truths, ask("rank", case, folders, "--advantage", "logged"))
    return judgement


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
    if answer.is_crash:
        judgement.find("crash", answer.said)
        return
    found = {} if answer.result is None else {step["step"]: step for step in answer.result["steps"]}
    for step in case.steps:
        if step in found:
            _judge_step(judgement, oracle, found[step])
        else:
            reason = answer.said if answer.result is None else f"step {step} is not in the report"
            judgement.find(*_refusal(case, step, reason))


def _refusal(case: Case, step: int, reason: str) -> tuple[Outcome, str]:
    """What it means that a step was refused."""
    expected = case.expected(step)
    if expected in ("match", "match_bf16", "match_within"):
        return "refused without need", reason
    if expected == "mismatch" or any(word in reason.lower() for word in case.word.lower().split("|")):
        return "rightly refused", reason
    return "refused for another reason", reason


def _judge_step(judgement: Judgement, oracle: Oracle, found: dict[str, Any]) -> None:
    case, step = judgement.case, int(found["step"])
    quantities = {quantity["name"]: quantity for quantity in found["quantities"]}
    norm, logged = quantities["grad_norm"], oracle.logged.get(step, math.nan)
    error = _error(found["recomputed"].get("grad_norm", math.nan), logged)
    said = [part for part in (norm["cause"] or found["cause"], norm.get("advice")) if part]
    expected, cause = case.expected(step), f"step {step}: {'. '.join(said)}"
    if expected == "mismatch":
        outcome: Outcome = "rightly refused" if found["verdict"] == "cannot" else "spoiling found"
        judgement.check(found["verdict"] != "match", outcome, cause, f"match although spoiled, {cause}")
        return
    if not math.isnan(error):
        judgement.replay_error = float(np.nanmax([error, judgement.replay_error]))
    if norm["verdict"] == "no_gradient":
        judgement.check(logged == 0.0, "exact", "", f"no gradient, {cause}")
    elif expected == "no_gradient":
        judgement.find("wrong verdict", f"{norm['verdict']}, {cause}")
    elif norm["verdict"] == "cannot":
        judgement.find(*_refusal(case, step, cause))
    elif norm["verdict"] == "mismatch":
        judgement.find("wrong verdict", cause)
    elif expected == "match_bf16":
        spread = max(autocast_spread(oracle, step), MIN_SPREAD)
        off = f"{error:.2g} off, spread {spread:.2g}"
        judgement.check(error <= 4 * spread, "within the spread of bf16", off, f"match although {off}")
    elif expected == "match_within":
        # a norm that only batches nobody logged would tell exactly: the answer says how closely it can be told, but for
        # one that came out in float32, such as a norm of zero
        within = found.get("told_within") or 0.0
        off = f"{error:.2g} off, told within {within:.2g}"
        most = MAX_SPREAD if case.dtype == "float32" else MAX_SPREAD_ON_A_GRID
        is_right = error <= max(within, TOLERANCE) and within <= most
        judgement.check(is_right, "within its spread", off, f"match although {off}")
    else:
        judgement.check(error <= TOLERANCE, "exact", "", f"match, {cause}")
    _judge_rest(judgement, step, quantities)


def _judge_rest(judgement: Judgement, step: int, quantities: dict[str, Any]) -> None:
    """Rewards, advantages and the share of dead groups."""
    for name, quantity in quantities.items():
        if name == "grad_norm" or quantity["verdict"] == "match":
            continue
        if quantity["verdict"] == "mismatch":
            judgement.find("wrong verdict", f"step {step}, {name}: {quantity['cause']}")
        elif name not in judgement.case.partly:
            judgement.find("refused without need", f"step {step}, {name}: {quantity['cause']}")


def _judge_rank(judgement: Judgement, truths: dict[int, OracleStep], answer: Answer) -> None:
    """Each group's singular values against autograd's."""
    case, result = judgement.case, answer.result
    if answer.is_crash:
        judgement.find("crash", answer.said)
        return
    for step in case.steps:
        expected = case.rank
        if expected == "as replay":
            kind = case.expected(step)
            expected = "any" if kind == "mismatch" else "cannot" if kind == "cannot" else "match"
        found = [] if result is None else _spectra(result, step)
        if expected == "any":
            continue
        if not found and expected == "match":
            skipped = None if result is None else result["skipped"].get(str(step)) or result["refused"]
            judgement.find("refused without need", f"no spectra of step {step}: {skipped or answer.said}")
        elif found and expected == "cannot":
            judgement.find("wrong verdict", f"rank of step {step} has numbers")
        elif found and step in truths:
            _compare_spectra(judgement, step, found, truths[step].spectra)


def _spectra(result: dict[str, Any], step: int) -> list[dict[str, Any]]:
    """Spectra of the step's groups as logged, in the order of the log."""
    ours = [spectrum for spectrum in result["spectra"] if spectrum["step"] == step and spectrum["group_id"] is not None]
    largest = max((spectrum["group_size"] for spectrum in ours), default=0)
    return [spectrum for spectrum in ours if spectrum["group_size"] == largest]


def _compare_spectra(
    judgement: Judgement, step: int, found: Sequence[dict[str, Any]], truths: Sequence[np.ndarray]
) -> None:
    if len(found) != len(truths):
        judgement.find("wrong verdict", f"rank of step {step} has {len(found)} groups of {len(truths)}")
        return
    is_bf16 = judgement.case.expected(step) == "match_bf16" or judgement.case.dtype != "float32"
    for verdict, truth in zip(found, truths, strict=True):
        values, largest = verdict["singular_values"], float(truth.max())
        error = spectrum_error(values, truth) if largest > FLOOR else float(max(values, default=0.0) > FLOOR)
        judgement.rank_error = float(np.nanmax([error, judgement.rank_error]))
        allowed = max(TOLERANCE, verdict["noise_floor"] / largest if largest > FLOOR and is_bf16 else 0.0)
        if error > allowed:
            judgement.find("wrong verdict", f"rank of step {step}, group {verdict['group_id']}: {error:.2g} off")
