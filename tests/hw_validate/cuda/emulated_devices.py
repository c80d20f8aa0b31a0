"""`Devices` that run the real kernels on the CPU: what they compute, store and note is real, only time is not.

Buffers have made-up addresses; each run gives all buffers to the emulator with these addresses filled in, and brings them
back. A thousand scheduler steps count as a microsecond, and nothing drains at any rate.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
from xstage.hw_validate.cuda import emulate, job
from xstage.hw_validate.cuda.device import DeviceFacts

FIRST_ADDRESS = 0x7E57_0000_0000_0000
"""No value that a kernel or a table holds by chance looks like an address."""
APART = 1 << 32


def facts(index, sms=4, **changes):
    usual = {
        "name": "emulated", "compute_capability": "90", "sms": sms, "clock_mhz": 1000.0, "memory_bytes": 1 << 30,
        "free_bytes": 1 << 30, "l2_bytes": 1 << 16, "shared_per_block_bytes": 32 << 10, "shared_per_sm_bytes": 48 << 10,
    }  # fmt: skip
    return DeviceFacts(index=index, **(usual | changes))


@dataclass(eq=False)
class EmulatedBuffer:
    address: int
    data: np.ndarray
    home: int
    live: dict

    @property
    def size(self):
        return len(self.data)

    def write(self, data, offset=0):
        raw = np.ascontiguousarray(data).view(np.uint8).ravel()
        self.data[offset : offset + len(raw)] = raw

    def read(self, size=None, offset=0):
        return self.data[offset : None if size is None else offset + size].copy()

    def clear(self):
        self.data[:] = 0

    def free(self):
        self.live.pop(self.address, None)


class EmulatedDevices:
    deadlines = False

    def __init__(self, folder, gpus=1, sms=4, seed=0, sanitizer=None, defines=None, **changes):
        self.defines = defines
        self.folder, self.seed, self.sanitizer = folder, seed, sanitizer
        self._facts = [facts(i, sms, **changes) for i in range(gpus)]
        self._number = itertools.count()
        self.live = {}
        self.runs = 0

    def facts(self):
        return self._facts

    def platform(self):
        return {"cuda_driver": "none: emulated"}

    def can_access(self, device, peer):
        return True

    def native_atomics(self, device, peer):
        return True

    def enable_access(self, device, peer):
        pass

    def device_memory(self, device, size):
        return self._buffer(size, device)

    def host_memory(self, size):
        return self._buffer(size, job.HOST)

    def prepare(self, device, source, kernels):
        emulate.build(source, self.folder, self.sanitizer, self.defines)
        return {"registers": 0, "local_bytes": 0, "shared_bytes": 0}

    def run(self, launches, abort, deadline_s):
        self.runs += 1
        buffers = {str(address): self._as_emulated(buffer) for address, buffer in self.live.items()}
        made = job.Job(buffers, tuple(self._grid(one) for one in launches))
        program = emulate.build(launches[0].source, self.folder, self.sanitizer, self.defines)
        (done,) = emulate.run(program, made, [self.seed + self.runs], self.deadlines)
        for address, buffer in self.live.items():
            buffer.data[:] = done.buffers[str(address)]
        return done.ticks * 1e-9

    def now(self, device):
        return {}

    def _buffer(self, size, home):
        address = FIRST_ADDRESS + next(self._number) * APART
        self.live[address] = EmulatedBuffer(address, np.zeros(size, np.uint8), home, self.live)
        return self.live[address]

    def _pointer(self, word):
        base = (word - FIRST_ADDRESS) // APART * APART + FIRST_ADDRESS
        return job.Pointer(str(base), word - base)

    def _pointers(self, raw):
        words = raw[: len(raw) // 8 * 8].view(np.uint64)
        places = np.flatnonzero((words >> np.uint64(48)) == FIRST_ADDRESS >> 48)
        return {8 * int(i): self._pointer(int(words[i])) for i in places if int(words[i]) < FIRST_ADDRESS + (1 << 48)}

    def _as_emulated(self, buffer):
        return job.Buffer(buffer.data, buffer.home, output=True, pointers=self._pointers(buffer.data))

    def _grid(self, one):
        raw = np.ascontiguousarray(one.parameters).view(np.uint8).ravel()
        by_word = np.dtype({"names": [f"at{i}" for i in range(0, len(raw), 8)], "formats": ["u8"] * (len(raw) // 8),
                            "offsets": list(range(0, len(raw), 8)), "itemsize": len(raw)})  # fmt: skip
        pointers = {f"at{offset}": pointer for offset, pointer in self._pointers(raw).items()}
        return job.Grid(one.kernel, one.device, one.grid, one.block, one.shared_bytes, raw.view(by_word), pointers)
