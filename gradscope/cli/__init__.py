"""The command line: parse, call, print; no arithmetic; one file a command."""
