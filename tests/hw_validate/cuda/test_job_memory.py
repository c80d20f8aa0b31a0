"""A job in the memory of GPUs: what is written, what lies elsewhere, and what is put back between runs."""

import numpy as np
import pytest
from xstage.hw_validate.cuda.errors import KernelTimeoutError
from xstage.hw_validate.cuda.job import HOST, Buffer, Grid, Job, Pointer
from xstage.hw_validate.cuda.job_memory import JobMemory
from xstage.hw_validate.cuda.run_programs import LARGEST_TABLE_BYTES, _Room
from xstage.hw_validate.cuda.transport import Transport
from xstage.sim.errors import InputError

from .emulated_devices import EmulatedDevices

LARGE = LARGEST_TABLE_BYTES // 4 + 1
PARAMETERS = np.zeros(1, dtype=[("ops", "u8"), ("landing", "u8")])


class Devices(EmulatedDevices):
    """Notes what is to run, and changes a word of every buffer."""

    def __init__(self):
        super().__init__(None)
        self.launches, self.gives_up = [], False

    def run(self, launches, abort, deadline_s):
        self.launches += launches
        for buffer in self.live.values():
            buffer.data[:4] = 255
        abort[0].clear()
        abort[0].data[0] = self.gives_up
        return 0.0


def job():
    buffers = {
        "ops@0": Buffer(np.arange(LARGE, dtype=np.uint32), 0),
        "landing@0": Buffer(np.zeros(LARGE, dtype=np.uint32), HOST, output=True),
        "counters@0": Buffer(np.full(4, 7, dtype=np.uint32), 0),
        "landing_by_rank@0": Buffer(np.zeros(1, "u8"), 0, pointers={0: Pointer("landing@0", 16)}),
        "abort@0": Buffer(np.zeros(1, dtype=np.uint32), 0),
    }
    pointers = {"ops": Pointer("ops@0"), "landing": Pointer("landing@0", 16)}
    return Job(buffers, (Grid("replay", 0, 1, 32, 0, PARAMETERS, pointers),))


def transport(devices, size):
    return Transport("host", devices.facts(), [devices.host_memory(size)], [devices.device_memory(0, size)])


def test_large_tables_are_written_and_only_what_is_stored_lies_in_the_memory_of_the_transport():
    devices = Devices()
    there, made = transport(devices, 1 << 22), job()
    with JobMemory(made, devices, [0], "replay.cu", elsewhere=_Room(made, there).place) as memory:
        assert (memory.read("ops@0") == np.arange(LARGE)).all()
        memory.run()
        (launch,) = devices.launches
        assert int(launch.parameters["landing"][0]) == there.far[0].address + 16
        assert int(memory.read("landing_by_rank@0")[0]) != 0
    assert set(devices.live) == {there.far[0].address, there.own[0].address}


def test_what_a_run_changes_is_put_back_before_the_next():
    devices = Devices()
    with JobMemory(job(), devices, [0], "replay.cu", changed=("counters",)) as memory:
        memory.run()
        assert memory.read("counters@0").tolist() == [2**32 - 1, 7, 7, 7]
        memory.devices.run = lambda launches, abort, deadline_s: 0.0
        memory.run()
        assert memory.read("counters@0").tolist() == [7] * 4
        assert memory.read("ops@0")[0] == 2**32 - 1


def test_a_kernel_that_gave_up_is_an_error():
    devices = Devices()
    devices.gives_up = True
    with (
        JobMemory(job(), devices, [0], "replay.cu") as memory,
        pytest.raises(KernelTimeoutError, match="replay: a lane"),
    ):
        memory.run()
    assert devices.live == {}


def test_a_transport_with_too_little_memory_is_refused_and_nothing_is_left():
    devices = Devices()
    made, there = job(), transport(devices, 1 << 20)
    with pytest.raises(InputError, match="memory for landing"):
        JobMemory(made, devices, [0], "replay.cu", elsewhere=_Room(made, there).place)
    assert len(devices.live) == 2
