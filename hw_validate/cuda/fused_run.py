"""Run the fused MegaMoE kernel on GPUs, policy by policy: numerics, times of tiles and pulls, and the control.

    python -m xstage.hw_validate.cuda.fused_run -o DIR --transport host --intermediate 256,512,1024

Each policy runs on the transport, on `local` as the control, and "bare": on the transport without instrumentation. The
report.json of each width says what came out: the error against the float64 reference, makespan, spans, stalls;
POLICY-SIDE.parquet holds the L2 tiles of the last repeat.
Narrow experts have short main loops for the same bytes, so that a sweep over widths passes the point where stores stall.
With `--transport peer` rank r is GPU r; else all ranks are SMs of GPU 0, and the combine, which reads what was returned to
host memory, is left out of the makespan. With `--machine FILE`, which `xstage calibrate --backend cuda -o FILE` measured on
the same transport, every policy is also simulated with the costs of its control (fused_compare.py).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...sim.errors import InputError, XstageError
from ...sim.files import write_whole
from ...sim.program import Program
from ...sim.routing import balanced
from ...sim.schedules import megamoe
from .device import Buffer, Devices, Launch
from .errors import KernelTimeoutError, NoPeerAccessError
from .fused_compare import Compared, compared, ranked_alike
from .fused_job import KERNELS, Data, fused_job, random_data, reference, to_float
from .fused_megamoe import Fused, lower_megamoe
from .fused_times import l2_tile_times, summary
from .job import HOST, Array, Job
from .records import measured_ops
from .replay_job import Settings

if TYPE_CHECKING:
    import pandas as pd

    from ...sim.machine import Machine

SOURCE, BARE_SOURCE = "megamoe.cu", "megamoe_bare.cu"
"""The kernel, and the same without its instrumentation."""
POLICIES: Mapping[str, megamoe.Policy] = {
    "wave": megamoe.ExpertWave(),
    "interleaved": megamoe.Interleaved(),
    "alternating": megamoe.Alternating(),
    "lag": megamoe.Lag(lag=1, group=1),
}
USUAL_SIZES = {"tokens": 512, "hidden": 1024, "experts": 8, "topk": 2, "ranks": 2}
PATIENCE_S, DEADLINE_S = 5.0, 20.0
_CHANGED = ("counters", "cursors", "taken", "group_words", "n_records", "times", "start_edge", "abort", "barrier")
_OUTPUTS = ("records", "n_records", "times", "abort", "results")


class InMemory:
    """A job in the memory of GPUs; `gpus` are the devices of its GPU numbers. Use it in `with`."""

    def __init__(self, job: Job, devices: Devices, gpus: Sequence[int], source: str = SOURCE) -> None:
        self.job, self.devices, self.gpus, self.source = job, devices, gpus, source
        self._memory: dict[str, Buffer] = {}
        try:
            for name, told in job.buffers.items():
                size = max(16, told.values.nbytes)
                self._memory[name] = (
                    devices.host_memory(size) if told.home == HOST else devices.device_memory(gpus[told.home], size)
                )
            for name in job.buffers:
                self._write(name)
        except BaseException:
            self.close()
            raise

    def run(self) -> dict[str, Array]:
        """One run from the initial values; returns the outputs that say how it went. Raises `KernelTimeoutError`."""
        for name in self.job.buffers:
            if name.partition("@")[0] in _CHANGED:
                self._write(name)
        launches = [self._launch(grid) for grid in self.job.grids]
        self.devices.run(launches, [self._memory[f"abort@{grid.gpu}"] for grid in self.job.grids], DEADLINE_S)
        outputs = {name: self._read(name) for name in self.job.buffers if name.partition("@")[0] in _OUTPUTS}
        if any(outputs[f"abort@{grid.gpu}"][0] for grid in self.job.grids):
            raise KernelTimeoutError(f"{self.source}: a lane waited for more than {PATIENCE_S:g} s and gave up")
        return outputs

    def close(self) -> None:
        for memory in self._memory.values():
            memory.free()
        self._memory.clear()

    def __enter__(self) -> InMemory:
        return self

    def __exit__(self, *ended: object) -> None:
        self.close()

    def _write(self, name: str) -> None:
        told = self.job.buffers[name]
        raw = np.frombuffer(np.ascontiguousarray(told.values).tobytes(), dtype=np.uint8).copy()
        for at, pointer in told.pointers.items():
            address = self._memory[pointer.buffer].address + pointer.offset
            raw[at : at + 8] = np.array([address], dtype=np.uint64).view(np.uint8)
        self._memory[name].write(raw)

    def _read(self, name: str) -> Array:
        values = self.job.buffers[name].values
        return self._memory[name].read(values.nbytes).view(values.dtype).reshape(values.shape)

    def _launch(self, grid: Any) -> Launch:
        parameters = grid.parameters.copy()
        for name, pointer in grid.pointers.items():
            parameters[name] = self._memory[pointer.buffer].address + pointer.offset
        size = grid.n_ctas, grid.n_threads, grid.shared_bytes
        return Launch(self.gpus[grid.gpu], self.source, grid.kernel, *size, parameters)


@contextmanager
def ready(fused: Fused, data: Data, devices: Devices, transport: str, source: str = SOURCE) -> Iterator[InMemory]:
    """The kernel with its data in memory. Raises `NoPeerAccessError`, `InputError` for too few GPUs or SMs."""
    facts = devices.facts()
    gpus = [one.index for one in facts][: fused.shape.ranks if transport == "peer" else 1]
    if transport == "peer":
        if len(gpus) < fused.shape.ranks:
            raise InputError(
                "are more than there are GPUs", field="ranks", value=fused.shape.ranks, allowed=[len(gpus)]
            )
        for gpu in gpus:
            for peer in gpus:
                if gpu != peer and not devices.can_access(gpu, peer):
                    raise NoPeerAccessError(f"GPU {gpu} cannot reach the memory of GPU {peer}")
                if gpu != peer:
                    devices.enable_access(gpu, peer)
    for gpu in gpus:
        devices.prepare(gpu, source, [KERNELS[fused.stages]])
    clock = max(1.0, facts[0].clock_mhz / 1000)
    settings = Settings(patience_ticks=int(PATIENCE_S * 1e9 * clock))
    with InMemory(fused_job(fused, data, transport, settings), devices, gpus, source) as memory:
        yield memory


def error_of(fused: Fused, outputs: Mapping[str, Array], exact: Array) -> float:
    """Root mean square error of the results, over that of the exact ones."""
    found = np.stack([to_float(outputs[f"results@{rank}"]) for rank in range(fused.shape.ranks)])
    return float(np.sqrt(np.mean((found - exact) ** 2) / max(np.mean(exact**2), 1e-300)))


def measure(
    program: Program, fused: Mapping[str, Fused], data: Data, devices: Devices, transport: str, repeats: int
) -> dict[str, tuple[dict[str, Any], pd.DataFrame]]:
    """By side, "far" and "control": what the repeats came to (medians), and the op table of the last one.

    `fused` is the Program lowered for each side.
    """
    found: dict[str, tuple[dict[str, Any], pd.DataFrame]] = {}
    exact = reference(fused["far"], data)
    for side, where in (("far", transport), ("control", "local")):
        rows, table = [], None
        with ready(fused[side], data, devices, where) as memory:
            for _ in range(repeats):
                outputs = memory.run()
                table = measured_ops(program, fused[side].lowered, outputs)
                rows.append(summary(table) | _whole(fused[side], outputs, exact))
        assert table is not None
        found[side] = {name: float(np.median([row[name] for row in rows])) for name in rows[0]}, table
    return found


def measure_bare(fused: Fused, data: Data, devices: Devices, transport: str, repeats: int) -> dict[str, float]:
    """The whole time and the error of the kernel without instrumentation, medians over repeats."""
    exact = reference(fused, data)
    with ready(fused, data, devices, transport, BARE_SOURCE) as memory:
        rows = [_whole(fused, memory.run(), exact) for _ in range(repeats)]
    return {name: float(np.median([row[name] for row in rows])) for name in rows[0]}


def _whole(fused: Fused, outputs: Mapping[str, Array], exact: Array) -> dict[str, float]:
    """From the start edge to the end of the last CTA of the slowest GPU, combine and all, in us; and the error."""
    whole = 0.0
    for name in (name for name in outputs if name.startswith("times@")):
        started = outputs[name][outputs[name]["global_start"] > 0]
        if len(started):
            whole = max(whole, (int(started["global_end"].max()) - int(started["global_start"].min())) / 1000)
    return {"whole_us": whole, "relative_error": error_of(fused, outputs, exact)}


def machine_for(base: Machine | str, sms: int) -> Machine:
    """A machine with so many SMs that runs the portable kernel."""
    from ...scenarios.machine_files import load_machine

    return load_machine(str(base), {"compute.kernels": "portable", "compute.sms": sms})


def run_policies(
    devices: Devices,
    shape: megamoe.MegaMoe,
    policies: Mapping[str, megamoe.Policy],
    transport: str,
    folder: Path,
    *,
    machine: str = "hgx-h100",
    repeats: int = 5,
    seed: int = 0,
    sms: int | None = None,
    calibrated: Machine | None = None,
) -> dict[str, Any]:
    """Measure the policies and write the report and the tables into `folder`; returns the report.

    `machine` is what the Programs are built for, `calibrated` what they are simulated on, if given.
    """
    one = devices.facts()[0]
    most = one.sms if transport == "peer" else one.sms // shape.ranks
    if most < 1:
        raise InputError("are more than the GPU has SMs", field="ranks", value=shape.ranks, allowed=f"1 to {one.sms}")
    if sms is not None and not 1 <= sms <= most:
        raise InputError("are not there for each rank", field="sms", value=sms, allowed=f"1 to {most}")
    rng = np.random.default_rng(seed)
    rows = balanced(shape.ranks, shape.tokens, shape.topk, shape.experts, rng)
    built_for = machine_for(machine, sms or most)
    report: dict[str, Any] = {"gpu": one.name, "transport": transport, "sms_per_rank": sms or most, "policies": {}}
    rows_of_report: list[Compared] = []
    folder.mkdir(parents=True, exist_ok=True)
    for name, policy in policies.items():
        print(f"running {name}", file=sys.stderr)
        program = megamoe.build(built_for, shape, policy, rows)
        fused = {
            side: lower_megamoe(program, rows, is_one_gpu=is_one, shared_bytes=one.shared_per_block_bytes)
            for side, is_one in (("far", transport != "peer"), ("control", True))
        }
        data = random_data(fused["far"], rng)
        found = measure(program, fused, data, devices, transport, repeats)
        report["policies"][name] = {side: told for side, (told, _) in found.items()}
        report["policies"][name]["bare"] = measure_bare(fused["far"], data, devices, transport, repeats)
        if calibrated is not None:
            far, control = (found[side][1] for side in ("far", "control"))
            rows_of_report.append(compared(name, program, far, control, calibrated, transport))
            report["policies"][name] |= {"simulated": dict(rows_of_report[-1].simulated)}
            report["policies"][name] |= {"error_pct": rows_of_report[-1].as_dict()["error_pct"]}
        for side, (_, table) in found.items():
            with write_whole(folder / f"{name}-{side}.parquet") as temporary:
                l2_tile_times(table).to_parquet(temporary)
    if calibrated is not None:
        report["ranked_alike"] = ranked_alike(rows_of_report)
    with write_whole(folder / "report.json") as temporary:
        temporary.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return report


def _widths(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise InputError(
            "is no list of widths", field="--intermediate", value=text, allowed="such as 256,512"
        ) from None


def main(arguments: Sequence[str] | None = None) -> int:
    """The command. Returns its exit code: 2 for bad input, 1 for what goes wrong on the way."""
    parser = argparse.ArgumentParser(prog="fused_run", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder for the reports and the tables")
    parser.add_argument("--transport", choices=("peer", "host", "local"), default="host")
    parser.add_argument("--policies", default=",".join(POLICIES), help="names, with commas between")
    parser.add_argument("--intermediate", default="512", help="expert width; several with commas between are a sweep")
    for name, value in USUAL_SIZES.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--machine", help="a calibrated machine, to simulate the policies on")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args(arguments)
    try:
        report = _run(asked)
    except XstageError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, InputError) else 1
    print(json.dumps(report, indent=2))
    return 0


def _run(asked: argparse.Namespace) -> dict[str, Any]:
    from ...scenarios.machine_files import load_machine
    from .cupy_devices import CupyDevices

    names, widths = asked.policies.split(","), _widths(asked.intermediate)
    if not set(names) <= set(POLICIES):
        raise InputError("are unknown", field="--policies", value=asked.policies, allowed=list(POLICIES))
    if asked.repeats < 1:
        raise InputError("must be at least 1", field="--repeats", value=asked.repeats)
    sizes = {name: getattr(asked, name) for name in USUAL_SIZES}
    shapes = [megamoe.MegaMoe(numbers="bf16", intermediate=width, **sizes) for width in widths]
    policies = {name: POLICIES[name] for name in names}
    calibrated = load_machine(asked.machine) if asked.machine else None
    devices, report = CupyDevices(), {}
    for shape in shapes:
        folder = asked.output / f"intermediate-{shape.intermediate}"
        report[folder.name] = run_policies(
            devices,
            shape,
            policies,
            asked.transport,
            folder,
            repeats=asked.repeats,
            seed=asked.seed,
            calibrated=calibrated,
        )
    return report


if __name__ == "__main__":
    sys.exit(main())
