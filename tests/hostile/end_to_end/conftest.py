from __future__ import annotations

import os
from collections.abc import Iterator
from unittest.mock import patch

import pytest


@pytest.fixture(autouse=True)
def own_environment() -> Iterator[None]:
    """Campaigns set variables for the commands that they run."""
    with patch.dict(os.environ):
        yield
