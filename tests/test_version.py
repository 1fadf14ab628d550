import re
from importlib import metadata

import gradscope
from gradscope.version import __version__


def test_one_version_everywhere() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+", __version__)
    assert gradscope.__version__ == __version__ == metadata.version("gradscope")
