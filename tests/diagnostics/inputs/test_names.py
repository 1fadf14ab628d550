from gradscope.advantages.registry import formulation
from gradscope.diagnostics.inputs.names import NAMES
from gradscope.rollouts.readers.detect import format_named


def test_every_name_is_one_that_its_option_takes() -> None:
    assert set(NAMES) == {"--advantage", "--reader"}
    assert [formulation(name).name for name in NAMES["--advantage"]()] == list(NAMES["--advantage"]())
    assert [format_named(name).name for name in NAMES["--reader"]()] == list(NAMES["--reader"]())
