"""The runs of `xstage tune`: a scenario under policies and their settings, each combination once."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ..scenarios.loader import Resolved
from ..sim.errors import XstageError
from ..sim.search import Search
from ..sim.units import PS_PER_US
from ..terminal.progress import Progress
from .reruns import Parameters, own_parameters, own_policy, simulated, under_policy, with_workload
from .saving_interval import Ran, SavingInterval, saving_interval

if TYPE_CHECKING:
    from ..scenarios.workload import PolicyChoice, Setting

USUAL_RUNS = 20
"""What a policy with many settings takes, about; for the time that is left."""


@dataclass(frozen=True)
class Tried:
    """One run. Without `parameters` the policy chose for itself: `leads` are the row leads that it chose, of each rank.
    `again`: the parameters say what an earlier run had by itself, so that its makespan is taken and nothing runs.
    `error` says why it could not run; `room_bytes` is what the ring of a row lead takes of symmetric memory, where the
    parameters are a lead and the smallest ring for it.
    """

    policy: str
    parameters: Parameters
    makespan_us: float | None
    error: str | None = None
    room_bytes: int | None = None
    leads: tuple[int, ...] = ()
    again: bool = False

    def as_dict(self) -> dict[str, Any]:
        return {"policy": self.policy, "parameters": self.parameters, "makespan_us": self.makespan_us,
                "error": self.error, "room_bytes": self.room_bytes}  # fmt: skip


class Runs:
    """Runs a scenario under policies and settings, each combination once, and keeps what came out."""

    def __init__(
        self,
        resolved: Resolved,
        choices: Mapping[str, PolicyChoice],
        names: Sequence[str],
        most: int,
        progress: Progress,
    ) -> None:
        self.resolved, self.choices, self.most, self.progress = resolved, choices, most, progress
        self.curve: list[Tried] = []
        self.first_error: XstageError | None = None
        self._kept: dict[tuple[str, tuple[tuple[str, Any], ...]], Tried] = {}
        self._by_policy: dict[tuple[str, Any], Tried] = {}
        self._left = {name: min(most, USUAL_RUNS, _points(choices[name]) + 1) for name in names}

    def own(self) -> Tried:
        """The scenario as it is written."""
        return self._try(own_policy(self.resolved), own_parameters(self.resolved), self.resolved)

    def search(self, name: str) -> int | None:
        """Search the settings of a policy; the knee of its row lead in rows, if it has one."""
        choice = self.choices[name]
        changed, parameters = self._usual(name)
        usual_us = None if changed is None else self._try(name, parameters, changed).makespan_us
        if not choice.settings or (usual_us is None and not self._ends_run(name)):
            self._left.pop(name)
            return None
        counts = [len(setting.values) for setting in choice.settings]
        search = Search(counts, lambda point: self._at(name, _given(choice.settings, point)), self.most)
        search.run()
        first = choice.settings[0]
        knee = search.find_knee(usual_us) if len(counts) == 1 and first.ring else None
        self._left.pop(name)
        return None if knee is None else int(first.values[knee])

    def _ends_run(self, name: str) -> bool:
        """Whether a policy whose usual settings cannot run can do so with the smallest or with the largest ones."""
        settings = self.choices[name].settings
        return any(self._at(name, _given(settings, [end] * len(settings))) is not None for end in (0, -1))

    def ran_again(self, best: Tried) -> list[Ran]:
        """The scenario, if it can run, and the best, if it is another, each with its run."""
        own = self.curve[0]
        chosen = [self.resolved] if own.makespan_us is not None else []
        chosen += [self.resolved_as(best)] if best is not own else []
        return [(one, simulated(one, "off")) for one in chosen]

    def saving_interval(self, ran: Sequence[Ran]) -> SavingInterval | None:
        """What may be saved instead; None where nothing is saved, or nothing is known that could change it."""
        if len(ran) < 2:
            return None
        (own, best), done = ran, len(self.curve)
        return saving_interval(own, best, lambda more, of: self.progress(done + more, done + of))

    def resolved_as(self, tried: Tried) -> Resolved:
        """The scenario under a policy and settings that were tried."""
        workload = self.resolved.scenario.workload.with_policy(tried.policy, tried.parameters)
        return with_workload(self.resolved, workload)

    def _usual(self, name: str) -> tuple[Resolved | None, Parameters]:
        try:
            return under_policy(self.resolved, name, self.choices[name])
        except XstageError as error:
            self._keep(Tried(name, {}, None, str(error)), error)
            return None, {}

    def _at(self, name: str, parameters: Parameters) -> float | None:
        return self._try(name, parameters).makespan_us

    def _try(self, name: str, parameters: Parameters, changed: Resolved | None = None) -> Tried:
        key = (name, tuple(sorted(parameters.items())))
        if key not in self._kept:
            expected = len(self.curve) + sum(self._left.values())
            self.progress(len(self.curve), expected)
            try:
                self._kept[key] = self._keep(self._simulated(name, parameters, changed))
            except XstageError as error:
                self._kept[key] = self._keep(Tried(name, parameters, None, str(error)), error)
            if name in self._left:
                self._left[name] = max(1, self._left[name] - 1)
        return self._kept[key]

    def _simulated(self, name: str, parameters: Parameters, changed: Resolved | None) -> Tried:
        resolved = changed or self.resolved_as(Tried(name, parameters, None))
        settled = _settled(resolved)
        if settled is not None and (before := self._by_policy.get((name, settled))):
            return replace(before, parameters=parameters, again=True)
        ran = simulated(resolved, "off")
        makespan_us, room = ran.makespan_ps / PS_PER_US, self._room(name, parameters)
        leads = () if parameters else tuple(ran.program.meta.get("lead_rows") or ())
        tried = Tried(name, parameters, makespan_us, None, room, leads)
        if settled is not None:
            self._by_policy[name, settled] = tried
        return tried

    def _keep(self, tried: Tried, error: XstageError | None = None) -> Tried:
        self.first_error = self.first_error or error
        self.curve.append(tried)
        return tried

    def _room(self, name: str, parameters: Parameters) -> int | None:
        settings = self.choices[name].settings if name in self.choices else ()  # compute_only is none of them
        for setting in settings:
            value = parameters.get(setting.key)
            if setting.ring and value is not None and setting.given(value).items() <= parameters.items():
                return setting.ring(value).room_bytes
        return None


def _settled(resolved: Resolved) -> Any:
    """The policy with what it takes for settings that nobody gave; None for a workload that does not say."""
    plain = getattr(resolved.scenario.workload, "plain_policy", None)
    return None if plain is None else plain()


def _points(choice: PolicyChoice) -> int:
    return math.prod(len(setting.values) for setting in choice.settings)


def _given(settings: Sequence[Setting], point: Sequence[int]) -> Parameters:
    """What is written into the scenario for a point of the search: a position in the values of each setting."""
    found: Parameters = {}
    for setting, position in zip(settings, point, strict=True):
        found |= setting.given(setting.values[position])
    return found
