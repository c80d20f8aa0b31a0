"""How sure an audit is: its verdict at the ends of the intervals of a machine file, and what was assumed.

Of T_iss0, R and Q(K) each is taken to the ends that its numbers allow, alone and then all at once. A stall never grows with
any of the three, so the verdict at the lower ends is the worst that there is, and that at the upper ends the best.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, Self

from ..sim import burst_gap
from ..sim.burst_gap import XStage
from ..sim.interconnect import Destination
from ..sim.machine import Machine
from ..sim.units import format_size, gbs, us
from .audit_rates import rate_numbers
from .reruns import with_numbers

Verdict = Literal["fits", "only the first bursts stall", "stalls"]
ISSUE = ("stage.t0", "stage.issue_rate")
ROOM = ("stage.capacity_sm", "stage.capacity_gpu")
LESS_IS_MORE = ("stage.issue_rate", "interconnect.oversubscription")
"""Numbers that lower T_iss0, or R, when they rise."""


@dataclass(frozen=True)
class Bursts:
    """Bursts of an audit; a gap in ps."""

    producers: int
    burst_bytes: int
    gap_ps: int
    synchronised: bool

    def verdict(self, stage: XStage) -> Verdict:
        """Whether they stall in a stage."""
        of_burst = (stage, self.producers, self.burst_bytes, self.gap_ps)
        if burst_gap.stall(*of_burst, "synchronised" if self.synchronised else "free_running") > 0:
            return "stalls"
        return "only the first bursts stall" if burst_gap.stall(*of_burst, "isolated") > 0 else "fits"


@dataclass(frozen=True)
class Range:
    """What one of the three may be by the intervals of its numbers, and the verdict at both ends."""

    name: str
    unit: str
    low: float
    high: float
    at_low: Verdict
    at_high: Verdict

    @property
    def ends_told(self) -> str:
        if self.unit == "bytes":
            return f"{format_size(self.low)} to {format_size(self.high)}"
        return f"{self.low:.4g} to {self.high:.4g} {self.unit}"


@dataclass(frozen=True)
class Certainty:
    """`ranges` of those of T_iss0, R and Q that have an interval; `at_lows` and `at_highs` are the verdicts with all of them
    at an end. `assumed` are the paths of numbers that nobody measured and the answer follows from, `numbers` all that it
    follows from, with their sources.
    """

    ranges: tuple[Range, ...]
    at_lows: Verdict
    at_highs: Verdict
    assumed: tuple[str, ...]
    numbers: tuple[Mapping[str, Any], ...]

    def as_dict(self) -> dict[str, Any]:
        ends = {"at_lows": self.at_lows, "at_highs": self.at_highs}
        return {
            "intervals": {"ranges": [asdict(one) for one in self.ranges]} | ends,
            "assumed": list(self.assumed),
            "numbers": [dict(number) for number in self.numbers],
        }

    @classmethod
    def of_answer(cls, answer: Mapping[str, Any]) -> Self:
        """That of an answer of `--json`."""
        found = answer["intervals"]
        ranges = tuple(Range(**one) for one in found["ranges"])
        return cls(ranges, found["at_lows"], found["at_highs"], tuple(answer["assumed"]), tuple(answer["numbers"]))

    @property
    def told(self) -> str:
        """In a line, empty where all is measured and nothing has an interval."""
        said = [f"{self._ranges_told}."] if self.ranges else []
        if self.assumed:
            said.append(f"Assumed, not measured: {', '.join(_of_what(self.assumed))}.")
        return " ".join(said)

    @property
    def _ranges_told(self) -> str:
        within = [f"{one.name} is {one.ends_told}" for one in self.ranges]
        ends = [(one.at_low, one.at_high) for one in self.ranges]
        both = (self.at_lows, self.at_highs)
        start = "By the intervals of the machine file, "
        if self.at_lows == self.at_highs:
            return f"{start}{_listed(within)}, which does not change the verdict"
        said = [f"{words}: {_between(*of)}" for words, of in zip(within, ends, strict=True)]
        together = [] if both in ends else [f"all at once: {_between(*both)}"]
        return start + "; ".join([*said, *together])


def certainty(machine: Machine, to: Destination, gpus: int, bursts: Bursts) -> Certainty:
    """How sure the audit of bursts is."""
    stage, rates = machine.x_stage(to, gpus), rate_numbers(machine, to, gpus)
    known = dict(machine.numbers())
    count, size = bursts.producers, bursts.burst_bytes

    def at(end: Literal[0, 1], *paths: str) -> XStage:
        """The stage with numbers at the ends of their intervals where T_iss0, R and Q are lowest (0) or highest (1)."""
        ends = {}
        for path in paths:
            if between := known[path].interval:
                ends[path] = between[1 - end if path in LESS_IS_MORE else end]
        return with_numbers(machine, ends).x_stage(to, gpus) if ends else stage

    amounts: tuple[tuple[str, str, Sequence[str], Callable[[XStage], float]], ...] = (
        ("drain rate (R)", "GB/s", rates, lambda one: gbs(one.drain_kbs)),
        ("T_iss0", "us", ISSUE, lambda one: us(burst_gap.t_iss0(one, count, size))),
        ("Q", "bytes", ROOM, lambda one: float(burst_gap.capacity(one, count))),
    )
    ranges = []
    for name, unit, paths, amount in amounts:
        low, high = at(0, *paths), at(1, *paths)
        if amount(low) < amount(high):
            verdicts = bursts.verdict(low), bursts.verdict(high)
            ranges.append(Range(name, unit, amount(low), amount(high), *verdicts))
    used = (*ISSUE, *ROOM, *rates)
    binding = ROOM[0] if burst_gap.capacity(stage, count) < stage.capacity_total_bytes else ROOM[1]
    assumed = tuple(path for path in (*ISSUE, binding, *rates) if known[path].assumed)
    lows, highs = at(0, *used), at(1, *used)
    numbers = tuple({"name": path} | known[path].model_dump(mode="json", exclude_none=True) for path in used)
    is_asked = count * size > 0
    return Certainty(
        tuple(ranges) if is_asked else (),
        bursts.verdict(lows),
        bursts.verdict(highs),
        assumed if is_asked else (),
        numbers,
    )


def _between(low: Verdict, high: Verdict) -> str:
    return f"{low} at both ends" if low == high else f"{low} at the lower end, {high} at the upper"


def _of_what(paths: tuple[str, ...]) -> list[str]:
    """Names of numbers, with what each group of them makes: 't0 and issue_rate (T_iss0)'."""
    groups: dict[str, list[str]] = {}
    for path in paths:
        of = "T_iss0" if path in ISSUE else "Q" if path in ROOM else "R"
        groups.setdefault(of, []).append(path.rpartition(".")[2])
    return [f"{_listed(names)} ({of})" for of, names in groups.items()]


def _listed(words: Sequence[str]) -> str:
    """'a, b and c'."""
    return " and ".join([*([", ".join(words[:-1])] if words[1:] else []), words[-1]])
