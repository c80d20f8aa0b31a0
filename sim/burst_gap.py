"""The X-Stage in closed form: does a burst of remote stores fit, how long does it wait, and what removes the wait.

K producers (one per SM) issue B bytes each, V = K B in all, then store nothing for a gap G. Issuing takes T_iss0 when
nothing holds it up; the stage holds at most Q(K) bytes and drains at R. [x]+ is max(0, x). A mode says how bursts meet:

- `free_running`: the steady state of many producers that drift apart, so that a burst meets no other; it may still be too
  large for q_sm, the room of its own SM. A single producer cannot drift away from itself: K = 1 is as `synchronised`.
- `synchronised`: the steady state of producers that start each burst together. A burst larger than the stage then waits
  for its own overflow, however long the gap was.
- `isolated`: one burst into an empty stage, so the first of any train. The gap plays no part.

Arguments are numbers or arrays that broadcast, in bytes, picoseconds and kB/s, and the fields of `XStage` may be arrays
too; a result is a float where all are numbers, else a float64 array. A negative, infinite or NaN argument, a rate or
capacity of zero, or an unknown mode raises `InputError`. Where no bytes are stored (K = 0 or B = 0) nothing is issued.

Source: arXiv 2607.23264, formulas as reported. The `synchronised` mode, backlogs and inverses are our extension.

>>> from xstage.sim.burst_gap import XStage, audit, knee
>>> b200 = XStage(t0_ps=240_000, issue_kbs=62_900_000, drain_kbs=717_000_000,
...               capacity_per_producer_bytes=30 * 2**10, capacity_total_bytes=4.25 * 2**20)
>>> round(knee(b200, producers=148) / 2**10, 1)
33.1
>>> answer = audit(b200, producers=148, burst_bytes=32 * 2**10, gap_ps=4_000_000)
>>> answer.advice, round(answer.recovery_gap_us, 2), round(answer.stall_us, 2)
('reshape', 6.0, 2.0)
>>> print(answer.reason)  # doctest: +NORMALIZE_WHITESPACE
1019 GB/s in the long run is over the 717 GB/s that drains, so each burst waits 2.003 us;
what removes it: 2.003 us more computation between bursts, or a drain rate of 1019 GB/s.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .errors import InputError
from .units import format_size, format_time, gbs, us

Mode = Literal["isolated", "free_running", "synchronised"]
Phase = Literal["issue_bound", "recovered", "drain_limited"]
Advice = Literal["piggyback", "reshape"]

# A float or a float64 array, by what went in: typed as NumPy types its own ufuncs.
Values: TypeAlias = Any

# B / R is in bytes over kB/s: this many ps.
_PS = 1e9


@dataclass(frozen=True)
class XStage:
    """The three numbers of a machine's post-issue stage, T_iss0, R and Q, with how they depend on the producers.

    `t0_ps`: start-up of a burst; `issue_kbs`: w, at which one producer issues; `drain_kbs`: R, of all together;
    `capacity_per_producer_bytes` and `capacity_total_bytes`: q_sm and Q_total, what the stage holds for an SM, a GPU.
    Raises `InputError` for a field that is not finite, a negative `t0_ps`, or anything else that is not above 0.
    """

    t0_ps: Values
    issue_kbs: Values
    drain_kbs: Values
    capacity_per_producer_bytes: Values
    capacity_total_bytes: Values

    def __post_init__(self) -> None:
        object.__setattr__(self, "t0_ps", _zero_or_more(self.t0_ps, "t0_ps"))
        for field in ("issue_kbs", "drain_kbs", "capacity_per_producer_bytes", "capacity_total_bytes"):
            object.__setattr__(self, field, _above_zero(getattr(self, field), field))


def capacity(stage: XStage, producers: ArrayLike) -> Values:
    """Q(K) = min(K q_sm, Q_total), bytes: what the stage holds for K producers. The per-SM term is our extension."""
    return _min(_whole(producers, "producers") * stage.capacity_per_producer_bytes, stage.capacity_total_bytes)


def t_iss0(stage: XStage, producers: ArrayLike, burst_bytes: ArrayLike) -> Values:
    """T_iss0 = t0 + B / w, ps: time to issue a burst with no backpressure; each producer has its own issue port."""
    return _load(stage, producers, burst_bytes).t_iss0


def peak_occupancy(stage: XStage, producers: ArrayLike, burst_bytes: ArrayLike) -> Values:
    """q_peak0 = [V - R T_iss0]+, bytes: what a burst into an empty stage would fill if capacity were unlimited."""
    return _max(_load(stage, producers, burst_bytes).peak, 0.0)


def stall(
    stage: XStage, producers: ArrayLike, burst_bytes: ArrayLike, gap_ps: ArrayLike = 0, mode: Mode = "free_running"
) -> Values:
    """Backpressure dT_iss, ps: how much longer than T_iss0 a burst takes to issue.

    free_running [V/R - G - T_iss0]+, or [(B - Q(1))/R - T_iss0]+ if that is more, isolated [(V - Q)/R - T_iss0]+,
    synchronised the larger of the first and the last. The term of a lone burst, ours, binds only where w > R.
    """
    load = _load(stage, producers, burst_bytes)
    unrecovered = load.excess - _zero_or_more(gap_ps, "gap_ps")
    overflow = (load.peak - load.capacity) / stage.drain_kbs * _PS
    alone = (load.lone - load.lone_capacity) / stage.drain_kbs * _PS
    return _max(_binding(mode, unrecovered, overflow, alone, _max), 0.0)


def issue_time(
    stage: XStage, producers: ArrayLike, burst_bytes: ArrayLike, gap_ps: ArrayLike = 0, mode: Mode = "free_running"
) -> Values:
    """T_iss = T_iss0 + dT_iss, ps: how long a producer is busy with a burst, waiting included.

    free_running max(T_iss0, V/R - G, (B - Q(1))/R), isolated max(T_iss0, (V - Q)/R), synchronised max(T_iss0, V/R - G,
    (V - Q)/R).
    """
    return t_iss0(stage, producers, burst_bytes) + stall(stage, producers, burst_bytes, gap_ps, mode)


def period(
    stage: XStage, producers: ArrayLike, burst_bytes: ArrayLike, gap_ps: ArrayLike = 0, mode: Mode = "free_running"
) -> Values:
    """T_period = T_iss + G, ps: from the start of one burst to the start of the next.

    free_running max(T_iss0 + G, V/R, G + (B - Q(1))/R); synchronised max(T_iss0 + G, V/R, G + (V - Q)/R); isolated: if the
    stage empties in the gap.
    """
    return issue_time(stage, producers, burst_bytes, gap_ps, mode) + _zero_or_more(gap_ps, "gap_ps")


def backlog(
    stage: XStage, producers: ArrayLike, burst_bytes: ArrayLike, gap_ps: ArrayLike, bursts: int, mode: Mode
) -> NDArray[np.float64]:
    """Bytes left in the stage at the start of burst i (last axis, from 0) of a train that starts with it empty.

    min(i [V - R (T_iss0 + G)]+, limit): what the gap fails to drain piles up, to a limit of Q where producers start
    staggered (free_running) and of [Q - R G]+ where they start together (synchronised); isolated 0. Our extension.
    Synchronised burst i then takes max(T_iss0, (V + backlog_i - Q) / R) to issue.
    """
    if not isinstance(bursts, int) or bursts < 0:
        raise InputError("is not a count of bursts", field="bursts", value=bursts, allowed="a whole number, 0 or more")
    load, gap = _load(stage, producers, burst_bytes), _zero_or_more(gap_ps, "gap_ps")
    drained_in_gap = stage.drain_kbs * gap / _PS
    together = _max(load.capacity - drained_in_gap, 0.0)
    lone = _where(load.producers == 1, together, load.capacity)
    limit = _binding(mode, load.capacity, 0.0 if mode == "isolated" else together, lone, _min)
    growth = _max(load.peak - drained_in_gap, 0.0)
    left: NDArray[np.float64] = np.minimum(np.multiply.outer(growth, np.arange(bursts)), np.expand_dims(limit, -1))
    return left


def phase(
    stage: XStage, producers: ArrayLike, burst_bytes: ArrayLike, gap_ps: ArrayLike = 0, mode: Mode = "free_running"
) -> Values:
    """Which of three regimes a burst is in, a `Phase` or an array of them.

    `issue_bound`: it would not stall at any gap; `recovered`: it would at gap 0, and this gap removes it;
    `drain_limited`: it stalls at this gap. An isolated burst is never `recovered`.
    """
    stalls = stall(stage, producers, burst_bytes, gap_ps, mode) > 0
    stalls_without_gap = stall(stage, producers, burst_bytes, 0.0, mode) > 0
    return _where(stalls, "drain_limited", _where(stalls_without_gap, "recovered", "issue_bound"))


def knee(stage: XStage, producers: ArrayLike, gap_ps: ArrayLike = 0, mode: Mode = "isolated") -> Values:
    """The largest burst without stall, bytes a producer; inf where producers issue no faster than R drains.

    isolated solves V - R T_iss0 = Q, so B = (Q + R t0) / (K - R/w); free_running has R G for Q; synchronised
    the smaller of the two. The affine T_iss0, and the knee at a gap, are our extension.
    """
    count, gap = _whole(producers, "producers"), _zero_or_more(gap_ps, "gap_ps")
    one = _min(count, 1.0)

    def largest(producers: Values, room: Values) -> Values:
        faster = producers - stage.drain_kbs / stage.issue_kbs
        overruns = faster > 0
        return _where(overruns, (room + stage.drain_kbs * stage.t0_ps / _PS) / _where(overruns, faster, 1.0), math.inf)

    sustained = largest(count, stage.drain_kbs * gap / _PS)
    return _binding(mode, sustained, largest(count, capacity(stage, count)), largest(one, capacity(stage, one)), _min)


def recovery_gap(stage: XStage, producers: ArrayLike, burst_bytes: ArrayLike, mode: Mode = "free_running") -> Values:
    """The smallest gap without stall, ps; inf where no gap helps.

    free_running G* = [V/R - T_iss0]+; synchronised the same if q_peak0 <= Q, else inf; isolated 0 if q_peak0 <= Q,
    else inf.
    """
    load = _load(stage, producers, burst_bytes)
    one_burst = _where(load.peak <= load.capacity, 0.0, math.inf)
    alone = _where(load.lone <= load.lone_capacity, 0.0, math.inf)
    return _binding(mode, _max(load.excess, 0.0), one_burst, alone, _max)


def required_drain_rate(
    stage: XStage, producers: ArrayLike, burst_bytes: ArrayLike, gap_ps: ArrayLike = 0, mode: Mode = "free_running"
) -> Values:
    """The smallest drain rate R without stall, in whole kB/s and at least 1; `stage` gives the rest. Our extension.

    free_running V / (T_iss0 + G), isolated (V - Q) / T_iss0, synchronised the larger of the two.
    """
    load, gap = _load(stage, producers, burst_bytes), _zero_or_more(gap_ps, "gap_ps")
    sustained = _rate(load.total, load.t_iss0 + gap)
    one_burst = _rate(load.total - load.capacity, load.t_iss0)
    alone = _rate(load.lone + stage.drain_kbs * load.t_iss0 / _PS - load.lone_capacity, load.t_iss0)
    rate = _max(_binding(mode, sustained, one_burst, alone, _max) // 1.0, 1.0)
    for _ in range(2):  # from the floor: one step up to the ceiling, one more where the division had rounded down
        rate = rate + (stall(replace(stage, drain_kbs=rate), producers, burst_bytes, gap_ps, mode) > 0)
    return rate


def required_capacity(
    stage: XStage, producers: ArrayLike, burst_bytes: ArrayLike, gap_ps: ArrayLike = 0, mode: Mode = "free_running"
) -> Values:
    """The smallest Q(K) without stall, in whole bytes and at least 1; inf where no capacity helps. Our extension.

    isolated V - R T_iss0; synchronised the same if G >= [V/R - T_iss0]+, else inf; free_running 1 or inf, since its
    steady state does not depend on Q. `stage` gives all but the capacity, which both limits of Q(K) have to allow.
    """
    load, gap = _load(stage, producers, burst_bytes), _zero_or_more(gap_ps, "gap_ps")
    sustained = _where(load.excess > gap, math.inf, 1.0)
    of_burst, of_one = (_max(-(-peak // 1.0), 1.0) for peak in (load.peak, load.lone))
    return _binding(mode, sustained, of_burst, of_one, _max)


@dataclass(frozen=True)
class Audit:
    """What `audit` found. Margins are negative by what is lacking.

    `fits`: neither the first burst, which all producers start together, nor the long run stalls; `fits_long_run`: the long
    run does not, and then `advice` is to piggyback. How many bursts come before the long run only a simulation tells.
    `t_iss_us`, `stall_us` and `phase` are of the long run, `first_stall_us` of the first burst. `recovery_gap_us` is the gap
    that removes the stall of the long run by itself, of which `missing_gap_us` is missing; both None where no gap does.
    With `long_run_gap_us`, the gap that the long run needs at least, nothing stalls, the first burst included, in a stage
    that holds `peak_bytes`, the peak of one burst if capacity were unlimited, and `peak_sm_bytes` for each SM, both as what
    whole granules take, or with bursts of at most `largest_burst_bytes` a producer (None: of any size). That is the knee of
    the closed form: in a simulation the last granule of such a burst may wait until another has drained.
    """

    fits: bool
    fits_long_run: bool
    t_iss_us: float
    stall_us: float
    first_stall_us: float
    recovery_gap_us: float | None
    missing_gap_us: float | None
    long_run_gap_us: float
    peak_bytes: int
    peak_sm_bytes: int
    largest_burst_bytes: int | None
    rate_margin_gbs: float
    capacity_margin_bytes: int
    phase: Phase
    advice: Advice
    reason: str

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


def _drain_rate_in_words(enough_kbs: float) -> str:
    return f"a drain rate of {math.ceil(gbs(enough_kbs))} GB/s"


def audit(
    xstage: XStage,
    producers: int,
    burst_bytes: float,
    gap_ps: float,
    synchronised: bool = False,
    faster: Callable[[float], str] = _drain_rate_in_words,
    granule_bytes: int = 1,
) -> Audit:
    """Whether bursts can be stored as they are (`piggyback`) or the schedule has to change (`reshape`), and why.

    They fit iff V / (T_iss0 + G) <= R (long-run rate) and [V - R T_iss0]+ <= Q(K) (one burst): arXiv 2607.23264. Producers
    that only the first bursts hold up, until they have drifted apart, need no other schedule; the reason tells that stall.
    `synchronised`: producers start each burst together, as a single one always does. `faster` tells what a machine needs
    for R to be at least so many kB/s, and is called where that is an advice. Room that is advised is in whole granules of
    `granule_bytes`, because a simulated stage admits nothing less.
    Raises `InputError` as the closed forms do, and for arrays: it answers for one stage and one burst.
    """
    load, gap = _load(xstage, producers, burst_bytes), _zero_or_more(gap_ps, "gap_ps")
    if not all(isinstance(value, float) for value in (*load, gap)):
        raise InputError("an audit answers for one stage and one burst", allowed="numbers, not arrays")
    mode: Mode = "synchronised" if synchronised else "free_running"
    burst = (xstage, producers, burst_bytes)
    steady_stall, first_stall = stall(*burst, gap, mode), stall(*burst, mode="isolated")
    exact = recovery_gap(*burst, mode)
    needed = math.ceil(exact) if exact < math.inf else exact  # whole ps, so that the advice fits when it is followed
    missing = max(needed - gap, 0.0)
    peak, of_sm = _room(load, burst_bytes, granule_bytes)
    largest = _largest(xstage, load.producers)
    remedies = _Remedies(
        missing=math.ceil(max(math.ceil(load.excess) - gap, 0.0)),
        faster=faster(required_drain_rate(*burst, gap, mode)) if load.excess > gap and missing < math.inf else "",
        largest=largest,
        peak=peak if peak > xstage.capacity_total_bytes else None,
        of_sm=of_sm if of_sm > xstage.capacity_per_producer_bytes else None,
    )
    return Audit(
        fits=steady_stall == 0 and first_stall == 0,
        fits_long_run=steady_stall == 0,
        t_iss_us=us(load.t_iss0 + steady_stall),
        stall_us=us(steady_stall),
        first_stall_us=us(first_stall),
        recovery_gap_us=us(needed) if needed < math.inf else None,
        missing_gap_us=us(missing) if missing < math.inf else None,
        long_run_gap_us=us(math.ceil(max(load.excess, 0.0))),
        peak_bytes=peak,
        peak_sm_bytes=of_sm,
        largest_burst_bytes=largest,
        rate_margin_gbs=gbs(xstage.drain_kbs - _rate(load.total, load.t_iss0 + gap)),
        capacity_margin_bytes=math.floor(load.capacity - max(load.peak, 0.0)),
        phase=phase(*burst, gap, mode),
        advice="piggyback" if steady_stall == 0 else "reshape",
        reason=_reason(xstage, load, gap, steady_stall, first_stall, remedies),
    )


class _Remedies(NamedTuple):
    """What removes a stall. `missing`: ps of gap; `faster`: in words, empty where no rate does by itself; `largest`: bytes
    of a burst, None where any size fits; `peak` and `of_sm`: bytes of a GPU and of an SM, None where there are as many.
    """

    missing: int
    faster: str
    largest: int | None
    peak: int | None
    of_sm: int | None

    @property
    def longer(self) -> str:
        gap = f"{format_time(self.missing, 'up')} more computation between bursts"
        return f"{gap}, or {self.faster}" if self.faster else gap

    @property
    def smaller(self) -> str:
        room = ", ".join([
            *([format_size(self.peak, "up")] if self.peak else []),
            *([f"{format_size(self.of_sm, 'up')} an SM"] if self.of_sm else []),
        ])  # fmt: skip
        sizes = [f"bursts of at most {format_size(self.largest, 'down')} a producer"] if self.largest else []
        return ", or ".join([*sizes, f"a stage that holds {room}"])

    def of(self, too_fast: bool, too_large: bool) -> str:
        """What helps where bursts come too fast for the long run, where one is too large for the stage, or both."""
        if not (too_fast and too_large):
            return f": {self.longer if too_fast else self.smaller}"
        if not self.faster:
            return f" together: {self.longer}, and {self.smaller}"
        # producers that drift apart need smaller bursts for the first one only
        return f": {self.longer}; for the first burst, too: {self.smaller}"


def _room(load: _Load, burst_bytes: float, granule_bytes: int) -> tuple[int, int]:
    """Bytes of a GPU's stage, and of each SM's, in which one burst does not stall, in whole granules.

    Room comes back a granule at a time, so the last granule, a full one or what is left of the burst, finds all of the burst
    there but the whole granules that have drained.
    """
    if load.peak <= 0:
        return 0, 0
    of_sm = load.peak / load.producers
    return (
        _held(load.total, load.peak, granule_bytes),
        _held(burst_bytes, of_sm + (load.producers * of_sm < load.peak), granule_bytes),  # the division may round down
    )


def _held(stored_bytes: float, peak_bytes: float, granule_bytes: int) -> int:
    """What is left of `stored_bytes` but for whole granules, where nothing but `peak_bytes` is left of it; rounded up."""
    drained = math.floor((stored_bytes - math.ceil(peak_bytes)) / granule_bytes) * granule_bytes
    return math.ceil((stored_bytes - drained) / granule_bytes) * granule_bytes


def _largest(stage: XStage, producers: float) -> int | None:
    """Whole bytes of the largest burst that does not stall, None for any size."""
    exact = knee(stage, producers)
    if exact == math.inf:
        return None
    whole: int = math.floor(exact)
    stalls = bool(stall(stage, producers, whole, mode="isolated") > 0)
    return whole - stalls  # the knee may have rounded up


def _reason(
    stage: XStage, load: _Load, gap: float, steady_stall: float, first_stall: float, remedies: _Remedies
) -> str:
    """The audit in one sentence."""
    if load.total == 0:
        return "Nothing is stored, so nothing waits."
    offered, drains = (f"{gbs(rate):.4g} GB/s" for rate in (_rate(load.total, load.t_iss0 + gap), stage.drain_kbs))
    peak, holds = format_size(max(load.peak, 0.0)), format_size(load.capacity)
    within = f"{offered} in the long run is within the {drains} that drains"
    too_fast, over = load.excess > gap, f"peaks at {peak}, over the {holds} that the stage holds"
    if steady_stall > 0:
        causes = [f"a burst {over}"] if first_stall > 0 else []
        causes += [f"{offered} in the long run is over the {drains} that drains"] if too_fast else []
        waits = f"so each burst waits {format_time(steady_stall)}; what removes it"
        sentence = f"{', and '.join(causes)}, {waits}{remedies.of(too_fast, first_stall > 0)}."
        return sentence[0].upper() + sentence[1:]
    if first_stall > 0:
        return (
            f"{within}, so no burst waits once producers have drifted apart. If all start the first one together, it waits "
            f"{format_time(first_stall)}, and the next ones less and less: it {over}. What removes that, too: "
            f"{remedies.smaller}."
        )
    fills = (
        f"peaks at {peak} of the {holds} that the stage holds" if load.peak > 0 else "drains as fast as it is issued"
    )
    return f"A burst {fills}, and {within}, so nothing waits."


class _Load(NamedTuple):
    """What a burst asks of a stage; `excess` and `peak` are below 0 where the drain outpaces the issue."""

    producers: Values  # K
    total: Values  # V, bytes
    t_iss0: Values  # ps
    excess: Values  # V/R - T_iss0, ps
    peak: Values  # V - R T_iss0, bytes
    capacity: Values  # Q(K), bytes
    lone: Values  # as `peak`, of one producer whose burst meets no other's
    lone_capacity: Values  # Q(1), bytes


def _load(stage: XStage, producers: ArrayLike, burst_bytes: ArrayLike) -> _Load:
    count, burst = _whole(producers, "producers"), _zero_or_more(burst_bytes, "burst_bytes")
    total = count * burst
    unhindered = _where(total > 0, stage.t0_ps + burst / stage.issue_kbs * _PS, 0.0)
    excess = total / stage.drain_kbs * _PS - unhindered
    peak = total - stage.drain_kbs * unhindered / _PS
    one = _min(count, 1.0)
    lone = one * burst - stage.drain_kbs * unhindered / _PS
    return _Load(count, total, unhindered, excess, peak, capacity(stage, count), lone, capacity(stage, one))


def _binding(
    mode: Mode, sustained: Values, one_burst: Values, lone: Values, tighter: Callable[[Values, Values], Values]
) -> Values:
    """The condition that binds in a mode: of one burst, or the tighter of the long run and of bursts that meet (all at once
    if synchronised, none another's if free-running)."""
    if mode not in get_args(Mode):
        raise InputError("is not a mode", field="mode", value=mode, allowed=get_args(Mode))
    return one_burst if mode == "isolated" else tighter(sustained, one_burst if mode == "synchronised" else lone)


def _rate(size: Values, time_ps: Values) -> Values:
    """kB/s; no bytes in no time is 0."""
    return size / _where(time_ps > 0, time_ps, math.inf) * _PS


# Numbers take these at a tenth of the price of NumPy's, which is what keeps a single call to microseconds.
def _max(a: Values, b: Values) -> Values:
    return max(a, b) if isinstance(a, float) and isinstance(b, float) else np.maximum(a, b)


def _min(a: Values, b: Values) -> Values:
    return min(a, b) if isinstance(a, float) and isinstance(b, float) else np.minimum(a, b)


def _where(condition: Values, a: Values, b: Values) -> Values:
    if isinstance(condition, bool):
        return a if condition else b
    return np.where(condition, a, b)


def _above_zero(value: ArrayLike, field: str) -> Values:
    given = _numbers(value, field)
    return _accepted(given, (given > 0) & (given < math.inf), field, "a finite number above 0")


def _zero_or_more(value: ArrayLike, field: str) -> Values:
    given = _numbers(value, field)
    return _accepted(given, (given >= 0) & (given < math.inf), field, "a finite number, 0 or more")


def _whole(value: ArrayLike, field: str) -> Values:
    given = _zero_or_more(value, field)
    return _accepted(given, given % 1.0 == 0, field, "a whole number, 0 or more")


def _numbers(value: ArrayLike, field: str) -> Values:
    try:
        numbers = float(value) if isinstance(value, (int, float)) else np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        raise InputError("is not a number", field=field, value=value, allowed="numbers, or an array of them") from None
    return float(numbers) if isinstance(numbers, np.ndarray) and numbers.ndim == 0 else numbers


def _accepted(given: Values, good: Values, field: str, allowed: str) -> Values:
    if good is not True and not np.all(good):
        bad = float(np.ravel(given)[np.argmin(np.ravel(good))])
        raise InputError("is out of range", field=field, value=bad, allowed=allowed)
    return given
