"""Runs the command that its arguments are, and prints seconds by the clock, of all cores, and peak memory in MB.

A process of its own, small and fresh: what a child's peak is said to be starts from that of the process which made it.
"""

import json
import os
import subprocess
import sys
import time


def main() -> None:
    """Print the measurement as JSON; the command's own output is thrown away."""
    started = time.perf_counter()
    process = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - started
    if status:
        sys.exit(f"{' '.join(sys.argv[1:])} ended with status {os.waitstatus_to_exitcode(status)}.")
    peak = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    print(json.dumps({"seconds": seconds, "cpu": usage.ru_utime + usage.ru_stime, "peak_mb": peak / 1e6}))


if __name__ == "__main__":
    main()
