"""Results of microbenchmarks as a calibration: T_iss0, R and Q of a GPU's stage, and what they depend on.

    all SMs         isolated bursts and trains, by the fit that every backend shares (sim/calibrate.py)
    fewer SMs       isolated bursts for each number K of producers; Q(K) as a share of each SM, of the GPU, or the smaller
    costs           what releases, flags, tickets, barriers and loads out of the far memory take

The machine that comes of it is GPU 0, the producers, and GPU 1, what they store to; with transport `peer` all GPUs.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from ...sim.calibrate import LEAST_ROUNDS, BurstTimes, Calibration, Mode, NoLawError, fit
from ...sim.calibrated_machine import machine_of
from ...sim.errors import InputError
from ...sim.machine import Machine
from ..calibrated import Calibrated
from ..centre import centre
from .capacity import CapacityByProducers, fit_capacity
from .cautions import cautions, small_burst
from .container import Container
from .noted import Noted, gap_ns, issue_ns
from .parts import AGAIN
from .run_bursts import WARP_STORE_BYTES
from .summary import microbenchmarks

Array = np.ndarray[Any, np.dtype[Any]]
SKIPPED_SHARE = 1 / 3
"""Of a train, what does not count: the stage is filling up."""
LEAST_NS = 0.1
SMALL_BURSTS = 3
"""Sizes, the smallest, that fill no queue: what loading their last word back takes is the way there and back."""
REFERENCE_BYTES = 32768.0
AT_ONCE_BYTES = 8 * WARP_STORE_BYTES
"""What the 8 warps of an SM store with one instruction each: smaller bursts all take about as long to issue."""
LEAST_OF_CONTROL = 0.8
"""Stores to far memory are issued no faster than those to the GPU's own; a line well below these is no issue time."""
SIMULATED_GRANULES = 48
"""Granules that the simulation cuts a burst at the knee into."""


@dataclass(frozen=True)
class Costs:
    """What is paid beside stores, in ns (None: not measured): a release at system scope after a burst of each size, one way
    of a flag between SMs, a ticket from a counter shared by K SMs, the barrier of the grid, and noting a time.

    `pull_ns` is what K SMs take for loads out of the far memory that all are in flight at once, `pull_gbs` the rate of many
    more. The simulator knows neither: its loads take twice the latency, and come at R.
    """

    release_ns: dict[int, float]
    flag_one_way_ns: float | None
    ticket_ns: dict[int, float]
    barrier_ns: float | None
    noting_ns: float
    pull_ns: dict[int, float] = field(default_factory=dict)
    pull_gbs: dict[int, float] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class GpuCalibration:
    """Everything that results of microbenchmarks say. `seen` is what every backend has, with the rest in its `details`."""

    seen: Calibrated
    costs: Costs
    capacity: CapacityByProducers | None
    long_run_gbs: float | None
    long_run_warm_gbs: float | None

    @property
    def machine(self) -> Machine:
        return self.seen.machine


def part(results: Container, name: str) -> Noted:
    """A part that has run. Raises `InputError` that says why it has not."""
    told = results.header["parts"].get(name)
    if told is None or told["state"] != "done":
        why = "was not planned" if told is None else f"{told['state']}: {told['why']}"
        raise InputError(f"is needed, but {why}", field=f"part {name} of the results")
    groups = results.header["plan"]["parts"][AGAIN.get(name, name)]["groups"]
    return Noted.of(results.under(f"part/{name}"), groups)


def has_part(results: Container, name: str) -> bool:
    return bool(results.header["parts"].get(name, {}).get("state") == "done")


