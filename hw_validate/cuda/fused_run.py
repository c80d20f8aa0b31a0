"""Run a fused kernel on GPUs, policy by policy: numerics, times of tiles, and the control.

    python -m xstage.hw_validate.cuda.fused_run megamoe -o DIR --transport host --intermediate 256,512,1024
    python -m xstage.hw_validate.cuda.fused_run attention -o DIR --transport host --tokens 1024,4096 --heads 8

Each policy runs on the transport, as the control (all memory on the GPU itself), and "bare": on the transport without its
instrumentation. The report.json of each size says what came out: error against the float64 reference, makespan, spans and
stalls; POLICY-SIDE.parquet holds the tiles of the last repeat (fused_times.py).
A sweep passes the point where stores stall: narrow experts have short main loops for the same bytes, and so have short
sequences. With `--transport peer` rank r is GPU r; else all ranks are SMs of GPU 0. What waits for other ranks is left out
of the makespan. With `--machine FILE`, which `xstage calibrate --backend cuda -o FILE` measured on the same transport, every
policy is also simulated with the costs of its control (fused_compare.py), and `speedup` is that against the first policy.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...sim.errors import InputError, XstageError
from ...sim.files import write_whole
from ...sim.program import Program
from ...sim.schedules import attention_a2a, megamoe
from .clocks import joined, offsets_between, to_add_ns
from .device import Buffer, Devices, Launch
from .errors import KernelTimeoutError, NoPeerAccessError
from .fused_calls import ATTENTION_POLICIES, MEGAMOE_POLICIES, AttentionCall, Call, Lowering, MegaMoeCall
from .fused_compare import Compared, compared, ranked_alike
from .job import HOST, Array, Job
from .records import measured_ops
from .replay_job import CHANGED, DEADLINE_S, PATIENCE_S, Settings
from .transport import TRANSPORTS, without_atomics

if TYPE_CHECKING:
    import pandas as pd

    from ...sim.machine import Machine

_NOTED = ("records", "n_records", "times", "abort")


class InMemory:
    """A job in the memory of GPUs; `gpus` are the devices of its GPU numbers, `results` the buffers that hold what came out.
    Use it in `with`."""

    def __init__(self, job: Job, devices: Devices, gpus: Sequence[int], source: str, results: Sequence[str]) -> None:
        self.job, self.devices, self.gpus, self.source, self.results = job, devices, gpus, source, results
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
            if name.partition("@")[0] in (*CHANGED, *self.results):
                self._write(name)
        launches = [self._launch(grid) for grid in self.job.grids]
        self.devices.run(launches, [self._memory[f"abort@{grid.gpu}"] for grid in self.job.grids], DEADLINE_S)
        wanted = (*_NOTED, *self.results)
        outputs = {name: self._read(name) for name in self.job.buffers if name.partition("@")[0] in wanted}
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
def ready(
    call: Call, fused: Any, devices: Devices, transport: str, source: str, is_control: bool = False
) -> Iterator[InMemory]:
    """The kernel with its data in memory, or its control. Raises `NoPeerAccessError`."""
    facts = devices.facts()
    gpus = [one.index for one in facts][: call.ranks if transport == "peer" else 1]
    if transport == "peer":
        for gpu in gpus:
            for peer in gpus:
                if gpu != peer and not devices.can_access(gpu, peer):
                    raise NoPeerAccessError(f"GPU {gpu} cannot reach the memory of GPU {peer}")
                if gpu != peer:
                    devices.enable_access(gpu, peer)
        if (why := without_atomics(devices, facts[: call.ranks])) is not None:
            raise NoPeerAccessError(f"{why}; use transport host")
    for gpu in gpus:
        devices.prepare(gpu, source, [call.kernel(fused)])
    clock = max(1.0, facts[0].clock_mhz / 1000)
    settings = Settings(patience_ticks=int(PATIENCE_S * 1e9 * clock))
    job = call.job(fused, "local" if is_control and transport != "peer" else transport, settings)
    with InMemory(kept_at_home(job) if is_control else job, devices, gpus, source, call.outputs) as memory:
        yield memory


def kept_at_home(job: Job) -> Job:
    """The control of a job: what a GPU would store into the memory of another, or load from it, has a place in its own.
    Flags travel as they did. Between GPUs nothing comes out of it then but times."""
    buffers, moved = dict(job.buffers), {}
    for grid in job.grids:
        for name in (f"{what}_by_rank@{grid.gpu}" for what in ("landing", "source")):
            pointers = dict(buffers[name].pointers)
            for at, pointer in pointers.items():
                told = job.buffers[pointer.buffer]
                if told.home != grid.gpu:
                    pointers[at] = replace(pointer, buffer=f"of_{pointer.buffer.replace('@', '_')}@{grid.gpu}")
                    moved[pointers[at].buffer] = replace(told, home=grid.gpu, output=False)
            buffers[name] = replace(buffers[name], pointers=pointers)
    return replace(job, buffers=buffers | moved)


def measure(
    call: Call, program: Program, fused: Lowering, devices: Devices, transport: str, repeats: int
) -> dict[str, tuple[dict[str, float], pd.DataFrame]]:
    """By side, "far" and "control": what the repeats came to, and the op table of the last one."""
    between_gpus = transport == "peer"
    found: dict[str, tuple[dict[str, float], pd.DataFrame]] = {}
    for side in ("far", "control"):
        rows, table = [], None
        before = offsets_between(devices, call.ranks) if between_gpus else {}
        with ready(call, fused, devices, transport, call.source, side == "control") as memory:
            runs = [memory.run() for _ in range(repeats)]
        offsets = joined(before, offsets_between(devices, call.ranks)) if between_gpus else {}
        for outputs in runs:
            table = measured_ops(program, fused.lowered, outputs, to_add_ns(offsets, outputs, call.ranks))
            arrives = side == "far" or not between_gpus
            rows.append(call.summary(table) | _whole(outputs) | (_error(call, fused, outputs) if arrives else {}))
        assert table is not None
        found[side] = _over_repeats(rows), table
    return found


def measure_bare(call: Call, fused: Any, devices: Devices, transport: str, repeats: int) -> dict[str, float]:
    """The whole time and the error of the kernel without instrumentation."""
    with ready(call, fused, devices, transport, call.bare) as memory:
        runs = [memory.run() for _ in range(repeats)]
    return _over_repeats([_whole(outputs) | _error(call, fused, outputs) for outputs in runs])


def _over_repeats(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Medians, and the largest error."""
    found = {name: float(np.median([row[name] for row in rows])) for name in rows[0]}
    errors = [row["relative_error"] for row in rows if "relative_error" in row]
    return found | ({"relative_error": max(errors)} if errors else {})


