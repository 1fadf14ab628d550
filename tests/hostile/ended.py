"""A recorder in trainers that raise, are interrupted, killed, slow, or out of memory or disk, at each phase.

The trainer is alone, or two processes: of DDP, of FSDP2 (they share the model), or of torchrun; the second ends.

What was recorded until then is read by everybody, whole steps alone, and the same place can be recorded again.
"""

import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.forked import ForkedPython
from tests.hostile.cases import called, options_of, summarize
from tests.launched import start_processes

PHASES = ("on_train_begin", "on_step_begin", "reward", "on_pre_optimizer_step", "on_step_end", "on_log", "on_save")
HOWS = {
    "raise": "raise RuntimeError('over')",
    "interrupt": "raise KeyboardInterrupt",
    "kill": "os.kill(os.getpid(), signal.SIGKILL)",
    "full": "resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))",
    "memory": "resource.setrlimit(resource.RLIMIT_AS, (1 << 28, 1 << 28)); bytearray(1 << 28)",
    "slow": "time.sleep(5)",
}
_SCRIPT = """
import os, resource, signal, sys, time
if os.environ.get("SHARDED"):
    from tests.training.two_processes import shard_on_the_cpu
    shard_on_the_cpu()
from pathlib import Path
from transformers import TrainerCallback
from gradscope.training import RolloutRecorder
from tests.training.stock import graded, stock_trainer, train

phase, at = sys.argv[1], int(sys.argv[2])
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
mine = os.environ.get("RANK", "1") == "1"
def end():
    {how}
class Ending(TrainerCallback):
    pass
def watched(self, args, state, control, **more):
    if mine and (state.global_step >= at or phase == "on_train_begin"):
        end()
if phase.startswith("on_"):
    setattr(Ending, phase, watched)
calls = []
def rewards(completions, **more):
    calls.append(0)
    if phase == "reward" and mine and len(calls) > at:
        end()
    return graded(completions, **more)
size = 16 // int(os.environ.get("WORLD_SIZE", "1"))
sizes = {"per_device_train_batch_size": size, "save_strategy": "steps", "save_steps": 1}
trainer = stock_trainer(Path("trl"), rewards=rewards, **sizes)
RolloutRecorder(trainer, "run", weights_every=1, force=True)
trainer.add_callback(Ending())
train(trainer)
"""
PATIENCE = 240.0  # seconds until processes that wait for a dead one are called hung; the machine may be busy


LAUNCHES = ("alone", "two", "sharded", "torchrun")


def trial(folder: Path, phase: str, how: str, at: int, launch: str) -> str:
    """Record until an end of ``HOWS`` comes in a phase after ``at`` updates; why what is left did not hold."""
    script = folder / "trainer.py"
    script.write_text(_SCRIPT.replace("{how}", HOWS[how]), encoding="utf-8")
    arguments = (str(script), phase, str(at))
    if launch in ("two", "sharded"):
        more = {"SHARDED": "yes"} if launch == "sharded" else {}
        processes = start_processes(2, *arguments, cwd=folder, more=more)
    else:
        torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2") if launch == "torchrun" else ()
        processes = [ForkedPython((*torchrun, *arguments), cwd=folder)]
    try:
        codes = [process.wait(PATIENCE) for process in processes]
    except Exception as error:
        return f"hung: {error!r}"[:300]
    finally:
        for process in processes:
            process.kill()
    if not any(codes) and phase != "on_save" and how not in ("full", "slow"):
        return f"ended with {codes}"
    return _left(folder / "run", at) or _again(folder, how)


def _left(run: Path, at: int) -> str:
    """Whole steps, no fewer than updates that were done, and nothing half."""
    files = sorted(run.glob("rollouts/step_*.parquet"))
    if not files:
        return "" if at == 0 else "no step is left"
    code, out, err = called(["degeneracy", str(run), "--json"])
    if code != 0:
        return f"what is left is not read ({code}): {err[-500:]}"
    result = json.loads(out)["result"]
    if result["quarantined"]["num_rows"] or result["num_rollouts"] != 16 * len(files):
        return f"{result['num_rollouts']} rollouts in {len(files)} steps"
    if len(files) < at:
        return f"{len(files)} steps of {at} updates"
    return ""


def _again(folder: Path, how: str) -> str:
    again = ForkedPython(("-c", _SCRIPT.replace("{how}", "pass"), "none", "0"), cwd=folder)
    code = again.wait(PATIENCE)
    if code:
        return f"recording again ended with {code}: {again.communicate()[1][-500:]}"
    left = [path.name for path in folder.rglob(".*") if path.name.endswith((".partial", ".lock", ".unfinished"))]
    return f"these are left: {left}" if left else _left(folder / "run", 3)


def campaign(phases: Sequence[str], hows: Sequence[str], launches: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Each end in each phase; its name, and why it did not hold."""
    for launch in launches:
        for phase in phases:
            for how in hows:
                with tempfile.TemporaryDirectory() as folder:
                    at = int(phase != "on_train_begin")
                    yield f"{launch}, {phase}, {how}", trial(Path(folder), phase, how, at, launch)


if __name__ == "__main__":
    options = options_of("ended", __doc__, phase=PHASES, how=tuple(HOWS), launch=LAUNCHES)
    sys.exit(summarize(campaign(options.phase, options.how, options.launch)))
