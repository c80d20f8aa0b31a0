"""What `CupyDevices` makes of CuPy: its errors as ours, grids that fit, kernels that end or are told to.

CuPy is played by a small stand-in that keeps memory in NumPy arrays; what is tested is what is done with its answers.
"""

import contextlib
import ctypes
import itertools
import sys
import types

import numpy as np
import pytest
from xstage.hw_validate.cuda import cupy_buffers, cupy_devices
from xstage.hw_validate.cuda.compile import kernel_text
from xstage.hw_validate.cuda.cupy_devices import CupyDevices
from xstage.hw_validate.cuda.device import Launch
from xstage.hw_validate.cuda.errors import (
    DeviceLostError,
    KernelError,
    KernelTimeoutError,
    MemoryTooSmallError,
    NoGpuError,
    NoPeerAccessError,
)


class CUDARuntimeError(RuntimeError):
    pass


class CUDADriverError(RuntimeError):
    pass


class OutOfMemoryError(MemoryError):
    pass


class CompileException(Exception):  # noqa: N818 (CuPy's own name)
    pass


ATTRIBUTES = {13: 1_980_000, 16: 132, 75: 9, 76: 0, 38: 50 << 20, 81: 228 << 10, 97: 227 << 10, 95: 1}


class Kernel:
    """A `RawKernel`, whose `kernel` is the `Function` of the current device."""

    num_regs, local_size_bytes, shared_size_bytes = 80, 0, 0

    def __init__(self, cupy):
        self.cupy, self.kernel = cupy, Function(cupy, self)
        self._limit = 0

    @property
    def max_dynamic_shared_size_bytes(self):
        return self._limit

    @max_dynamic_shared_size_bytes.setter
    def max_dynamic_shared_size_bytes(self, size):
        self.cupy.fail("funcSetAttribute")
        self._limit = size


class Function:
    ptr = 1

    def __init__(self, cupy, kernel):
        self.cupy, self.of = cupy, kernel

    def __call__(self, grid, block, args, shared_mem, enable_cooperative_groups):
        assert shared_mem <= self.of.max_dynamic_shared_size_bytes
        assert enable_cooperative_groups  # else blocks that wait for each other need not all be there
        self.cupy.fail("launch")
        self.cupy.started.append((grid, block, args[0].copy()))
        self.cupy.calls.append("launch")


class StandIn:
    """The part of CuPy that is used. `raises` maps a function's name to what it raises; `polls` is how often a kernel is
    not yet done."""

    def __init__(self, gpus=1, raises=None, polls=2, blocks_an_sm=1, driver=13000):
        self.driver = driver
        self.gpus, self.raises, self.polls, self.blocks_an_sm = gpus, raises or {}, polls, blocks_an_sm
        self.started, self.copied, self.enabled, self.memory = [], [], [], {}
        self.compiled, self.asked, self.calls = 0, itertools.count(), []
        names = ("getDeviceCount", "driverGetVersion", "runtimeGetVersion", "deviceGetAttribute", "memGetInfo",
                 "getDeviceProperties", "deviceGetPCIBusId", "deviceCanAccessPeer", "deviceEnablePeerAccess", "memcpy",
                 "memcpyAsync", "memset", "deviceSynchronize", "streamQuery", "check_status")  # fmt: skip
        runtime = types.SimpleNamespace(**{name: self._checked(name) for name in names})
        driver = types.SimpleNamespace(occupancyMaxActiveBlocksPerMultiprocessor=lambda *_: blocks_an_sm)
        self.cuda = types.SimpleNamespace(
            runtime=runtime, driver=driver, Device=lambda i: contextlib.nullcontext(),
            Stream=lambda non_blocking: Stream(), Memory=lambda size: Memory(self, "Memory", size),
            PinnedMemory=lambda size, flags: Memory(self, "PinnedMemory", size),
        )  # fmt: skip

    def _checked(self, name):
        def call(*arguments):
            self.calls.append(name)
            self.fail(name)
            return getattr(self, f"_{name}", lambda *_: None)(*arguments)

        return call

    def fail(self, name):
        if name in self.raises:
            raise self.raises[name]

    def RawModule(self, code, options):  # noqa: N802
        """No `enable_cooperative_groups`, with which CuPy links libcudadevrt and has the driver compile PTX."""
        self.fail("RawModule")
        self.compiled += 1
        assert '#include "' not in code
        return types.SimpleNamespace(get_function=self._kernel)

    def _kernel(self, name):
        self.fail("get_function")
        return Kernel(self)

    def _getDeviceCount(self):  # noqa: N802
        return self.gpus

    def _driverGetVersion(self):  # noqa: N802
        return self.driver

    def _runtimeGetVersion(self):  # noqa: N802
        return 13000

    def _deviceGetAttribute(self, number, device):  # noqa: N802
        return ATTRIBUTES.get(number, 0)

    def _memGetInfo(self):  # noqa: N802
        return 100 << 30, 141 << 30

    def _getDeviceProperties(self, device):  # noqa: N802
        return {"name": b"NVIDIA H200"}

    def _deviceGetPCIBusId(self, device):  # noqa: N802
        return "0000:0A:00.0"

    def _deviceCanAccessPeer(self, device, peer):  # noqa: N802
        return 1

    def _deviceEnablePeerAccess(self, peer):  # noqa: N802
        self.enabled.append(peer)

    def _streamQuery(self, stream):  # noqa: N802
        """A status, as CuPy gives it; it raises nothing, whatever has become of the kernel."""
        if self.copied:  # told to give up
            return 600 if self.raises.get("deaf") else 0
        if "kernel" in self.raises:
            return 700
        return 0 if next(self.asked) >= self.polls else 600

    def _check_status(self, status):
        assert status == 700
        raise self.raises["kernel"]

    def _memcpyAsync(self, to, source, size, kind, stream):  # noqa: N802
        self.copied.append((to, ctypes.c_uint32.from_address(source).value))


