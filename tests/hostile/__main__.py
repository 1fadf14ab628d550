"""`python -m tests.hostile`: a campaign of a night, or one of its cases again.

``--failures`` gets each case that did not hold; ``--logs`` damages no model: 4 cases of 100, and most of the time;
``--keep`` runs the first case alone, in a folder that stays.
"""

from __future__ import annotations

import signal
import sys
import tempfile
from pathlib import Path

from tests.hostile.campaign import run_campaign
from tests.hostile.cases import options_of, run_case
from tests.hostile.writes import trained


def main() -> int:
    """Run the cases that are asked for; the exit code tells whether all held."""
    defaults = {"cases": 1000, "first": 0, "seed": 0, "jobs": 2, "failures": "hostile.jsonl"}
    options = options_of("", __doc__, **defaults, logs=False, keep=Path)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with tempfile.TemporaryDirectory() as folder:
        model = None if options.logs else trained(Path(folder))
        if options.keep is not None:
            sys.stdout.write(f"{run_case(options.seed, options.first, options.keep, model)}\n")
            return 0
        cases = range(options.first, options.first + options.cases)
        with Path(options.failures).open("a", encoding="utf-8") as failures:
            tally = run_campaign(cases, seed=options.seed, jobs=options.jobs, model=model, failures=failures)
    sys.stdout.write(f"seed {options.seed}: {tally}\n")
    return 1 if tally.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