def _error(call: Call, fused: Any, outputs: Mapping[str, Array]) -> dict[str, float]:
    return {"relative_error": call.error(fused, outputs)}


def _whole(outputs: Mapping[str, Array]) -> dict[str, float]:
    """From the start edge to the end of the last CTA of the slowest GPU, combine and all, in us."""
    whole = 0.0
    for name in (name for name in outputs if name.startswith("times@")):
        started = outputs[name][outputs[name]["global_start"] > 0]
        if len(started):
            whole = max(whole, (int(started["global_end"].max()) - int(started["global_start"].min())) / 1000)
    return {"whole_us": whole}


def machine_for(base: Machine | str, sms: int) -> Machine:
    """A machine with so many SMs that runs the portable kernel."""
    from ...scenarios.machine_files import load_machine

    return load_machine(str(base), {"compute.kernels": "portable", "compute.sms": sms})


def run_policies(
    devices: Devices,
    call: Call,
    policies: Mapping[str, Any],
    transport: str,
    folder: Path,
    *,
    machine: str = "hgx-h100",
    repeats: int = 5,
    sms: int | None = None,
    calibrated: Machine | None = None,
) -> dict[str, Any]:
    """Measure the policies and write the report and the tables into `folder`; returns the report.

    `machine` is what the Programs are built for, `calibrated` what they are simulated on, if given.
    Raises `InputError` for too few GPUs or SMs, `NoPeerAccessError`, `KernelTimeoutError`.
    """
    facts = devices.facts()
    one = facts[0]
    if transport == "peer" and len(facts) < call.ranks:
        raise InputError("are more than there are GPUs", field="ranks", value=call.ranks, allowed=[len(facts)])
    most = one.sms if transport == "peer" else one.sms // call.ranks
    if most < 1:
        raise InputError("are more than the GPU has SMs", field="ranks", value=call.ranks, allowed=f"1 to {one.sms}")
    if sms is not None and not 1 <= sms <= most:
        raise InputError("are not there for each rank", field="sms", value=sms, allowed=f"1 to {most}")
    built_for = machine_for(machine, sms or most)
    report: dict[str, Any] = {"gpu": one.name, "transport": transport, "sms_per_rank": sms or most, "policies": {}}
    rows_of_report: list[Compared] = []
    folder.mkdir(parents=True, exist_ok=True)
    for name, policy in policies.items():
        print(f"running {name}", file=sys.stderr)
        program = call.build(built_for, policy)
        fused = call.lower(program, is_one_gpu=transport != "peer", shared_bytes=one.shared_per_block_bytes)
        found = measure(call, program, fused, devices, transport, repeats)
        report["policies"][name] = {side: told for side, (told, _) in found.items()}
        report["policies"][name]["bare"] = measure_bare(call, fused, devices, transport, repeats)
        if calibrated is not None:
            far, control = (found[side][1] for side in ("far", "control"))
            rows_of_report.append(compared(name, program, far, control, calibrated, transport, call.summary))
            report["policies"][name] |= {"simulated": dict(rows_of_report[-1].simulated)}
            report["policies"][name] |= {"error_pct": rows_of_report[-1].as_dict()["error_pct"]}
        for side, (_, table) in found.items():
            with write_whole(folder / f"{name}-{side}.parquet") as temporary:
                call.tile_times(table).to_parquet(temporary)
    if calibrated is not None:
        report["ranked_alike"] = ranked_alike(rows_of_report)
        for row in rows_of_report:
            report["policies"][row.policy]["speedup"] = row.speedup(rows_of_report[0])
    with write_whole(folder / "report.json") as temporary:
        temporary.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return report


