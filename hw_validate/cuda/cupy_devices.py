"""`Devices` on CuPy: this file and cupy_buffers.py are the ones that call CUDA.

Modules are loaded eagerly and everything is allocated before a kernel runs, because loading and allocating may wait for
kernels that are running, which may wait for each other. Host memory is pinned and mapped; its address holds on every GPU
(unified addressing). A kernel is told to give up by a word in the GPU's own memory, written by a copy engine.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import platform
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from .compile import kernel_text
from .cupy_buffers import HOST_TO_DEVICE, DeviceBuffer, HostBuffer
from .cupy_errors import INSTALL, told
from .device import Buffer, DeviceFacts, Launch
from .errors import (
    DeviceLostError,
    KernelError,
    KernelTimeoutError,
    NoGpuError,
)
from .host_facts import installed, numa_node, processor, smi

WHEELS = ("cupy-cuda12x", "cupy-cuda13x")
OPTIONS = ("-std=c++17",)
GRACE_S = 5.0
"""How long kernels may take to notice that they are to give up."""
POLL_S = 0.001

_NATIVE_ATOMICS = 3
"""CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED of the driver's interface."""
_SUCCESS, _NOT_READY = 0, 600
"""cudaSuccess and cudaErrorNotReady."""
# Numbers of cudaDeviceAttr, which do not change; properties do (CUDA 13 dropped the clock).
_ATTRIBUTES = {
    "sms": 16, "l2_bytes": 38, "major": 75, "minor": 76, "shared_per_sm_bytes": 81,
    "shared_per_block_bytes": 97,
}  # fmt: skip
_FOR_THE_RECORD = {
    "clock_khz": 13, "can_map_host_memory": 19, "ecc": 32, "memory_clock_khz": 36, "memory_bus_bits": 37,
    "unified_addressing": 41, "host_native_atomics": 86, "cooperative": 95,
}  # fmt: skip
"""What a driver may no longer tell, and nothing depends on; 0 where it does not."""


class _PastDeadlineError(KernelTimeoutError):
    """Our own deadline has passed, and the kernel still runs."""


