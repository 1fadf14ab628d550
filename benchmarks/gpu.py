"""Everything there is to know about gradscope on a GPU, in one command under ten minutes and one table.

    python -m benchmarks.gpu                      # on the card; the table goes to stdout and to gpu.md as it grows
    python -m benchmarks.gpu --only steps waits
    python -m benchmarks.gpu --dry-run            # every section on the CPU with tiny sizes: does it still run?

Sections come in the order of their worth, each with its share of the time; what one leaves goes to those behind it. A
case that runs out of memory or time says so in its row and the rest goes on, so Ctrl-C or a limit loses nothing.
Models have random weights and the tokens are random ids: nothing is downloaded. Needs `pip install '.[test]'`.
"""

import argparse
import datetime
import platform
import time
from pathlib import Path

from benchmarks.gpu_sections import SECTIONS
from benchmarks.gpu_setting import Row, Setting, Table, at_most


def main() -> None:
    """Run the sections and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=[section.name for section in SECTIONS], help="These sections.")
    parser.add_argument("--minutes", type=float, default=9.5, help="For all of it (default: 9.5).")
    parser.add_argument("--output", type=Path, default=Path("gpu.md"), help="Where the table goes too.")
    parser.add_argument("--dry-run", action="store_true", help="On the CPU with tiny sizes.")
    arguments = parser.parse_args()
    import torch

    if not arguments.dry_run and not torch.cuda.is_available():
        parser.error("PyTorch sees no GPU; --dry-run does every section on the CPU with tiny sizes")
    setting = Setting(device=torch.device("cpu" if arguments.dry_run else "cuda"), dry=arguments.dry_run)
    table = Table(arguments.output, heading(setting))
    chosen = [section for section in SECTIONS if not arguments.only or section.name in arguments.only]
    start = time.monotonic()
    stop = start + 60 * arguments.minutes
    try:
        for index, section in enumerate(chosen):
            left = stop - time.monotonic()
            shares = sum(later.share for later in chosen[index:])
            end = time.monotonic() + left * section.share / shares
            for case in section.cases(setting):
                seconds = end - time.monotonic()
                if seconds <= 0:
                    table.add(section.name, case.name, Row(note="left out: the section's time was up"))
                    continue
                with table.says_what_went_wrong(section.name, case.name), at_most(seconds):
                    for row in case.run():
                        table.add(section.name, case.name, row)
                setting.tidy()
    except KeyboardInterrupt:
        table.say("\nStopped by Ctrl-C; the rows above are complete.")
        raise SystemExit(130) from None
    table.say(f"\n{table.num_rows} rows, {table.failed} of them without a number, {time.monotonic() - start:.0f} s.")
    if table.failed and arguments.dry_run:
        raise SystemExit(1)


def heading(setting: Setting) -> str:
    """What was measured on what: a figure without a date and a card is none."""
    import torch
    import transformers

    from gradscope.version import __version__

    card = platform.processor() or platform.machine()
    if setting.device.type == "cuda":
        properties = torch.cuda.get_device_properties(setting.device)
        card = f"{properties.name}, {properties.total_memory / 2**30:.0f} GiB, CUDA {torch.version.cuda}"
    kind = "dry run, tiny sizes: no figure here means anything" if setting.dry else "random weights"
    return (
        f"gradscope {__version__}, {datetime.datetime.now(datetime.UTC):%Y-%m-%d}, {card}, torch {torch.__version__}, "
        f"transformers {transformers.__version__}; {kind}. Medians (range) of runs between two synchronizations; plain "
        "is one forward and backward pass of the same rows, floor their matrix products at the card's own rate."
    )


if __name__ == "__main__":
    main()