class Stream(contextlib.nullcontext):
    ptr = 7


class Memory:
    def __init__(self, cupy, name, size):
        cupy.fail(name)
        self.data = (ctypes.c_uint8 * size)()
        self.ptr = ctypes.addressof(self.data)


def launch(grid=132):
    return Launch(0, "bursts.cu", "bursts", grid, 256, 100 << 10, np.array([(3,)], dtype=[("n", "u4")]))


def ready(**changes):
    cupy = StandIn(**changes)
    devices = CupyDevices(cupy)
    devices.prepare(0, "bursts.cu", ["bursts"])
    return cupy, devices


def test_facts_are_those_of_the_gpu():
    _, devices = ready(gpus=2)
    one = devices.facts()[1]
    assert (one.name, one.compute_capability, one.sms, one.clock_mhz) == ("NVIDIA H200", "90", 132, 1980.0)
    assert one.shared_per_block_bytes == 227 << 10
    assert devices.platform()["cuda_driver"] == "13.0"


def test_the_platform_is_asked_for_once(monkeypatch):
    """Each time would be processes in which the GPU idles, and its clock falls."""
    asked = []
    monkeypatch.setattr("xstage.hw_validate.cuda.cupy_devices.smi", lambda *words: asked.append(words) or "580.1")
    _, devices = ready()
    assert devices.platform() == devices.platform()
    assert len(asked) == 2


def test_facts_that_a_driver_does_not_tell_are_0():
    cupy = StandIn()
    told = {number: value for number, value in ATTRIBUTES.items() if number != 13}
    cupy._deviceGetAttribute = lambda number, device: told[number]
    one = CupyDevices(cupy).facts()[0]
    assert (one.sms, one.clock_mhz) == (132, 0)


def test_what_was_written_has_arrived_before_a_kernel_starts():
    """cudaMemcpy from ordinary memory may return before; the stream of a kernel does not wait for it."""
    cupy, devices = ready()
    word = devices.device_memory(0, 16)
    word.write(np.arange(4, dtype=np.uint32))
    devices.run([launch()], [word], 10.0)
    order = [name for name in cupy.calls if name in ("memcpy", "deviceSynchronize", "launch")]
    assert order == ["memcpy", "deviceSynchronize", "launch"]


def test_a_kernel_that_is_prepared_again_is_neither_compiled_again_nor_forgets_its_shared_memory():
    cupy, devices = ready()
    devices.run([launch()], [devices.device_memory(0, 16)], 10.0)
    devices.prepare(0, "bursts.cu", ["bursts"])
    devices.run([launch()], [devices.device_memory(0, 16)], 10.0)
    assert cupy.compiled == 1 and len(cupy.started) == 2


def test_a_kernel_that_fails_is_told_at_once_and_not_at_its_deadline():
    """CuPy's `Stream.done` is False for a kernel that failed, as for one that runs."""
    error = CUDARuntimeError("cudaErrorIllegalAddress: an illegal memory access was encountered")
    _, devices = ready(raises={"kernel": error})
    with pytest.raises(DeviceLostError, match="an illegal memory access"):
        devices.run([launch()], [devices.device_memory(0, 16)], 1e9)


