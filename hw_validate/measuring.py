"""What all measurements share: the error for hardware that cannot be measured, and how progress is told."""

from __future__ import annotations

from collections.abc import Callable

from ..sim.errors import XstageError

Progress = Callable[[str, float], None]
"""Called with what is being done, and the share of it that is done."""


def silent(doing: str, share: float) -> None:
    """No progress."""


class MeasurementError(XstageError):
    """This hardware cannot be measured, or not now; the message says why."""


class DisturbedError(MeasurementError):
    """Other programs, or other guests of this computer, kept the hardware too busy to measure anything."""