# --- the command


def _megamoe(asked: argparse.Namespace) -> dict[str, Call]:
    sizes = {name: getattr(asked, name) for name in ("tokens", "hidden", "experts", "topk", "ranks")}
    shapes = [megamoe.MegaMoe(numbers="bf16", intermediate=width, **sizes) for width in _sizes(asked, "intermediate")]
    return {f"intermediate-{shape.intermediate}": MegaMoeCall(shape, asked.seed) for shape in shapes}


def _attention(asked: argparse.Namespace) -> dict[str, Call]:
    names = ("heads", "kv_heads", "head_dim", "batch", "causal", "ranks")
    sizes = {name: getattr(asked, name) for name in names}
    shapes = [attention_a2a.Attention(tokens=tokens, **sizes) for tokens in _sizes(asked, "tokens")]
    return {f"tokens-{shape.tokens}": AttentionCall(shape, asked.seed) for shape in shapes}


KERNELS: Mapping[str, tuple[Any, Mapping[str, Any], Mapping[str, Any]]] = {
    "megamoe": (
        _megamoe,
        MEGAMOE_POLICIES,
        {"intermediate": "512", "tokens": 512, "hidden": 1024, "experts": 8, "topk": 2, "ranks": 2},
    ),
    "attention": (
        _attention,
        ATTENTION_POLICIES,
        {"tokens": "2048", "heads": 8, "kv_heads": None, "head_dim": 128, "batch": 1, "ranks": 2},
    ),
}
"""By name: calls of the options, policies, and the options with their usual values; one that is a text may be a list of
sizes with commas between, which are a sweep."""


def _sizes(asked: argparse.Namespace, name: str) -> list[int]:
    text = getattr(asked, name)
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise InputError("is no list of sizes", field=f"--{name}", value=text, allowed="such as 256,512") from None


def main(arguments: Sequence[str] | None = None) -> int:
    """The command. Returns its exit code: 2 for bad input, 1 for what goes wrong on the way."""
    asked = _parser().parse_args(arguments)
    try:
        report = _run(asked)
    except XstageError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, InputError) else 1
    print(json.dumps(report, indent=2))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="fused_run", description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="kernel", required=True, metavar="|".join(KERNELS))
    for kernel, (_, policies, options) in KERNELS.items():
        one = commands.add_parser(kernel)
        one.add_argument("-o", "--output", type=Path, required=True, help="folder for the reports and the tables")
        one.add_argument("--transport", choices=TRANSPORTS, default="host")
        one.add_argument("--policies", default=",".join(policies), help="names, with commas between")
        for name, value in options.items():
            kind = str if isinstance(value, str) else int
            said = "several with commas between are a sweep" if kind is str else None
            one.add_argument(f"--{name.replace('_', '-')}", type=kind, default=value, help=said)
        if kernel == "attention":
            one.add_argument("--causal", action="store_true")
        one.add_argument("--machine", help="a calibrated machine, to simulate the policies on")
        one.add_argument("--repeats", type=int, default=5)
        one.add_argument("--seed", type=int, default=0)
    return parser


def _run(asked: argparse.Namespace) -> dict[str, Any]:
    from ...scenarios.machine_files import load_machine
    from .cupy_devices import CupyDevices

    make, policies, _ = KERNELS[asked.kernel]
    names = asked.policies.split(",")
    if not set(names) <= set(policies):
        raise InputError("are unknown", field="--policies", value=asked.policies, allowed=list(policies))
    if asked.repeats < 1:
        raise InputError("must be at least 1", field="--repeats", value=asked.repeats)
    calls = make(asked)
    calibrated = load_machine(asked.machine) if asked.machine else None
    devices, report = CupyDevices(), {}
    for name, call in calls.items():
        report[name] = run_policies(
            devices,
            call,
            {policy: policies[policy] for policy in names},
            asked.transport,
            asked.output / name,
            repeats=asked.repeats,
            calibrated=calibrated,
        )
    return report


if __name__ == "__main__":
    sys.exit(main())