def test_a_kernel_runs_to_its_end_with_its_parameters_by_value():
    cupy, devices = ready()
    assert devices.run([launch()], [devices.device_memory(0, 16)], 10.0) >= 0
    ((grid, block, parameters),) = cupy.started
    assert (grid, block, parameters["n"][0]) == ((132,), (256,), 3)
    assert cupy.copied == []


def test_a_grid_that_does_not_fit_at_once_is_refused_before_it_is_cut():
    cupy, devices = ready()
    with pytest.raises(KernelError, match=r"needs 133 blocks .* has room for 132"):
        devices.run([launch(133)], [devices.device_memory(0, 16)], 10.0)
    assert cupy.started == []


def test_a_kernel_beyond_its_deadline_is_told_to_give_up():
    cupy, devices = ready(polls=10**9)
    word = devices.device_memory(0, 16)
    with pytest.raises(KernelTimeoutError, match="did not end before its deadline and was told to give up"):
        devices.run([launch()], [word], 0.0)
    assert cupy.copied == [(word.address, 2)]
    assert not devices.lost


def test_a_kernel_that_does_not_give_up_means_a_lost_device(monkeypatch):
    monkeypatch.setattr(cupy_devices, "GRACE_S", 0.0)
    monkeypatch.setattr(cupy_devices.atexit, "register", lambda function: None)
    _, devices = ready(polls=10**9, raises={"deaf": True})
    word = devices.device_memory(0, 16)
    with pytest.raises(DeviceLostError, match="GPU 0 does not answer"):
        devices.run([launch()], [word], 0.0)
    kept = len(cupy_buffers.KEPT)
    word.free()  # must not free memory that a kernel still uses
    assert len(cupy_buffers.KEPT) == kept + 1


def test_ctrl_c_tells_kernels_to_give_up_too():
    cupy, devices = ready(raises={})
    cupy.raises["streamQuery"] = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        devices.run([launch()], [devices.device_memory(0, 16)], 10.0)
    assert len(cupy.copied) == 1


@pytest.mark.parametrize(
    ("where", "error", "ours", "said"),
    [
        ("getDeviceCount", CUDARuntimeError("cudaErrorNoDevice: no CUDA-capable device is detected"), NoGpuError,
         "looking for GPUs: there is no GPU that this process may use"),
        ("getDeviceCount", CUDARuntimeError("cudaErrorInsufficientDriver: CUDA driver version is insufficient"), NoGpuError,
         "no GPU driver, or it is older than this CuPy needs; install the one wheel"),
        ("Memory", OutOfMemoryError("Out of memory allocating 64 bytes"), MemoryTooSmallError, "too little free memory"),
        ("PinnedMemory", CUDARuntimeError("cudaErrorMemoryAllocation: out of memory"), MemoryTooSmallError,
         "pinning 0 MiB of host memory: there is too little free memory"),
        ("deviceEnablePeerAccess", CUDARuntimeError("cudaErrorPeerAccessUnsupported: peer access is not supported"),
         NoPeerAccessError, "letting GPU 0 store to GPU 1"),
        ("RawModule", CompileException("bursts.cu(2): warning: so\n\nbursts.cu(7): error: no"), KernelError,
         r"the kernel does not compile \(bursts.cu\(7\): error: no\)"),
        ("funcSetAttribute", CUDADriverError("CUDA_ERROR_INVALID_VALUE: invalid argument"), KernelError,
         "does not take what was asked for"),
        ("launch", CUDADriverError("CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES: too many resources requested"), KernelError,
         "starting bursts on GPU 0: the kernel needs more registers or shared memory than there are"),
        ("launch", CUDADriverError("CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE: too many blocks in cooperative launch"),
         KernelError, "more blocks than fit at once"),
        ("get_function", CUDADriverError("CUDA_ERROR_NOT_FOUND: named symbol not found"), KernelError, "no such kernel"),
        ("RawModule", CUDADriverError("CUDA_ERROR_INVALID_IMAGE: device kernel image is invalid"), KernelError,
         "the driver does not take what was compiled"),
        ("RawModule", CUDADriverError("CUDA_ERROR_UNSUPPORTED_PTX_VERSION: unsupported toolchain"), KernelError,
         "the driver is older than this CuPy's compiler"),
        ("RawModule", type("DynamicLibNotFoundError", (RuntimeError,), {})("libnvrtc.so.13"), NoGpuError, "no compiler"),
        ("kernel", CUDARuntimeError("cudaErrorIllegalAddress: an illegal memory access was encountered"), DeviceLostError,
         "running bursts on GPU 0: the GPU is lost to this process"),
        ("kernel", CUDARuntimeError("cudaErrorLaunchTimeout: the launch timed out"), DeviceLostError, "ran too long"),
        ("memcpy", CUDARuntimeError("cudaErrorECCUncorrectable: uncorrectable ECC error"), DeviceLostError, "reading from"),
    ],
)  # fmt: skip
def test_errors_of_cupy_say_what_was_being_done_and_what_to_do(where, error, ours, said):
    cupy = StandIn(gpus=2, raises={where: error})
    with pytest.raises(ours, match=said):
        devices = CupyDevices(cupy)
        devices.prepare(0, "bursts.cu", ["bursts"])
        devices.enable_access(0, 1)
        word = devices.device_memory(0, 64)
        devices.run([launch()], [word], 10.0)
        word.read()


