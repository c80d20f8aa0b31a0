"""How large a schedule may become, asked before its tables are made."""

from __future__ import annotations

from ..errors import InputError
from ..memory import most_bytes

MOST_OPS = 2**27
"""Ops to be run, of all lanes together; more take minutes to write down and to check."""
BYTES_PER_OP = 200
"""Memory for each while the tables are made and checked: 85 to 200 were measured over all workloads."""


def check_ops(n_ops: int, field: str, value: object) -> None:
    """Raises `InputError` that blames `field` if a schedule of at least `n_ops` is too large for this computer."""
    most = min(MOST_OPS, int(most_bytes() / BYTES_PER_OP))
    if n_ops > most:
        raise InputError("makes too many ops", field=field, value=value, allowed=f"{most:,} ops, not {n_ops:,}")
