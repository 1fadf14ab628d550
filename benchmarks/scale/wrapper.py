"""``python wrapper.py FILE COMMAND...`` runs a command with its output in a file, and prints what it took as JSON.

A process of its own, small and fresh: what a child's peak is said to be starts from that of the process which made it.
"""

import json
import os
import subprocess
import sys
import time

with open(sys.argv[1], "wb") as output:
    started = time.perf_counter()
    process = subprocess.Popen(sys.argv[2:], stdout=output)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - started
measured = {
    "seconds": seconds,
    "cpu": usage.ru_utime + usage.ru_stime,
    "peak_mb": usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 1e6,
    "status": os.waitstatus_to_exitcode(status),
}
print(json.dumps(measured))
