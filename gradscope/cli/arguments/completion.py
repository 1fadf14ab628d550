"""What the shell completes beside paths: metrics and formulations. Their names are loaded only when it asks."""

from __future__ import annotations


def complete_metric(incomplete: str) -> list[str]:
    """Metrics of the catalogue, the last of a list by comma."""
    from gradscope.catalog.lookup import CATALOG

    return _last_of_list(incomplete, list(CATALOG))


def complete_formulation(incomplete: str) -> list[str]:
    """Formulations of the registry, the last of a list by comma."""
    from gradscope.advantages.registry import ALL_FORMULATIONS, CONSTANT

    constants = (f"{name}{CONSTANT}" for name, entry in ALL_FORMULATIONS.items() if entry.takes_c)
    return _last_of_list(incomplete, [*ALL_FORMULATIONS, *constants])


def _last_of_list(incomplete: str, names: list[str]) -> list[str]:
    head, comma, last = incomplete.rpartition(",")
    return [f"{head}{comma}{name}" for name in names if name.startswith(last)]
