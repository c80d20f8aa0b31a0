"""Run a fused kernel on GPUs, policy by policy: numerics, times of tiles, and the control.

    python -m xstage.hw_validate.cuda.fused_run megamoe -o DIR --transport host --intermediate 256,512,1024
    python -m xstage.hw_validate.cuda.fused_run attention -o DIR --transport host --tokens 1024,4096 --heads 8

Each policy runs on the transport, as the control (all memory on the GPU itself), and "bare": on the transport without its
instrumentation. The report.json of each size says what came out: error against the float64 reference, makespan, spans and
stalls; POLICY-SIDE.parquet holds the tiles of the repeat in the middle (fused_times.py).
A sweep passes the point where stores stall: narrow experts have short main loops for the same bytes, and so have short
sequences. With `--transport peer` rank r is GPU r; else all ranks are SMs of GPU 0. What waits for other ranks is left out
of the makespan. With `--machine FILE`, which `xstage calibrate --backend cuda -o FILE` measured on the same transport, every
policy is also simulated with the costs of its control (fused_compare.py), and `speedup` is that against the first policy.
"""

from __future__ import annotations

import argparse
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
from .device import Devices
from .errors import NoPeerAccessError
from .finite_json import as_json
from .fused_calls import ATTENTION_POLICIES, MEGAMOE_POLICIES, AttentionCall, Call, Lowering, MegaMoeCall
from .fused_compare import Band, Compared, Prediction, middle_repeat, over_repeats, ranked_alike
from .fused_waits import late_inputs
from .job import Array, Job
from .job_memory import JobMemory
from .records import measured_ops
from .replay_job import CHANGED, PATIENCE_S, Settings, sm_ticks_per_ns
from .steady import until_steady
from .transport import TRANSPORTS, without_atomics

if TYPE_CHECKING:
    import pandas as pd

    from ...sim.machine import Machine

SIDES = ("far", "control", "bare")
"""How each policy runs: on the transport, with all memory on the GPU itself, on the transport without instrumentation."""
_NOTED = ("records", "n_records", "times", "abort")


@contextmanager
def ready(
    call: Call, fused: Any, devices: Devices, transport: str, source: str, is_control: bool = False
) -> Iterator[tuple[JobMemory, dict[str, int]]]:
    """The kernel with its data in memory, or its control, and what it needs of an SM. Raises `NoPeerAccessError`."""
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
    needs: dict[str, int] = {}  # alike on equal GPUs
    for gpu in gpus:
        needs = devices.prepare(gpu, source, [call.kernel(fused)])
    clock = max(1.0, facts[0].clock_mhz / 1000)
    settings = Settings(patience_ticks=int(PATIENCE_S * 1e9 * clock))
    job = call.job(fused, "local" if is_control and transport != "peer" else transport, settings)
    changed = (*CHANGED, *call.written)  # what lies there from the repeat before would hide a wait that is missing
    with JobMemory(kept_at_home(job) if is_control else job, devices, gpus, source, changed) as memory:
        yield memory, needs


def steady_runs(call: Call, memory: JobMemory, repeats: int, stated_mhz: float) -> tuple[list[dict[str, Array]], bool]:
    """`repeats` runs in a row at a steady clock, and whether it was (steady.py): of each the buffers that say how it went
    and what came out."""
    return until_steady(
        memory.run,
        lambda _: _sm_mhz(_read(memory, ("times",))),
        lambda _: _read(memory, (*_NOTED, *call.outputs)),
        stated_mhz,
        repeats,
        memory.devices,
    )


def _read(memory: JobMemory, wanted: Sequence[str]) -> dict[str, Array]:
    """What the buffers with one of these names hold now, each of every GPU."""
    return {name: memory.read(name) for name in memory.job.buffers if name.partition("@")[0] in wanted}


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