def calibrate(results: Container) -> GpuCalibration:
    """The calibration of a results file. Raises `InputError` where parts are missing, `NoLawError` where there is no law."""
    bursts = part(results, "bursts")
    costs, noting = costs_of(results), noting_cycles(results)
    times = burst_times(results, bursts, noting)
    warnings = list(results.header["warnings"])
    if "failed" in results.header:
        failed = results.header["failed"]
        warnings.append(f"these are partial results: part {failed['part']} failed: {failed['why']}")
    try:
        found = _fit(times)
    except NoLawError as refusal:
        found, times = _with_fewer(results, noting, refusal)
        warnings.append(
            f"with all SMs there is no law to be seen ({refusal}): the numbers are those of {found.producers} SMs"
        )
    capacity = capacity_by_producers(results, noting, found) if has_part(results, "producers") else None
    sizes, control = _by_size(bursts, "control", 1, noting)
    # Where only fewer SMs show a law, all together are beyond the knee with the smallest burst.
    knee_bytes = found.knee_bytes.value if found.producers == _producers(bursts) else 0.0
    full_ns = found.capacity_bytes.value / found.drain_gbs.value
    said, shortest = _told_by_microbenchmarks(results, knee_bytes, full_ns)
    warnings += said
    if (doubt := _flat(found, sizes, control)) is not None:
        warnings.append(doubt)
    _, completed = _by_size(bursts, "completed", 2, noting)
    seen = Calibrated(
        calibration=found,
        machine=_machine(results, found, capacity, latency_ns(bursts, noting)),
        times=times,
        control_ns=control,
        completed_ns=completed,
        isolated_bytes=sizes,
        host=_host(results, bursts),
        warnings=warnings,
        details={
            "costs": asdict(costs),
            "capacity_by_producers": None if capacity is None else asdict(capacity),
            "long_run_gbs": (long_run_gbs := _long_run_gbs(results, "trains")),
            "long_run_warm_gbs": (long_run_warm_gbs := _long_run_gbs(results, "warm")),
            "small_burst": shortest,
        },
    )
    return GpuCalibration(seen, costs, capacity, long_run_gbs, long_run_warm_gbs)


def _told_by_microbenchmarks(
    results: Container, knee_bytes: float, full_ns: float
) -> tuple[list[str], dict[str, float] | None]:
    """The cautions, and `small_burst`. What fails in here is told in their place, whatever it is: they come from rows that
    the fit does not use, and the GPU that was measured may be gone, so they may not take the calibration with them."""
    try:
        rows = microbenchmarks(results)
        return cautions(rows, knee_bytes, full_ns), small_burst(rows)
    except Exception as error:
        return [f"cautions could not be told: {type(error).__name__}: {error}"], None


def burst_times(results: Container, bursts: Noted, noting: float) -> BurstTimes:
    """Issue times of all isolated bursts and trains by round; trains take as many rounds as they have, repeated in turn."""
    sizes, isolated = _by_round(bursts, "isolated", 1, noting)
    gaps = np.full(len(sizes), np.inf)
    if has_part(results, "trains"):
        trains = part(results, "trains")
        train_sizes, train_gaps, issued = _trains(trains, noting)
        turns = np.arange(len(isolated)) % len(issued)
        sizes, gaps = np.concatenate([sizes, train_sizes]), np.concatenate([gaps, train_gaps])
        isolated = np.concatenate([isolated, issued[turns]], axis=1)
    # No time is known better than what noting it takes: without this the smallest bursts would count most.
    resolution = max(noting, 1.0) / float(np.median(bursts.cycles_per_ns))
    return BurstTimes(_producers(bursts), sizes, gaps, np.maximum(isolated, LEAST_NS), resolution)


def _producers(bursts: Noted) -> int:
    """Of isolated bursts: all SMs."""
    return int(bursts.table["producers"][bursts.rows("isolated")[0]])


def _fit(times: BurstTimes) -> Calibration:
    """By the way of meeting in trains that describes them better: producers neither march in step nor quite drift apart."""
    modes: tuple[Mode, ...] = ("free_running", "synchronised")
    if times.producers == 1 or times.isolated.all():
        modes = ("synchronised",)
    reference = float(min(REFERENCE_BYTES, times.burst_bytes[times.isolated].max()))
    fits, refusals = [], []
    for mode in modes:
        try:
            fits.append(fit(times, mode, reference_bytes=reference))
        except NoLawError as refusal:
            refusals.append(refusal)
    if not fits:
        raise refusals[0]
    return min(fits, key=lambda found: found.residual_pct)


