"""The command line: parse, call, print; no arithmetic; one file a command.

A command's docstring is its help text, and its options have their help next to their types.
"""
