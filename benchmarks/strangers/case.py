"""What one stranger's run is, and what is expected of gradscope when it looks at it."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct, field

from benchmarks.strangers.texts import TokenizerChoice

Expected = Literal["match", "match_bf16", "match_within", "no_gradient", "cannot", "mismatch"]
"""``mismatch``: the run was spoiled on purpose, and anything but a match is right."""

RankExpected = Literal["as replay", "match", "cannot", "any"]
"""Whether each group's singular values can be had; ``any``: not judged."""


class Folders:
    """Where a case lives."""

    def __init__(self, root: Path) -> None:
        self.root = root  # everything of the case
        self.run = root / "run"  # the trainer's output_dir
        self.base = root / "base"  # the model that training started from, saved before
        self.initial = root / "initial"  # what the script saved of the trainer's model before its first update
        self.other = root / "other"  # weights that have nothing to do with the run
        self.arguments = root / "args.json"  # the trainer's arguments, as the stranger gives them to gradscope
        self.truth = root / "truth.json"  # what the oracle needs to know; gradscope never sees it

    def checkpoint(self, step: int) -> Path:
        """The trainer's weights after an update."""
        return self.run / f"checkpoint-{step}"

    def completions(self, step: int) -> Path:
        """The rollouts that TRL logged at a step."""
        return self.run / "completions" / f"completions_{step:05d}.parquet"


class Case(Struct, frozen=True, kw_only=True):
    """One run and what is expected of it."""

    name: str
    axis: str
    model: Mapping[str, Any] = field(default_factory=lambda: {"kind": "llama"})  # of the base, for models.build
    dtype: str = "float32"  # what the trainer loads the base in
    args: Mapping[str, Any] = {}  # what differs from the common GRPOConfig
    tokenizer: TokenizerChoice = TokenizerChoice()
    rewards: tuple[Callable[..., Any], ...] = ()  # reward functions; empty: one that looks at the ids and logs them
    prompts: tuple[Any, ...] = ()  # the dataset's prompts; empty: sixteen of two to seven words
    stops_after: int = 0
    """The update after which the job ends, to be resumed from its last checkpoint; 0: it runs through."""
    peft: Mapping[str, Any] | None = None  # of the adapter, for models.adapter_config
    prepare: Callable[[Any, Folders], Any] | None = None  # what the script does to the model before the trainer gets it
    trainer_class: tuple[str, str] = ("GRPO", "trl")  # what its name begins with, and the module that has it
    trainer: Mapping[str, Any] = {}  # more arguments of the trainer
    saved: Literal["model", "trainer", "nothing", "wrong"] = "model"
    """Which weights before the first update are given with --initial: the base, what trainer.save_model wrote, none,
    or something else that ``initial`` names."""
    initial: str = ""  # for ``wrong``: the folder's name
    run_config: bool = True  # whether --run-config is given
    config_change: Mapping[str, Any] = {}  # what is false in the file of --run-config
    spoil: Callable[[Folders], None] | None = None  # what happens to the folder after training
    expect: Expected = "match"
    at: Mapping[int, Expected] = {}  # steps of which something else is expected
    word: str = ""  # what the reason of a refusal must contain: one of these, with | between them
    rank: RankExpected = "as replay"
    partly: tuple[str, ...] = ()  # logged numbers other than the norm that the disk cannot give
    oracle: bool = True  # whether the step's gradient is on disk, so that the oracle can be asked
    unjudged: tuple[int, ...] = ()  # steps of which nothing is expected

    @property
    def num_steps(self) -> int:
        """Updates of the run."""
        return int(self.args.get("max_steps", 2))

    @property
    def steps(self) -> tuple[int, ...]:
        """The steps that are judged: those that were logged."""
        every = int(self.args.get("logging_steps", 1))
        return tuple(step for step in range(every, self.num_steps + 1, every) if step not in self.unjudged)

    def expected(self, step: int) -> Expected:
        """What is expected of one step."""
        return self.at.get(step, self.expect)