def _flat(found: Calibration, sizes: Array, control_ns: Array) -> str | None:
    """What to know where bursts below the knee are too small to tell how fast larger ones are issued, and do not."""
    line = found.t0_ns.value + REFERENCE_BYTES / found.issue_gbs.value
    control = float(np.interp(REFERENCE_BYTES, sizes, control_ns))
    if found.knee_bytes.value >= AT_ONCE_BYTES or line > LEAST_OF_CONTROL * control:
        return None
    return (
        f"the knee of {found.knee_bytes.value:.0f} B is below the {AT_ONCE_BYTES} B that an SM stores at once, so T_iss0 is "
        f"that of {found.reference_bytes:g} B. Nothing shows what larger bursts take without backpressure: for 32 KiB the "
        f"line gives {line:.0f} ns, while stores into the GPU's own memory take {control:.0f}"
    )


def _with_fewer(results: Container, noting: float, refusal: NoLawError) -> tuple[Calibration, BurstTimes]:
    """The calibration of the most SMs, fewer than all, whose isolated bursts show a knee; else the refusal is raised.

    All SMs together may fill a small stage with less than the smallest burst.
    """
    if not has_part(results, "producers"):
        raise refusal
    for times in _times_by_producers(part(results, "producers"), noting)[::-1]:
        try:
            return _fit(times), times
        except (NoLawError, InputError):
            continue
    raise refusal


def _times_by_producers(noted: Noted, noting: float) -> list[BurstTimes]:
    """Isolated bursts of each number of producers, fewest first."""
    rows = noted.rows("producers")
    counts = noted.table["producers"][rows]
    made, noting_ns = [], noting / float(np.median(noted.cycles_per_ns))
    for count in np.unique(counts):
        sizes, issued = _of_rows(noted, rows[counts == count], 1, noting)
        if len(issued) >= LEAST_ROUNDS:
            alone = np.full(len(sizes), np.inf)
            made.append(BurstTimes(int(count), sizes, alone, np.maximum(issued, LEAST_NS), noting_ns))
    return made


def capacity_by_producers(results: Container, noting: float, all_sms: Calibration) -> CapacityByProducers | None:
    """Q(K) from isolated bursts of each number of producers, and of all. None where fewer than two K have a knee."""
    found: dict[int, float] = {all_sms.producers: all_sms.capacity_bytes.value}
    refused: dict[int, str] = {}
    for times in _times_by_producers(part(results, "producers"), noting):
        if times.producers in found:
            continue
        try:
            found[times.producers] = fit(times, draws=60).capacity_bytes.value
        except (NoLawError, InputError) as error:
            refused[times.producers] = str(error)
    if len(found) < 2:
        return None
    return fit_capacity(np.array(list(found), dtype=float), np.array(list(found.values())), refused)


def noting_cycles(results: Container) -> float:
    """What noting a time takes, in cycles: in ns it is less, the faster the clock of what it is taken from."""
    clock = part(results, "clock")
    return float(np.median([_mean_cycles(clock.cycles(int(i)), 1) for i in clock.rows("noting")]))


def costs_of(results: Container) -> Costs:
    """Costs of whatever parts there are; noting a time is needed, and told by the clock of the part `costs`, if that ran."""
    has_costs = has_part(results, "costs")
    noted = part(results, "costs" if has_costs else "clock")
    noting = noting_cycles(results) / float(np.median(noted.cycles_per_ns))
    if not has_costs:
        return Costs({}, None, {}, None, noting)

    def between(group: str, first: int, last: int, size: int | None = None) -> dict[int, list[float]]:
        found: dict[int, list[float]] = {}
        for i in noted.rows(group):
            if size not in (None, noted.table["bytes"][i]):
                continue
            key = int(noted.table["bytes" if "release" in group else "producers"][i])
            times = noted.ns(int(i))
            if group == "flag":
                times = times[:1]
            found.setdefault(key, []).append(float(np.median(times[..., last] - times[..., first])))
        return found

    def middle(found: dict[int, list[float]]) -> dict[int, float]:
        return {key: max(0.0, float(np.median(values)) - noting) for key, values in sorted(found.items())}

    flag, barrier = middle(between("flag", 0, 1)), middle(between("barrier", 0, 1))
    pulled = np.unique(noted.table["bytes"][noted.rows("pull")]).tolist()
    pulls = [middle(between("pull", 0, 1, size)) for size in pulled]
    return Costs(
        release_ns=middle(between("release", 1, 2)),
        flag_one_way_ns=next(iter(flag.values())) / 2 if flag else None,
        ticket_ns=middle(between("ticket", 0, 1)),
        barrier_ns=next(iter(barrier.values())) if barrier else None,
        noting_ns=noting,
        pull_ns=pulls[0] if pulls else {},
        pull_gbs={sms: sms * pulled[-1] / took for sms, took in pulls[-1].items()} if pulls else {},
    )


