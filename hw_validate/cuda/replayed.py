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
from ...sim.errors import InputError
from ...sim.machine import Machine
from ...sim.program import Program
from .calibration import GpuCalibration
from .clocks import to_add_ns
from .container import Container
from .lower import Lowered, Target, lower
from .ranks import simulated_ranks
from .records import UnfinishedError, measured_ops
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


@dataclass(frozen=True, eq=False)
class Judged:
    """One Program that was replayed: both op tables, that of the hardware with all its repeats."""

    simulated: pd.DataFrame
    measured: pd.DataFrame
    overheads: Overheads


def judged_programs(results: Container, found: GpuCalibration) -> list[Judged | None]:
    """Every Program of the results, None for those that did not run. Raises `InputError` if none did."""
    told = results.header["parts"].get("programs", {})
    plan = Container("plan", results.header["plan"], results.arrays)
    judged: list[Judged | None] = []
    for number, one in enumerate(told.get("programs", [])):
        if not one.get("far_repeats"):
            judged.append(None)
            continue
        try:
            judged.append(_judged(results, program_of(plan, number), number, found))
        except UnfinishedError as error:  # the others are none the worse for it
            found.seen.warnings.append(f"program {number} is left out: {error}")
            judged.append(None)
    if all(one is None for one in judged):
        why = told.get("why") or "; ".join(one.get("skipped", "") for one in told.get("programs", [])) or "none planned"
        raise InputError(f"hold no replayed program ({why})", field="results")
    return judged


def _judged(results: Container, program: Program, number: int, found: GpuCalibration) -> Judged:
    has_control = results.header["parts"]["programs"]["programs"][number].get("control_repeats")
    control = measured(results, program, number, "control") if has_control else None
    overhead = overheads_of(program, control, found) if control is not None else Overheads()
    made = priced(program, found.machine, overhead)
    trace = simulated_ranks(made, found.machine, results.header["transport"]["name"])
    return Judged(trace.ops(), measured(results, program, number, "far", control), overhead)


def measured(
    results: Container, program: Program, number: int, side: str, control: pd.DataFrame | None = None
) -> pd.DataFrame:
    """The op table of all repeats of one side of Program `number`, numbered by `repeat`."""
    import pandas as pd

    told = results.header["parts"]["programs"]["programs"][number]
    lowered = lower(program, Target(**told[f"{side}_target"]))
    arrays = results.under(f"replay/{number}/{side}")
    offsets = results.header["parts"]["programs"].get("offsets", {}) if side == "far" else {}
    tables = []
    for repeat in range(len(arrays["start"])):
        outputs = _outputs(arrays, repeat, program, lowered)
        added = to_add_ns(offsets, outputs, program.n_gpus)
        table = measured_ops(program, lowered, outputs, added, control)
        table.insert(0, "repeat", repeat)
        tables.append(table)
    return pd.concat(tables, ignore_index=True)


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
