"""How many tasks a Program may have before its tables are made."""

from __future__ import annotations

from ..errors import InputError

MOST_TASKS = 2**27
"""More tasks than this take gigabytes to write down."""


def check_tasks(n_tasks: int, field: str, value: object) -> None:
    """Raises `InputError` that blames `field` if a schedule would have more tasks than `MOST_TASKS`."""
    if n_tasks > MOST_TASKS:
        allowed = f"{MOST_TASKS:,} tasks, not {n_tasks:,}"
        raise InputError("makes too many tasks", field=field, value=value, allowed=allowed)