def lowered_policy(
    devices: Devices, call: Call, policy: Any, transport: str, machine: str = "hgx-h100", sms: int | None = None
) -> tuple[Program, Any, int]:
    """The Program of a policy, the same lowered for these GPUs, and the SMs of a rank (`sms`, or all).

    `machine` is what the Program is built for. Raises `InputError` for too few GPUs or SMs.
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
    program = call.build(machine_for(machine, sms or most), policy)
    fused = call.lower(program, is_one_gpu=transport != "peer", shared_bytes=one.shared_per_block_bytes)
    return program, fused, sms or most


def measure(
    call: Call, program: Program, fused: Lowering, devices: Devices, transport: str, repeats: int, side: str
) -> tuple[dict[str, float], pd.DataFrame | None]:
    """What the repeats of a side came to (`over_repeats`), and the op table of the `middle_repeat`; "bare" has none.

    Raises `NoPeerAccessError`, `KernelTimeoutError`.
    """
    if side == "bare":
        return _measure_bare(call, fused, devices, transport, repeats), None
    between_gpus = transport == "peer"
    rows, tables = [], []
    before = offsets_between(devices, call.ranks) if between_gpus else {}
    with ready(call, fused, devices, transport, call.source, side == "control") as (memory, needs):
        runs, is_steady = steady_runs(call, memory, repeats, devices.facts()[0].clock_mhz)
    offsets = joined(before, offsets_between(devices, call.ranks)) if between_gpus else {}
    for outputs in runs:
        table = measured_ops(program, fused.lowered, outputs, to_add_ns(offsets, outputs, call.ranks))
        tables.append(table)
        arrives = side == "far" or not between_gpus
        told = call.summary(table) | late_inputs(program, table) | _whole(outputs)
        rows.append(told | (call.errors(fused, outputs) if arrives else {}))
    middle = tables[middle_repeat([row["stores_total_us"] for row in rows])]
    return over_repeats(rows) | needs | {"clock_is_steady": is_steady}, middle


def _measure_bare(call: Call, fused: Any, devices: Devices, transport: str, repeats: int) -> dict[str, float]:
    """The whole time and the errors of the kernel without instrumentation."""
    with ready(call, fused, devices, transport, call.bare) as (memory, needs):
        runs, is_steady = steady_runs(call, memory, repeats, devices.facts()[0].clock_mhz)
    found = over_repeats([_whole(outputs) | call.errors(fused, outputs) for outputs in runs])
    return found | needs | {"clock_is_steady": is_steady}


def _whole(outputs: Mapping[str, Array]) -> dict[str, float]:
    """From the start edge to the end of the last CTA of the slowest GPU, combine and all, in us; how many records found no
    room in shared memory, each of which held up its lane; how long lanes stood before a full post box of their courier, in
    all; and the SM clock."""
    whole, spilled, held, mhz = 0.0, 0, 0, _sm_mhz(outputs)
    for name, times in outputs.items():
        if name.startswith("times@") and len(started := times[times["global_start"] > 0]):
            whole = max(whole, (int(started["global_end"].max()) - int(started["global_start"].min())) / 1000)
            spilled += int(started["spilled"].sum())
            held += int(started["post_ticks"].sum(dtype=np.int64))
    return {"whole_us": whole, "spilled": float(spilled), "post_us": held / mhz, "sm_mhz": mhz}


def _sm_mhz(outputs: Mapping[str, Array]) -> float:
    """The SM clock of a run, the median over the CTAs of all GPUs; nan if none started."""
    times = [told for name, told in outputs.items() if name.startswith("times@")]
    return 1000 * sm_ticks_per_ns(np.concatenate(times))


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
    """Measure the policies and write the report and the tables into `folder`, after each policy; returns the report.

    `machine` is what the Programs are built for, `calibrated` what they are simulated on, if given.
    Raises what `lowered_policy` and `measure` raise.
    """
    report: dict[str, Any] = {"gpu": devices.facts()[0].name, "transport": transport, "policies": {}}
    rows: list[Compared] = []
    folder.mkdir(parents=True, exist_ok=True)
    for name, policy in policies.items():
        print(f"running {name}", file=sys.stderr)
        program, fused, report["sms_per_rank"] = lowered_policy(devices, call, policy, transport, machine, sms)
        found = {side: measure(call, program, fused, devices, transport, repeats, side) for side in SIDES}
        told: dict[str, Any] = {side: numbers for side, (numbers, _) in found.items()}
        report["policies"][name] = told
        tables = {side: table for side, (_, table) in found.items() if table is not None}
        for side, table in tables.items():
            with write_whole(folder / f"{name}-{side}.parquet") as temporary:
                call.tile_times(table).to_parquet(temporary)
        _write_report(folder, report)
        if calibrated is not None:
            prediction = Prediction.of(program, tables["control"], transport)
            row = Compared(name, told["far"], told["control"], call.summary(prediction.on(calibrated)))
            rows.append(row)
            told |= {name: row.as_dict()[name] for name in ("simulated", "stall_us", "error_pct")}
            told["stall_us"] = Band.of(prediction, calibrated, call.summary, row).judged(row.stall_us())
            told["speedup"] = rows[-1].speedup(rows[0])
            report["ranked_alike"] = ranked_alike(rows)
            _write_report(folder, report)
    return report


def _write_report(folder: Path, report: dict[str, Any]) -> None:
    with write_whole(folder / "report.json") as temporary:
        temporary.write_text(as_json(report), encoding="utf-8")


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
    print(as_json(report), end="")
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
