"""Training inside somebody's process without leaving a trace: their loggers, threads and random state come back."""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np


@contextmanager
def quiet_libraries() -> Iterator[None]:
    """Only errors of transformers and datasets come through, and nothing of theirs is drawn."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import datasets
        from transformers.utils import logging

        verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
        dataset_bars = not datasets.are_progress_bars_disabled()
        logging.set_verbosity_error()
        logging.disable_progress_bar()
        datasets.disable_progress_bars()
        try:
            yield
        finally:
            logging.set_verbosity(verbosity)
            if bars:
                logging.enable_progress_bar()
            if dataset_bars:
                datasets.enable_progress_bars()


@contextmanager
def own_random_state() -> Iterator[None]:
    """What is seeded or drawn inside does not show outside."""
    import torch

    python, numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng():
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)


@contextmanager
def torch_threads(number: int | None) -> Iterator[None]:
    """Compute with so many threads; None leaves their number alone."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(number or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
