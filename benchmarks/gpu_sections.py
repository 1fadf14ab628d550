"""The sections of `gpu.py`, in the order of their worth."""

import subprocess
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

from msgspec.structs import replace

from benchmarks.gpu_setting import Case, Row, Section, Setting, plain_pass, prepared_step
from benchmarks.random_steps import product_flops

REPOSITORY = Path(__file__).resolve().parent.parent
STEPS = (
    *(("4B", "full", 8, 300), ("0.5B", "full", 8, 300), ("8B", "full", 8, 300), ("4B", "lora", 8, 300)),
    *(("4B", "full", 8, 2000), ("4B", "full", 64, 300), ("8B", "lora", 8, 2000), ("8B", "full", 8, 2000)),
    *(("0.5B", "full", 64, 300), ("0.5B", "full", 8, 2000), ("0.5B", "lora", 64, 300), ("0.5B", "full", 64, 2000)),
    *(("8B", "lora", 64, 300), ("4B", "lora", 64, 2000), ("8B", "full", 64, 300), ("4B", "full", 64, 2000)),
)
"""Shape, what is trained, rollouts, tokens of each."""


def tests(setting: Setting) -> Iterator[Case]:
    """The tests marked gpu: figures of wrong numbers are worth nothing."""
    limit = ["--version"] if setting.dry else []  # or they would be collected, and skipped

    def run() -> Iterator[Row]:
        command = [sys.executable, "-m", "pytest", "-m", "gpu", "-n0", "-q", "-p", "no:cacheprovider", *limit, "tests"]
        done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
        lines = done.stdout.strip().splitlines() or [done.stderr.strip()]
        wrong = [line.split()[1].rpartition("::")[2] for line in lines if line.startswith(("FAILED", "ERROR"))]
        yield Row(
            note=f"{'failed: ' if done.returncode else ''}{lines[-1].strip('= ')} {' '.join(wrong)[:300]}".strip()
        )

    yield Case("pytest -m gpu", run)


def rates(setting: Setting) -> Iterator[Case]:
    """The card's own rates: what every other figure is held to."""
    import torch

    for name, dtype, precision in (
        ("bf16", torch.bfloat16, "highest"),
        ("tf32", torch.float32, "high"),
        ("fp32", torch.float32, "highest"),
        ("fp64", torch.float64, "highest"),
    ):
        yield Case(f"products in {name}", partial(_products, setting, name, dtype, precision))
    yield Case("Gram of few rows", partial(_few_rows, setting))


def _products(setting: Setting, name: str, dtype: Any, precision: str) -> Iterator[Row]:
    import torch

    size = 64 if setting.dry else 4096 if dtype in (torch.float64, torch.float32) else 8192
    first, second = (torch.randn(size, size, device=setting.device).to(dtype) for _ in "ab")
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        seconds = setting.seconds(lambda: first @ second, 5)
    finally:
        torch.set_float32_matmul_precision(before)
    setting.rates[name] = 2 * size**3 / min(seconds)
    yield Row(seconds, note=f"{setting.rates[name] / 1e12:.3g} TFLOP/s")


def _few_rows(setting: Setting) -> Iterator[Row]:
    """The Gram of a slice of eight float32 rows: the longest sums of the smallest matrix."""
    import torch

    from gradscope.gradients.engines.loop import GramAccumulator

    rows = torch.randn(8, 2**16 if setting.dry else 2**24, device=setting.device)
    for name, is_coarse in (("added in float64", False), ("in float32 within chunks", True)):
        accumulator = GramAccumulator(8, setting.device, is_coarse=is_coarse)
        seconds = setting.seconds(partial(accumulator.products, rows), 5)
        yield Row(seconds, note=f"{rows.nbytes / min(seconds) / 1e9:.0f} GB/s", name=f"Gram of 8 rows, {name}")


def steps(setting: Setting) -> Iterator[Case]:
    """One measured step over one plain pass, over the floor, and its memory; and where its time goes."""
    for shape, trained, size, length in STEPS[:1] if setting.dry else STEPS:
        yield Case(f"{shape} {trained} R={size} T={length}", partial(_made_step, setting, shape, trained, size, length))