def test_the_kernels_compile_with_the_options_that_cupy_adds():
    """CuPy compiles for sm_90, flushes denormals and takes unmarked functions for device code."""
    core = pytest.importorskip("cuda.core", reason="cuda-core, which compiles for GPUs, is for Linux only")
    options = core.ProgramOptions(arch="sm_90", std="c++17", ftz=True, device_as_default_execution_space=True)
    assert cupy_devices.OPTIONS == ("-std=c++17",)
    program = core.Program(kernel_text("bursts.cu"), code_type="c++", options=options)
    assert bytes(program.compile("cubin").code)[:4] == b"\x7fELF"


def test_no_gpu_at_all_is_said():
    with pytest.raises(NoGpuError, match="there is no GPU"):
        CupyDevices(StandIn(gpus=0))


def test_no_driver_is_said():
    with pytest.raises(NoGpuError, match="there is no GPU driver on this computer"):
        CupyDevices(StandIn(driver=0))


def test_a_wheel_for_a_newer_cuda_than_the_driver_has_is_said():
    with pytest.raises(
        NoGpuError, match=r"this CuPy is for CUDA 13, the GPU driver only for CUDA 12\.4: .*cupy-cuda12x"
    ):
        CupyDevices(StandIn(driver=12040))
    assert CupyDevices(StandIn(driver=13020)).count == 1


def test_no_cupy_and_a_cupy_that_does_not_load_are_told_apart(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(NoGpuError, match=r"CuPy is not installed; install the one wheel that fits the driver"):
        CupyDevices()
    monkeypatch.setattr(cupy_devices, "installed", lambda name: "14.2.0" if name == "cupy-cuda12x" else None)
    with pytest.raises(NoGpuError, match=r"CuPy is installed \(cupy-cuda12x\) but does not load"):
        CupyDevices()


def test_the_driver_is_asked_whether_atomics_reach_the_peer(monkeypatch):
    """NVLink between GPU 0 and 1, PCIe to GPU 2."""

    def ask(value, attribute, device, peer):
        assert attribute == 3  # CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED
        value._obj.value = int({device, peer} == {0, 1})
        return 0 if peer < 3 else 101

    library = types.SimpleNamespace(cuDeviceGetP2PAttribute=ask)
    monkeypatch.setattr(cupy_devices.ctypes, "CDLL", lambda name: library)
    devices = CupyDevices(StandIn(gpus=3))
    assert devices.native_atomics(0, 1)
    assert not devices.native_atomics(0, 2)
    with pytest.raises(DeviceLostError, match=r"between GPU 0 and 3 \(error 101\)"):
        devices.native_atomics(0, 3)


def test_access_that_is_enabled_already_is_no_error():
    error = CUDARuntimeError("cudaErrorPeerAccessAlreadyEnabled: peer access is already enabled")
    CupyDevices(StandIn(gpus=2, raises={"deviceEnablePeerAccess": error})).enable_access(0, 1)


def test_host_memory_is_read_as_it_was_written():
    _, devices = ready()
    memory = devices.host_memory(64)
    memory.write(np.arange(4, dtype=np.uint32), 16)
    assert memory.read(16, 16).view(np.uint32).tolist() == [0, 1, 2, 3]
    memory.clear()
    assert not memory.read().any()