def drift_pct(results: Container) -> float | None:
    """How far isolated bursts had moved at the end: median |now / then - 1| over sizes. None if not measured again."""
    if not (has_part(results, "drift") and has_part(results, "bursts")):
        return None
    sizes, then = _by_size(part(results, "bursts"), "isolated", 1, 0.0)
    again, now = _by_size(part(results, "drift"), "isolated", 1, 0.0)
    common = np.intersect1d(sizes, again)
    ratio = now[np.isin(again, common)] / then[np.isin(sizes, common)]
    return float(100 * np.median(np.abs(ratio - 1)))


def _by_round(noted: Noted, group: str, mark: int, noting: float) -> tuple[Array, Array]:
    return _of_rows(noted, noted.rows(group), mark, noting)


def _of_rows(noted: Noted, rows: Array, mark: int, noting: float) -> tuple[Array, Array]:
    """Sizes in order, and mean times from start to `mark` over SMs in ns, less `noting` cycles, [rounds, sizes]."""
    table = noted.table[rows]
    rate = noted.cycles_per_ns
    took = np.array([(_mean_cycles(noted.cycles(int(i)), mark) - noting) / rate[i] for i in rows])
    sizes, rounds = np.unique(table["bytes"]), np.unique(table["round"])
    made = np.full((len(rounds), len(sizes)), np.nan)
    made[np.searchsorted(rounds, table["round"]), np.searchsorted(sizes, table["bytes"])] = took
    whole = ~np.isnan(made).any(axis=1)
    return sizes.astype(float), made[whole]


def _mean_cycles(marks: Array, mark: int) -> float:
    return float((marks[..., mark] - marks[..., 0]).mean())


def _by_size(noted: Noted, group: str, mark: int, noting: float) -> tuple[Array, Array]:
    sizes, times = _by_round(noted, group, mark, noting)
    return sizes, np.asarray(centre(times, axis=0))


def _trains(noted: Noted, noting: float) -> tuple[Array, Array, Array]:
    """Sizes and true gaps of trains, and mean issue times of the bursts that count, [rounds, trains]."""
    rows = noted.rows("train")
    skip = int(noted.table["bursts"][rows[0]] * SKIPPED_SHARE)
    configs, rounds = np.unique(noted.table["config"][rows]), np.unique(noted.table["round"][rows])
    issued, gaps = (np.full((len(rounds), len(configs)), np.nan) for _ in range(2))
    sizes = np.zeros(len(configs))
    for i in rows:
        row = noted.table[i]
        at = np.searchsorted(rounds, row["round"]), np.searchsorted(configs, row["config"])
        noting_ns = noting / noted.cycles_per_ns[i]
        issued[at] = issue_ns(noted, int(i), skip) - noting_ns
        gaps[at] = gap_ns(noted, int(i), skip) + noting_ns
        sizes[at[1]] = row["bytes"]
    return sizes, np.asarray(centre(gaps, axis=0)), issued


def _long_run_gbs(results: Container, name: str) -> float | None:
    """R as long bursts of a part without a gap tell it, with no fit (None: not measured)."""
    if not has_part(results, name):
        return None
    noted = part(results, name)
    rows = noted.rows("long run")
    rates = [rate_gbs(noted.ns(int(i)), float(noted.table["bytes"][i])) for i in rows]
    return float(np.median(rates)) if rates else None


