"""What can go wrong between this process and a GPU. All are failures of a measurement: exit code 1, not bad input."""

from __future__ import annotations

from ..measuring import MeasurementError


class NoGpuError(MeasurementError):
    """No GPU, no driver, or no CuPy that fits it."""


class MemoryTooSmallError(MeasurementError):
    """A GPU or the host has too little free memory for the buffers."""


class NoPeerAccessError(MeasurementError):
    """The GPUs cannot store into each other's memory."""


class KernelTimeoutError(MeasurementError):
    """A kernel did not end before its deadline."""


class DeviceLostError(MeasurementError):
    """A GPU stopped answering, or reported an error that only a new process gets rid of."""


class KernelError(MeasurementError):
    """A kernel could not be compiled or started on this GPU."""
