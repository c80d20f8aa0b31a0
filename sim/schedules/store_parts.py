"""How many STOREs a collective needs for its bytes, as one op has a largest size."""

from __future__ import annotations

from .size_limit import check_ops

MOST_BYTES = 2**30
"""Of one STORE; half of what `program_check` lets pass."""


def store_parts(share: int, receivers: int) -> list[int]:
    """Bytes of each STORE to every receiver if `share` bytes go to each, in parts that differ by at most one byte.

    Raises `InputError` if there would be more of them than a schedule can have.
    """
    parts = -(-share * receivers // MOST_BYTES)
    check_ops(parts, "bytes of the collective", share * receivers)
    return [share // parts + (part < share % parts) for part in range(parts)]