def rate_gbs(times_ns: Array, burst_bytes: float) -> float:
    """The sum over SMs of the rate of each, from the end of its first burst, which filled the stage, through those bursts
    that ended while all SMs were storing.

    `times_ns` [SMs, bursts, 2] are from one common start. A mean time of bursts would not do: SMs that get more of the link
    end earlier, and then the others get more. Where an SM ends before another has done two bursts, all that was issued from
    when each had done one until all had ended.
    """
    ends = times_ns[..., 1]
    counted = np.sum(ends <= ends[:, -1].min(), axis=1) - 1
    if (counted > 0).all():
        last = np.take_along_axis(ends, counted[:, None], axis=1)[:, 0]
        return float(np.sum(burst_bytes * counted / (last - ends[:, 0])))
    begin, done = ends[:, 0].max(), np.arange(1, ends.shape[1] + 1)
    issued = sum(float(np.interp(begin, one, done)) for one in ends)
    return float(burst_bytes * (ends.size - issued) / (ends.max() - begin))


def latency_ns(bursts: Noted, noting: float) -> float:
    """One way to the far memory: half of what it takes, after a small burst is issued, to load its last word back."""
    _, issued = _by_size(bursts, "isolated", 1, noting)
    _, back = _by_size(bursts, "completed", 2, noting)
    return max(0.0, float(np.median((back - issued)[:SMALL_BURSTS])) / 2)


def _machine(results: Container, found: Calibration, capacity: CapacityByProducers | None, latency: float) -> Machine:
    header = results.header
    gpu = header["machine"]["devices"][header["transport"]["devices"][0]]
    transport = header["transport"]["name"]
    ranks = len(header["transport"]["devices"])
    name = f"{gpu['name'].lower().replace(' ', '-')}-{transport}"
    source = (
        f"xstage calibrate --backend cuda --transport {transport} on {gpu['name']}, {found.producers} producing SMs"
    )
    granule = _granule(found)
    machine = machine_of(found, name, source, f"{found.producers} SMs of {gpu['name']}, transport {transport}", granule)
    data = machine.model_dump(mode="json", exclude_unset=True)
    data["interconnect"]["latency"] = {
        "value": f"{round(1000 * latency)} ps",
        "source": f"{source}: half of loading the last word of a small burst back",
    }
    if capacity is not None:
        told = f"{source}; Q(K) of {len(capacity.producers)} numbers of SMs is that of {capacity.form}"
        told += f" (median miss {capacity.missed_pct[capacity.form]:.1f} %)" + (
            f"; {capacity.bound}" if capacity.bound else ""
        )
        each = max(granule, round(capacity.per_sm_bytes), round(found.capacity_bytes.value / found.producers))
        data["stage"]["capacity_sm"] = {"value": f"{each} B", "source": told}
    if ranks > 2:
        data["interconnect"]["gpus"] = {"value": ranks, "source": f"{source}: GPUs that reach each other"}
    return Machine.parse(data)


def _granule(found: Calibration) -> int:
    """A power of two that cuts the knee finely enough and keeps simulations small."""
    wanted = found.knee_bytes.value / SIMULATED_GRANULES
    room = found.capacity_bytes.value / found.producers
    return int(2 ** np.clip(np.floor(np.log2(max(64.0, min(wanted, room)))), 6, 12))


def _host(results: Container, bursts: Noted) -> dict[str, Any]:
    header = results.header
    gpu = header["machine"]["devices"][header["transport"]["devices"][0]]
    return {
        "processor": gpu["name"],
        "transport": header["transport"]["name"],
        "gpus": len(header["transport"]["devices"]),
        "compute_capability": gpu["compute_capability"],
        "sms": gpu["sms"],
        "sm_clock_mhz": 1000 * float(np.median(bursts.cycles_per_ns)),
        "clock_moved_pct": bursts.clock_moved_pct(),
        "timer_tick_ns": part(results, "clock").tick_ns(),
        "store": "16 bytes a thread, 8 warps an SM",
        **{key: header["machine"]["platform"].get(key) for key in ("cuda_driver", "cuda_runtime", "driver", "cupy")},
    }
