"""The colors of the terminal, which say the same for every command; the words say it without them.

Colors by name are the terminal's own, and as they come most of them are too pale to read on white: green has a contrast
of 2.1 to 3.3 there, yellow 1.6 to 3. These are fixed ones, of medium lightness, that read on white and on black.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

Tone = Literal["fine", "look", "problem", "unknown", ""]

STYLES: Mapping[Tone, str] = {
    "fine": "color(28)",
    "look": "color(136)",
    "problem": "color(167)",
    "unknown": "color(32)",
    "": "",
}
"""What an answer asks of its reader -> how rich draws it."""
QUIET = "color(243)"
"""What is there to be found and not to be read: a path, the names of further tables. Never a unit or a reason."""
