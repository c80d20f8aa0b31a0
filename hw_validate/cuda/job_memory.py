"""A job in the memory of GPUs, ready to run again and again. Needs NumPy alone.

What lies in memory is made once; between runs only what a run changes is put back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from .device import Buffer, Devices, Launch
from .errors import KernelTimeoutError
from .job import HOST, Array, Grid, Job
from .replay_job import CHANGED, DEADLINE_S, PATIENCE_S

Place = tuple[Buffer, int]
"""A buffer, and where in it something begins."""


class JobMemory:
    """The memory of one job. Use it in `with`.

    `gpus` are the devices of the job's GPU numbers. `changed` are buffers, by their names without the GPU, that are written
    anew before each run. `elsewhere` may name a place in memory that is there already; what lies there is never written.
    """

    def __init__(
        self,
        job: Job,
        devices: Devices,
        gpus: Sequence[int],
        source: str,
        changed: Sequence[str] = CHANGED,
        elsewhere: Callable[[str], Place | None] = lambda name: None,
    ) -> None:
        self.job, self.devices, self.gpus, self.source, self.changed = job, devices, gpus, source, changed
        self._made: list[Buffer] = []
        self._empty = {
            name
            for name, told in job.buffers.items()
            if name.partition("@")[0] in changed and not told.pointers and not _bytes_of(told.values).any()
        }
        self._places: dict[str, Place] = {}
        try:
            new = []
            for name in job.buffers:
                if (place := elsewhere(name)) is None:
                    place = self._make(name), 0
                    new.append(name)
                self._places[name] = place
            self._new = new
            for name in new:
                self._write(name)
        except BaseException:
            self.close()
            raise

    def run(self) -> None:
        """One run of all grids from the initial values. Raises `KernelTimeoutError` if one gave up."""
        for name in self._new:
            if name.partition("@")[0] in self.changed:
                self._write(name)
        launches = [self._launch(grid) for grid in self.job.grids]
        abort = [self._places[f"abort@{grid.gpu}"][0] for grid in self.job.grids]
        self.devices.run(launches, abort, DEADLINE_S)
        if any(self.read(f"abort@{grid.gpu}")[0] for grid in self.job.grids):
            kernel = self.job.grids[0].kernel
            raise KernelTimeoutError(f"{kernel}: a lane waited for more than {PATIENCE_S:g} s and gave up")

    def read(self, name: str) -> Array:
        """What a buffer holds now."""
        buffer, offset = self._places[name]
        values = self.job.buffers[name].values
        return buffer.read(values.nbytes, offset).view(values.dtype).reshape(values.shape)

    def close(self) -> None:
        for buffer in self._made:
            buffer.free()
        self._made.clear()

    def __enter__(self) -> JobMemory:
        return self

    def __exit__(self, *ended: object) -> None:
        self.close()

    def _make(self, name: str) -> Buffer:
        told = self.job.buffers[name]
        size = max(16, told.values.nbytes)
        on_host = told.home == HOST
        made = self.devices.host_memory(size) if on_host else self.devices.device_memory(self.gpus[told.home], size)
        self._made.append(made)
        return made

    def _write(self, name: str) -> None:
        """The initial values of a buffer, with the addresses that stand in it."""
        told = self.job.buffers[name]
        buffer, offset = self._places[name]
        if name in self._empty:
            buffer.clear()
            return
        raw = _bytes_of(told.values)
        raw = raw.copy() if told.pointers else raw
        for at, pointer in told.pointers.items():
            address = self._address(pointer.buffer) + pointer.offset
            raw[at : at + 8] = np.array([address], dtype=np.uint64).view(np.uint8)
        buffer.write(raw, offset)

    def _address(self, name: str) -> int:
        buffer, offset = self._places[name]
        return buffer.address + offset

    def _launch(self, grid: Grid) -> Launch:
        parameters = grid.parameters.copy()
        for name, pointer in grid.pointers.items():
            parameters[name] = self._address(pointer.buffer) + pointer.offset
        size = grid.n_ctas, grid.n_threads, grid.shared_bytes
        return Launch(self.gpus[grid.gpu], self.source, grid.kernel, *size, parameters)


def _bytes_of(values: Array) -> Array:
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8)
