"""The machine that this runs on: its processes, threads and memory."""