class CupyDevices:
    """All GPUs. Raises `NoGpuError` where there is none, CuPy is missing, or its wheel does not fit the driver.

    `cupy` is the module; tests pass one of their own.
    """

    def __init__(self, cupy: Any = None) -> None:
        os.environ.setdefault("CUDA_MODULE_LOADING", "EAGER")
        os.environ.setdefault("CUPY_CACHE_IN_MEMORY", "1")  # a node's home may be read-only, or shared by others
        self._cupy = cupy if cupy is not None else _import_cupy()
        self._runtime = self._cupy.cuda.runtime
        self.lost = False
        self._kernels: dict[tuple[int, str, str], Any] = {}
        self._modules: dict[tuple[int, str], Any] = {}
        self._limits: dict[tuple[int, str, str], int] = {}
        self._platform: dict[str, Any] = {}
        self._check_driver()
        with told("looking for GPUs"):
            self.count = int(self._runtime.getDeviceCount())
        if self.count == 0:
            raise NoGpuError("looking for GPUs: there is no GPU that this process may use")
        self._facts = [self._facts_of(i) for i in range(self.count)]
        self._streams: list[Any] = []
        self._side_streams: list[Any] = []
        for i in range(self.count):
            with told(f"starting GPU {i}"), self._cupy.cuda.Device(i):
                self._streams.append(self._cupy.cuda.Stream(non_blocking=True))
                self._side_streams.append(self._cupy.cuda.Stream(non_blocking=True))
        self._give_up = self.host_memory(8)
        self._give_up.write(np.array([2, 0], dtype=np.uint32))

    def facts(self) -> list[DeviceFacts]:
        return self._facts

    def platform(self) -> dict[str, Any]:
        """Versions of all that takes part, and the wiring as the driver tells it; asked for once, while a GPU may idle."""
        if not self._platform:
            self._platform = self._told_platform()
        return self._platform

    def _told_platform(self) -> dict[str, Any]:
        with told("reading versions"):
            driver, runtime = self._runtime.driverGetVersion(), self._runtime.runtimeGetVersion()
        wheels = [f"{name} {found}" for name in WHEELS if (found := installed(name))]
        return {
            "cuda_driver": _dotted(driver),
            "cuda_runtime": _dotted(runtime),
            "driver": smi("--query-gpu=driver_version", "--format=csv,noheader").partition("\n")[0],
            "cupy": str(getattr(self._cupy, "__version__", "")),
            "wheels": wheels,
            "numpy": np.__version__,
            "python": platform.python_version(),
            "system": platform.platform(),
            "processor": processor(),
            "cores": os.cpu_count(),
            "topology": smi("topo", "-m"),
            "module_loading": os.environ["CUDA_MODULE_LOADING"],
        }

    def can_access(self, device: int, peer: int) -> bool:
        with told(f"asking whether GPU {device} can reach GPU {peer}"):
            return bool(self._runtime.deviceCanAccessPeer(device, peer))

    def native_atomics(self, device: int, peer: int) -> bool:
        with told(f"asking whether GPU {device} can add to counters of GPU {peer}"):
            return bool(_peer_attribute(_NATIVE_ATOMICS, device, peer))

    def enable_access(self, device: int, peer: int) -> None:
        with told(f"letting GPU {device} store to GPU {peer}"), self._cupy.cuda.Device(device):
            try:
                self._runtime.deviceEnablePeerAccess(peer)
            except Exception as error:
                if "PeerAccessAlreadyEnabled" not in str(error):
                    raise

    def device_memory(self, device: int, size: int) -> Buffer:
        with told(f"taking {size / 2**20:.0f} MiB of GPU {device}"), self._cupy.cuda.Device(device):
            return DeviceBuffer(self, self._cupy, device, size)

    def host_memory(self, size: int) -> Buffer:
        with told(f"pinning {size / 2**20:.0f} MiB of host memory"), self._cupy.cuda.Device(0):
            return HostBuffer(self, self._cupy, size)

    def prepare(self, device: int, source: str, kernels: Sequence[str]) -> dict[str, int]:
        needs = {"registers": 0, "local_bytes": 0, "shared_bytes": 0}
        with told(f"compiling {source} for GPU {device}"), self._cupy.cuda.Device(device):
            module = self._module(device, source)
            for name in kernels:
                if (device, source, name) not in self._kernels:
                    self._kernels[device, source, name] = module.get_function(name)
                kernel = self._kernels[device, source, name]
                needs["registers"] = max(needs["registers"], int(kernel.num_regs))
                needs["local_bytes"] = max(needs["local_bytes"], int(kernel.local_size_bytes))
                needs["shared_bytes"] = max(needs["shared_bytes"], int(kernel.shared_size_bytes))
        return needs

    def _module(self, device: int, source: str) -> Any:
        """The same object each time, so that what has been set for its kernels stays set."""
        if (device, source) not in self._modules:
            self._modules[device, source] = self._cupy.RawModule(code=kernel_text(source), options=OPTIONS)
        return self._modules[device, source]

    def run(self, launches: Sequence[Launch], abort: Sequence[Buffer], deadline_s: float) -> float:
        for launch in launches:
            self._check_fits(launch)
        for launch in launches:
            self._settle(launch.device)
        started = time.perf_counter()
        try:
            for launch in launches:
                self._start(launch)
            self._wait(launches, started + deadline_s)
        except _PastDeadlineError:
            self._abort(launches, abort)
            self._wait_or_lose(launches, started + deadline_s + GRACE_S)
            raise
        except BaseException:
            self._abort(launches, abort)
            raise
        return time.perf_counter() - started

    def now(self, device: int) -> dict[str, Any]:
        names = ("clocks.sm", "clocks.mem", "power.draw", "temperature.gpu", "pstate")
        told = smi(
            "-i", str(self._facts[device].more["pci_bus_id"]), f"--query-gpu={','.join(names)}",
            "--format=csv,noheader,nounits",
        )  # fmt: skip
        return dict(zip(names, (part.strip() for part in told.split(",")), strict=False)) if told else {}

    def _check_driver(self) -> None:
        """Raise `NoGpuError` where there is no driver, or it is of an older CUDA than this CuPy."""
        with told("looking for a GPU driver"):
            driver, ours = self._runtime.driverGetVersion(), self._runtime.runtimeGetVersion()
        if driver == 0:
            raise NoGpuError("there is no GPU driver on this computer")
        if driver // 1000 < ours // 1000:
            raise NoGpuError(
                f"this CuPy is for CUDA {ours // 1000}, the GPU driver only for CUDA {_dotted(driver)}: {INSTALL}"
            )

    def _facts_of(self, i: int) -> DeviceFacts:
        with told(f"reading what GPU {i} is"), self._cupy.cuda.Device(i):
            found = {name: int(self._runtime.deviceGetAttribute(number, i)) for name, number in _ATTRIBUTES.items()}
            found |= {name: self._attribute_or_0(number, i) for name, number in _FOR_THE_RECORD.items()}
            free, total = (int(size) for size in self._runtime.memGetInfo())
            name = self._runtime.getDeviceProperties(i)["name"]
            bus = str(self._runtime.deviceGetPCIBusId(i))
        return DeviceFacts(
            index=i,
            name=name.decode() if isinstance(name, bytes) else str(name),
            compute_capability=f"{found['major']}{found['minor']}",
            sms=found["sms"],
            clock_mhz=found["clock_khz"] / 1000,
            memory_bytes=total,
            free_bytes=free,
            l2_bytes=found["l2_bytes"],
            shared_per_block_bytes=found["shared_per_block_bytes"],
            shared_per_sm_bytes=found["shared_per_sm_bytes"],
            more=found | {"pci_bus_id": bus, "numa_node": numa_node(bus)},
        )

    def _attribute_or_0(self, number: int, i: int) -> int:
        try:
            return int(self._runtime.deviceGetAttribute(number, i))
        except Exception:  # of CuPy's own kind: this driver does not know the attribute
            return 0

    def _check_fits(self, launch: Launch) -> None:
        """Raise for a grid that would not be on the GPU all at once: CuPy would start a smaller one."""
        key = (launch.device, launch.source, launch.kernel)
        kernel = self._kernels[key]
        with told(f"preparing {launch.kernel} on GPU {launch.device}"), self._cupy.cuda.Device(launch.device):
            if launch.shared_bytes > self._limits.get(key, 0):
                kernel.max_dynamic_shared_size_bytes = launch.shared_bytes
                self._limits[key] = launch.shared_bytes
            an_sm = int(
                self._cupy.cuda.driver.occupancyMaxActiveBlocksPerMultiprocessor(
                    kernel.kernel.ptr, launch.block, launch.shared_bytes
                )
            )
        most = an_sm * self._facts[launch.device].sms
        if launch.grid > most:
            raise KernelError(
                f"{launch.kernel} needs {launch.grid} blocks of {launch.block} threads and {launch.shared_bytes} bytes of "
                f"shared memory at once, GPU {launch.device} has room for {most}"
            )

    def _settle(self, device: int) -> None:
        """Wait for copies into the memory of a GPU: one from ordinary memory returns when its data are on the way, and our
        streams do not wait for that of the copies."""
        with told(f"waiting for copies to GPU {device}"), self._cupy.cuda.Device(device):
            self._runtime.deviceSynchronize()

    def _start(self, launch: Launch) -> None:
        kernel = self._kernels[launch.device, launch.source, launch.kernel]
        stream = self._streams[launch.device]
        with told(f"starting {launch.kernel} on GPU {launch.device}"), self._cupy.cuda.Device(launch.device), stream:
            # The grid starts as a whole, but the module has no cooperative groups: for those CuPy makes relocatable code,
            # which needs libcudadevrt and a driver as new as the compiler.
            kernel.kernel(
                (launch.grid,),
                (launch.block,),
                (launch.parameters,),
                shared_mem=launch.shared_bytes,
                enable_cooperative_groups=True,
            )

    def _wait(self, launches: Sequence[Launch], until: float) -> None:
        running = list(launches)
        while running:
            with told(f"running {running[0].kernel} on GPU {running[0].device}"):
                running = [one for one in running if not self._is_done(one.device)]
            if running and time.perf_counter() > until:
                raise _PastDeadlineError(
                    f"{running[0].kernel} on GPU {running[0].device} did not end before its deadline and was told to give up"
                )
            if running:
                time.sleep(POLL_S)

    def _is_done(self, device: int) -> bool:
        """Raises CuPy's error for a kernel that failed: `Stream.done` would say that it still runs, for ever."""
        with self._cupy.cuda.Device(device):
            status = int(self._runtime.streamQuery(self._streams[device].ptr))
            if status not in (_SUCCESS, _NOT_READY):
                self._runtime.check_status(status)
        return status == _SUCCESS

    def _wait_or_lose(self, launches: Sequence[Launch], until: float) -> None:
        try:
            self._wait(launches, until)
        except _PastDeadlineError as error:
            self.lost = True
            atexit.register(_leave)
            name = f"GPU {launches[0].device}"
            raise DeviceLostError(
                f"{name} does not answer: {launches[0].kernel} did not end {GRACE_S:g} s after it was told to give up"
            ) from error

    def _abort(self, launches: Sequence[Launch], words: Sequence[Buffer]) -> None:
        """Tell kernels that run to give up. What goes wrong here must not hide why."""
        for launch, word in zip(launches, words, strict=True):
            try:
                with self._cupy.cuda.Device(launch.device):
                    stream = self._side_streams[launch.device].ptr
                    self._runtime.memcpyAsync(word.address, self._give_up.address, 4, HOST_TO_DEVICE, stream)
            except Exception:  # the device may be gone: then there is nobody to tell
                continue


def _leave() -> None:
    """End this process now: to tear CUDA down would wait for a kernel that never ends."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)


def _import_cupy() -> Any:
    try:
        import cupy
    except ImportError as error:
        found = [name for name in WHEELS if installed(name)]
        why = f"CuPy is installed ({', '.join(found)}) but does not load: {error}" if found else "CuPy is not installed"
        raise NoGpuError(f"{why}; {INSTALL}") from error
    return cupy


def _peer_attribute(attribute: int, device: int, peer: int) -> int:
    """An attribute of the way between two GPUs, by the driver's own function: CuPy does not wrap it."""
    try:
        ask = ctypes.CDLL("libcuda.so.1").cuDeviceGetP2PAttribute
    except (OSError, AttributeError) as error:
        raise DeviceLostError(f"the driver's library cannot be asked about GPU {device} and {peer}: {error}") from error
    value = ctypes.c_int(0)
    if (code := int(ask(ctypes.byref(value), attribute, device, peer))) != 0:
        raise DeviceLostError(f"the driver does not tell what lies between GPU {device} and {peer} (error {code})")
    return value.value


def _dotted(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"