def _made_step(setting: Setting, shape: str, trained: str, size: int, length: int) -> Iterator[Row]:
    return _step(setting, prepared_step(setting, setting.policy(shape, trained), size, length))


def _step(setting: Setting, prepared: Any, **options: Any) -> Iterator[Row]:
    """Rows of one step: whole, engine alone, plain pass."""
    from gradscope.gradients.step import measure

    plain = plain_pass(prepared)
    plain_seconds = setting.seconds(plain)
    middle = sorted(plain_seconds)[len(plain_seconds) // 2]
    num_tokens = sum(sequence.num_tokens for sequence in prepared.plan.sequences)
    num_predicted = sum(len(sequence.completion_ids) for sequence in prepared.plan.sequences)
    flops = product_flops(prepared.policy, num_tokens, num_predicted)
    floor = flops / setting.rates["bf16"] if "bf16" in setting.rates else None
    found: list[Any] = []
    parts: dict[str, list[float]] = {"verify_gram": [], "relative_row_error": []}

    def timed(name: str) -> Callable[..., Any]:
        real = getattr(measure, name)

        def work(*arguments: Any, **keywords: Any) -> Any:
            answer: list[Any] = []
            parts[name].append(setting.once(lambda: answer.append(real(*arguments, **keywords))))
            return answer[0]

        return work

    def whole() -> None:
        found[:] = [measure.measure_step(prepared, **options)]

    peak = setting.peak(whole)
    with ExitStack() as patches:
        for name in parts:
            patches.enter_context(mock.patch.object(measure, name, timed(name)))
        seconds = [setting.once(whole) for _ in range(setting.repeats)]
    check, error = (parts[name] for name in parts)
    engine = [all_ - a - b for all_, a, b in zip(seconds, check, error, strict=True)]
    batches = len(prepared.batches(range(len(prepared.plan.rows)), prepared.budget.tokens))
    step = found[0]
    note = f"engine {step.engine}, {batches} batches, self-check {check[-1]:.3g} s, row error {error[-1]:.3g} s"
    yield Row(seconds, middle, floor, peak, note=". ".join([note, *prepared.budget.notes]))
    yield Row(engine, middle, floor, name="    the engine alone")
    yield Row(plain_seconds, middle, floor, setting.peak(plain), name="    plain")


def waits(setting: Setting) -> Iterator[Case]:
    """How often the program waits for the card in one step, and for what."""

    def run() -> Iterator[Row]:
        import torch

        from gradscope.gradients.step.measure import measure_step

        prepared = prepared_step(setting, setting.policy("0.5B"), 8, 300)
        measure_step(prepared)
        seen: Counter[str] = Counter()

        def note(message: Any, category: Any, filename: str, lineno: int, *_: Any) -> None:
            if "synchroniz" in str(message):
                seen[f"{Path(filename).stem}:{lineno}"] += 1

        on_card = setting.device.type == "cuda"
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            with mock.patch.object(warnings, "showwarning", note):
                if on_card:
                    torch.cuda.set_sync_debug_mode("warn")
                try:
                    measure_step(prepared)
                finally:
                    if on_card:
                        torch.cuda.set_sync_debug_mode("default")
        most = ", ".join(f"{place} {number}" for place, number in seen.most_common(8))
        layers = prepared.policy.model.config.num_hidden_layers
        counted = f"{sum(seen.values())} waits in {layers} layers and 8 rows: {most}"
        yield Row(note=counted if on_card else "counted on a GPU only; tests/gradients/end_to_end/test_other_device.py")

    yield Case("0.5B full R=8 T=300", run)


def precision(setting: Setting) -> Iterator[Case]:
    """Singular values in bfloat16 against float32, beside the floor that the result states."""

    def run() -> Iterator[Row]:
        import numpy as np
        import torch

        from gradscope.gradients.step.measure import measure_step

        policy, found = setting.policy("0.5B"), []
        setting.forget()
        for dtype in (torch.bfloat16, torch.float32):  # the same weights, which bfloat16 holds
            policy.model.to(dtype)
            found.append(measure_step(prepared_step(setting, replace(policy, dtype=dtype), 8, 300)))
        rough, exact = (np.sqrt(np.clip(np.linalg.eigvalsh(s.score_gram)[::-1], 0, None)) for s in found)
        error = float(np.max(np.abs(rough - exact)) / np.linalg.norm(exact))
        floor, first = found[0].relative_row_error, rough[0] / exact[0] - 1
        yield Row(
            note=f"largest difference {error:.2e} of the norm, stated floor {floor:.2e}; of the first {first:+.2e}"
        )

    yield Case("0.5B full R=8 T=300, bf16 against fp32", run)


def prompts(setting: Setting) -> Iterator[Case]:
    """What running a shared prompt once saves."""
    cases = (("4B", "full", 512), ("4B", "lora", 512), ("4B", "lora", 1536))
    for shape, trained, prompt in cases[-1:] if setting.dry else cases:
        name = f"{shape} {trained} R=8, prompt {prompt} and 128 more"
        yield Case(name, partial(_shared_prompt, setting, shape, trained, prompt))


def _shared_prompt(setting: Setting, shape: str, trained: str, prompt: int) -> Iterator[Row]:
    prepared = prepared_step(setting, setting.policy(shape, trained), 8, prompt + 128, prompt)
    for engine in ("prompt", "stream"):
        whole, *_, plain = _step(setting, prepared, engine=engine)
        yield replace(whole, name=f"{engine}, {shape} {trained}, {prompt}")
    yield replace(plain, name=f"plain, {shape} {trained}, {prompt}")


def tokens(setting: Setting) -> Iterator[Case]:
    """Token rows, exact and sketched, over a plain pass of the group."""
    policies = (("0.5B", "full"), ("0.5B", "lora"), ("4B", "lora"), ("4B", "full"))
    for shape, trained in policies[:1] if setting.dry else policies:
        yield Case(f"{shape} {trained}, exact", partial(_token_rows, setting, shape, trained))
    sketch = partial(_token_rows, setting, "0.5B", "full", num_buckets=64 if setting.dry else 4096)
    yield Case("0.5B full, sketched in 4096", sketch)


def _token_rows(setting: Setting, shape: str, trained: str, **options: Any) -> Iterator[Row]:
    from gradscope.gradients.step.measure import measure_step
    from gradscope.gradients.tokens.measure import measure_tokens

    prepared = prepared_step(setting, setting.policy(shape, trained), 8, 300)
    step = measure_step(prepared)
    most = setting.size(128)
    work = partial(measure_tokens, prepared, step, max_tokens=most, **options)
    peak = setting.peak(work)
    plain = min(setting.seconds(plain_pass(prepared)))
    yield Row([setting.once(work)], plain, peak=peak, note=f"{most} tokens a group, checked")


def settings(setting: Setting) -> Iterator[Case]:
    """Constants that were chosen without a GPU, at other values."""
    for size in (2**26, 2**28, 2**30)[: 1 if setting.dry else None]:
        yield Case(f"4B full R=8 T=300, engine, slices of {size / 2**20:.0f} MiB", partial(_slices, setting, size))
    yield Case("0.5B full R=8 T=300, engine, batches of two", partial(_batches, setting))


def _slices(setting: Setting, size: int) -> Iterator[Row]:
    from gradscope.gradients.engines import loop

    prepared = prepared_step(setting, setting.policy("4B"), 8, 300)
    with mock.patch.object(loop, "CUDA_SLICE_BYTES", size):
        _, engine, _ = _step(setting, prepared, engine="stream")
    yield replace(engine, name="")


def _batches(setting: Setting) -> Iterator[Row]:
    from gradscope.gradients.model.budget import TokenBudget

    prepared = prepared_step(setting, setting.policy("0.5B"), 8, 300)
    budget = TokenBudget(max(prepared.plan.lengths) * 2, fixed=True)
    _, engine, _ = _step(setting, replace(prepared, budget=budget), engine="stream")
    yield replace(engine, name="", note="pairs wait on the CPU")


SECTIONS = (
    Section("tests", 90, tests),
    Section("rates", 15, rates),
    Section("steps", 240, steps),
    Section("waits", 15, waits),
    Section("precision", 25, precision),
    Section("prompts", 45, prompts),
    Section("settings", 40, settings),
    Section("tokens", 70, tokens),
)
"""With seconds of nine and a half minutes as their shares."""
