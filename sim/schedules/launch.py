"""When the kernels of each rank start."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import InputError


def starts_by_rank(starts_ps: Sequence[int], ranks: int) -> list[int]:
    """Delay of each rank's launch in ps, 0 for all if none is given. Raises `InputError` unless there is one a rank."""
    if starts_ps and len(starts_ps) != ranks:
        raise InputError("needs one start a rank", field="starts_ps", value=len(starts_ps), allowed=[ranks])
    for start in starts_ps:
        if start < 0:
            raise InputError("must not be negative", field="starts_ps", value=start)
    return list(starts_ps) or [0] * ranks
