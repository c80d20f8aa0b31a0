"""Replays as measured op tables, and the same Programs simulated: what hw_validate/compare.py joins.

The simulated Program is the one that ran, priced with what was measured apart from the runs that are judged: T_iss0 of the
calibration, and from the control (the same replay into the GPU's own memory) what an interpreting kernel adds to a store, to
a pause and to a signal. Nothing of the far runs goes into it.

`stall` of a store is its span less the span of the same op in the control, signed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ...sim import program as p
from ...sim.errors import InputError, ProgramError
from ...sim.execute import simulate
from ...sim.machine import Machine
from ...sim.program import Program
from ...sim.trace import Trace
from ..compare import Comparison, compare
from .calibration import GpuCalibration
from .container import Container
from .lower import Lowered, Target, lower
from .one_gpu import folded, original_op
from .records import measured_ops
from .replay_job import RECORD
from .run_programs import KEYS, program_of

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Overheads:
    """What the interpreting kernel adds, in ns, as medians over the control: to a store beyond T_iss0, to a COMPUTE
    (claiming a task and noting times included) beyond its duration, and the whole of a SIGNAL or RELEASE."""

    store_ns: float = 0.0
    compute_ns: float = 0.0
    signal_ns: float = 0.0


def compare_programs(results: Container, found: GpuCalibration) -> tuple[list[Comparison], list[Overheads]]:
    """Every Program that was replayed, measured against simulated. Raises `InputError` if none was."""
    told = results.header["parts"].get("programs", {})
    plan = Container("plan", results.header["plan"], results.arrays)
    comparisons, overheads = [], []
    for number, one in enumerate(told.get("programs", [])):
        if not one.get("far_repeats"):
            continue
        program = program_of(plan, number)
        control = measured(results, program, number, "control") if one.get("control_repeats") else None
        overhead = overheads_of(program, control, found) if control is not None else Overheads()
        trace = simulated(program, found.machine, overhead, results.header["transport"]["name"])
        far = measured(results, program, number, "far", control)
        comparisons.append(compare(_original_ops(trace), far))
        overheads.append(overhead)
    if not comparisons:
        why = told.get("why") or "; ".join(one.get("skipped", "") for one in told.get("programs", [])) or "none planned"
        raise InputError(f"hold no replayed program ({why})", field="results")
    return comparisons, overheads


def measured(
    results: Container, program: Program, number: int, side: str, control: pd.DataFrame | None = None
) -> pd.DataFrame:
    """The op table of all repeats of one side of Program `number`, numbered by `repeat`."""
    import pandas as pd

    told = results.header["parts"]["programs"]["programs"][number]
    lowered = lower(program, Target(**told[f"{side}_target"]))
    arrays = results.under(f"replay/{number}/{side}")
    ahead = results.header["parts"].get("clock", {}).get("offsets_ns") or {}
    offsets = {gpu: -float(ahead.get(str(gpu), 0.0)) for gpu in range(program.n_gpus)} if ahead else None
    tables = []
    for repeat in range(len(arrays["start"])):
        outputs = _outputs(arrays, repeat, program, lowered)
        table = measured_ops(program, lowered, outputs, offsets if side == "far" else None, control)
        table.insert(0, "repeat", repeat)
        tables.append(table)
    return pd.concat(tables, ignore_index=True)


def simulated(program: Program, machine: Machine, overheads: Overheads, transport: str) -> Trace:
    """The Program as it should run on `machine`; several ranks on one GPU share its egress and its Q (one_gpu.py)."""
    made = priced(program, machine, overheads)
    if transport != "peer" and len(np.unique(made.lanes["gpu"])) > 1:
        made = folded(made, int(made.lanes["sm"].max()) + 1)
    elif transport != "peer" and made.n_gpus > 2:
        raise ProgramError(f"a program for {made.n_gpus} GPUs of which one stores: fold it onto 2 before it is planned")
    return simulate(made, machine.fabric(), trace="full")


def priced(program: Program, machine: Machine, overheads: Overheads) -> Program:
    """The Program with the costs of this machine and of the replay kernel in the durations of its ops."""
    ops = program.ops.copy()
    kind, size = ops["kind"], ops["bytes"]
    store, compute = (kind == p.STORE) & (size > 0), kind == p.COMPUTE
    signal = (kind == p.SIGNAL) | (kind == p.RELEASE)
    issue = machine.issue_time_ps(size[store].astype(np.int64))
    ops["duration_ps"][store] = np.maximum(0, issue + round(1000 * overheads.store_ns))
    ops["duration_ps"][compute] = np.maximum(0, ops["duration_ps"][compute] + round(1000 * overheads.compute_ns))
    ops["duration_ps"][signal] = round(1000 * max(0.0, overheads.signal_ns))
    return replace(program, ops=ops)


def overheads_of(program: Program, control: pd.DataFrame, found: GpuCalibration) -> Overheads:
    """Medians over all repeats of the control."""
    took_ns = 1000 * (control["end_us"] - control["start_us"]).to_numpy()
    kind = control["kind"].astype(str).to_numpy()
    stores = kind == "store"
    sizes = np.asarray(found.seen.isolated_bytes, dtype=float)
    usual = np.interp(control["bytes"].to_numpy(dtype=float)[stores], sizes, np.asarray(found.seen.control_ns))
    signals = np.isin(kind, ("signal", "release"))
    return Overheads(
        store_ns=float(np.median(took_ns[stores] - usual)) if stores.any() else 0.0,
        compute_ns=_beyond_pauses_ns(program, control),
        signal_ns=float(np.median(took_ns[signals])) if signals.any() else 0.0,
    )


def _beyond_pauses_ns(program: Program, control: pd.DataFrame) -> float:
    """How much longer than asked it is from the end of the op before a COMPUTE to the start of the op after it."""
    ordered = control.sort_values(["repeat", "lane", "start_us"], kind="stable")
    lane = ordered["repeat"].to_numpy() * (1 + int(ordered["lane"].max())) + ordered["lane"].to_numpy()
    start, end = 1000 * ordered["start_us"].to_numpy(), 1000 * ordered["end_us"].to_numpy()
    compute = (ordered["kind"].astype(str) == "compute").to_numpy()
    inner = np.flatnonzero(compute[1:-1] & (lane[1:-1] == lane[:-2]) & (lane[1:-1] == lane[2:])) + 1
    if not len(inner):
        return 0.0
    asked = program.ops["duration_ps"][ordered["op"].to_numpy()[inner]] / 1000
    return float(np.median(start[inner + 1] - end[inner - 1] - asked))


def _outputs(arrays: dict[str, Any], repeat: int, program: Program, lowered: Lowered) -> dict[str, Any]:
    """What the buffers of the replay held after one repeat, by name."""
    keys = arrays["keys"][min(repeat, len(arrays["keys"]) - 1)]
    records = np.zeros(len(keys), dtype=RECORD)
    for column, name in enumerate(KEYS):
        records[name] = keys[:, column]
    records["start"], records["end"] = arrays["start"][repeat], arrays["end"][repeat]
    one_gpu = lowered.target.is_one_gpu
    gpu_of_record = np.zeros(len(records), dtype=int) if one_gpu else program.lanes["gpu"][records["lane"]]
    gpu_of_cta = np.zeros(len(lowered.tables["ctas"]), dtype=int) if one_gpu else lowered.tables["ctas"]["gpu"]
    outputs: dict[str, Any] = {}
    for gpu in np.unique(gpu_of_cta).tolist():
        times = arrays["times"][repeat].copy()
        times[gpu_of_cta != gpu] = np.zeros(1, dtype=times.dtype)
        mine = records[gpu_of_record == gpu]
        outputs |= {
            f"records@{gpu}": mine,
            f"n_records@{gpu}": np.array([len(mine)], dtype=np.uint32),
            f"times@{gpu}": times,
            f"abort@{gpu}": np.zeros(1, dtype=np.uint32),
        }
    return outputs


def _original_ops(trace: Trace) -> pd.DataFrame:
    """The simulated op table, with ops numbered as in the Program before ranks were folded onto one GPU."""
    table = trace.ops()
    if "ranks_on_one_gpu" not in trace.program.meta:
        return table
    real = table["kind"].astype(str) != "task"
    return table.assign(op=np.where(real, original_op(trace.program, table["op"].to_numpy()), table["op"]))
