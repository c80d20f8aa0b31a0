"""`xstage tune`: the best policy of a scenario, and the settings of the kernel that go with it.

Every policy runs with its own choices first, then a search over its settings (sim/search.py). The saving is against the
scenario as it is written; xstage/answers/saving_interval.py says what its interval is of. A row lead is run with the
smallest ring that it can do with, so that what a ring takes is said of the run that had it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from ..scenarios.cautions import cautions
from ..scenarios.loader import Resolved
from ..scenarios.workload import Ring
from ..sim.arguments import check_whole
from ..sim.search import KNEE_PCT
from ..terminal.heading import asked, scenario_fields, what_runs_where
from ..terminal.output import Printed, table, warning_parts, with_warnings
from ..terminal.progress import Progress, silent
from .api import resolved_scenario
from .comparison import parameters_text
from .reruns import Given, Parameters, choices_of, chosen_policies
from .run import tile_of
from .saving_interval import SavingInterval, saved_pct
from .tuning_search import Runs, Tried

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from ..scenarios.workload import PolicyChoice

Advice: TypeAlias = Literal["change", "measure", "leave"]
LEAST_SAVING_PCT = 0.5
"""What saves less is not worth a change."""
MOST_RUNS = 40
"""Runs of one policy, unless told otherwise."""
BEST_SHOWN = 3
NO_INTERVAL = (
    "no interval of the saving: the machine gives none for a number that these schedules use; add `interval: [low, high]` "
    "to one"
)
NO_SAVING = "no saving: the scenario cannot run as it is written"


@dataclass(frozen=True, repr=False, eq=False)
class Tuning(Printed):
    """All runs in the order in which they were made (`curve`), the scenario's own first, and what follows from them. A row
    of settings that are what a policy takes by itself has the makespan of that run, and is not printed.

    Of several that are fastest, `best` is the scenario's own, or else one whose policy chooses its settings, or else that
    with the smallest settings; `as_fast` are the other policies.
    `d_knee` is the smallest row lead D of `d_knee_policy`, of those that were tried, whose makespan is within 1 % of the
    best of them: with others it may be another.
    `advice`: "change" to the best; "measure" both first, as the interval of the saving contains 0; "leave" the scenario as
    it is, where nothing saves 0.5 % or more.
    """

    resolved: Resolved
    curve: tuple[Tried, ...]
    best: Tried
    as_fast: tuple[str, ...]
    d_knee: int | None
    d_knee_policy: str | None
    interval: SavingInterval | None
    advice: Advice
    changes: tuple[str, ...]
    warnings: tuple[str, ...] = ()

    @property
    def own(self) -> Tried:
        return self.curve[0]

    @property
    def saving_pct(self) -> float | None:
        """What the best saves of the scenario's makespan; None where the scenario cannot run as it is written."""
        own, best = self.own.makespan_us, self.best.makespan_us
        return None if own is None or best is None else saved_pct(own, best)

    @property
    def saving_interval_pct(self) -> tuple[float, float] | None:
        """The least and the most that is saved, over what `interval` is of."""
        return None if self.interval is None else (self.interval.low_pct, self.interval.high_pct)

    @property
    def note(self) -> str | None:
        """What is missing from the answer, and why."""
        if self.saving_pct is None:
            return NO_SAVING
        return NO_INTERVAL if self.interval is None and self.advice != "leave" else None

    @property
    def leads(self) -> dict[int, tuple[float, Ring]]:
        """Makespan, us, and ring by the row leads of `d_knee_policy` that ran with the smallest ring."""
        return {
            t.parameters["lead_rows"]: (t.makespan_us, Ring(t.parameters["ring_m_blocks"], t.room_bytes))
            for t in self.curve
            if t.policy == self.d_knee_policy and t.makespan_us is not None and t.room_bytes is not None
        }

    @property
    def knee_told(self) -> str | None:
        """D_knee in words, or that only the longest lead is good enough; None if no row lead was searched."""
        leads, knee = self.leads, self.d_knee
        if knee is None:
            return None
        name, within = self.d_knee_policy, f"within {KNEE_PCT:g} % of the best"
        if knee < max(leads):
            take = ": the one to take where memory is short" if knee < self._fastest_lead else ""
            return f"D_knee of {name}: {knee} rows, the smallest of {len(leads)} leads tried that is {within}{take}."
        return (
            f"{name} has no D_knee: of {len(leads)} leads tried only the longest, all {knee} rows of the busiest rank, is "
            f"{within}."
        )

    @property
    def notable_leads(self) -> dict[str, int]:
        """Row leads of `d_knee_policy` by what each is: D_knee, the fastest, the longest. A lead stands there once."""
        leads, knee = self.leads, self.d_knee
        if knee is None:
            return {}
        longest = max(leads)
        named = [("D_knee", knee), ("fastest", self._fastest_lead), ("longest", longest)][knee == longest :]
        called = {lead: ", ".join(name for name, one in named if one == lead) for _, lead in named}
        return {called[lead]: lead for lead in sorted(called)}

    @property
    def _fastest_lead(self) -> int:
        leads = self.leads
        return min(leads, key=lambda lead: (leads[lead][0], lead))

    def as_dict(self) -> dict[str, Any]:
        """The answer of `xstage tune --json`, without the fields that all answers share."""
        interval = self.saving_interval_pct
        found = {
            "policy": self.best.policy,
            "parameters": self.best.parameters,
            "makespan_us": self.best.makespan_us,
            "saving_pct": self.saving_pct,
            "saving_interval_pct": list(interval) if interval else None,
            "as_fast": list(self.as_fast),
        }
        answer = {
            **scenario_fields(self.resolved),
            "machine": self.resolved.machine.name,
            "own": self.own.as_dict(),
            "advice": self.advice,
            "best": found,
            "d_knee": self.d_knee,
            "d_knee_policy": self.d_knee_policy,
            "d_knee_told": self.knee_told,
            "changes": list(self.changes),
            "notes": [self.note] if self.note else [],
            "saving_interval_of": self.interval.as_dict() if self.interval else None,
            "curve": [tried.as_dict() for tried in self.curve],
        }
        return with_warnings(answer, self.warnings)

    @property
    def frame(self) -> pd.DataFrame:
        """One row a run, with a column for each setting."""
        import pandas as pd

        return pd.DataFrame(
            {
                "policy": t.policy,
                **t.parameters,
                "makespan_us": t.makespan_us,
                "room_bytes": t.room_bytes,
                "error": t.error,
            }
            for t in self.curve
        )

    def plot(self) -> Figure:
        """Makespan over the row lead D with its knee, or else over a setting of the best policy, or the best of each."""
        from ..plots.schedule_figures import tune_figure
        from .figure_setting import setting_of

        policy = self.d_knee_policy or self.best.policy
        setting = drawn_setting(tried.parameters for tried in self.curve if tried.policy == policy)
        what = setting_of(self.resolved, ("policy",))
        return tune_figure(self.frame, policy, setting, self.d_knee, self.own.makespan_us, what)

    def __repr__(self) -> str:
        return f"<Tuning of {self.resolved.scenario.name}: {self.best.policy} {parameters_text(self.best.parameters)}>"

    def printed(self) -> list[Any]:
        """The answer for a person: the best, what to change, and the best few of each policy."""
        best, own = self.best, self.own
        parts: list[Any] = [*asked(self.resolved), what_runs_where(self.resolved), ""]
        if self.saving_pct is None:
            parts.append(f"{best.policy} takes {best.makespan_us:.3f} us. As it is written it cannot run: {own.error}")
        elif self.advice != "leave":
            saves = _saves_told(self.saving_pct, self.interval)
            parts.append(f"{best.policy} takes {best.makespan_us:.3f} us instead of {own.makespan_us:.3f} us: {saves}.")
        as_fast = [f"As fast: {', '.join(self.as_fast)}."] if self.as_fast else []
        if self.advice == "leave":
            parts += [*self.changes, *(as_fast if best is own else [])]
        else:
            parts += [*as_fast, *([self.interval.told] if self.interval else []), *self.changes]
        if self.knee_told:
            parts.append(self.knee_told)
        if self.note:
            parts.append(f"There is {self.note}.")
        rows, failed = [], []
        for policy in dict.fromkeys(tried.policy for tried in self.curve):
            mine = [tried for tried in self.curve if tried.policy == policy]
            known = [tried for tried in mine if tried.makespan_us is not None and not tried.again]
            known.sort(key=lambda tried: (tried.makespan_us, tried is not best))
            rows += [(policy, parameters_text(t.parameters) or _own_choice(t.leads), f"{t.makespan_us:.3f}")
                     for t in known[:BEST_SHOWN]]  # fmt: skip
            failed += [(policy, t.error or "") for t in mine[:1] if not known]
        count = sum(not tried.again for tried in self.curve)
        parts += ["", table(f"the best of each policy, of {count} runs", ("policy", "settings", "makespan, us"), rows)]
        if self.notable_leads:
            parts += ["", _leads_table(self)]
        if failed:
            parts += ["", table("cannot run", ("policy", "why"), failed)]
        return [*parts, *warning_parts(self.warnings)]


def tune(
    scenario: Given,
    policies: Sequence[str] | None = None,
    *,
    most_runs: int = MOST_RUNS,
    overrides: Mapping[str, Any] | None = None,
    progress: Progress = silent,
) -> Tuning:
    """Search the policies of a scenario (default: all) and their settings for the shortest makespan.

    The search refines no further after `most_runs` (2 or more) of one policy; its coarse grid, and that for D_knee, always
    run. Raises `InputError` for an unknown policy, a workload that has none, or if nothing can run: then with the first
    policy's reason.
    """
    check_whole(most_runs, "most_runs", 2)
    resolved = resolved_scenario(scenario, overrides)
    choices = choices_of(resolved)
    names = chosen_policies(choices, policies)
    runs = Runs(resolved, choices, names, most_runs, progress)
    own = runs.own()
    knee, knee_policy = None, None
    for name in names:
        found = runs.search(name)
        if found is not None and knee_policy is None:
            knee, knee_policy = found, name
    known = [tried for tried in runs.curve if tried.makespan_us is not None]
    if runs.first_error is not None and not known:
        raise runs.first_error
    best = _best(known, own, choices)
    ran = runs.ran_again(best)
    interval = runs.saving_interval(ran)
    advice = _advice(own, best, interval)
    if advice == "leave":
        changes = [_leave_told(own, best, interval)]
    else:
        changes = _changes(own, best, choices, advice) + _other_tile([tile_of(trace.program) for _, trace in ran])
    warned = [sentence for one, trace in ran for sentence in cautions(one, trace.program, trace)]
    return Tuning(
        resolved=resolved,
        curve=tuple(runs.curve),
        best=best,
        as_fast=tuple(_others_as_fast(known, best)),
        d_knee=knee,
        d_knee_policy=knee_policy,
        interval=interval,
        advice=advice,
        changes=tuple(changes),
        warnings=tuple(dict.fromkeys(warned)),
    )


def _best(known: Sequence[Tried], own: Tried, choices: Mapping[str, PolicyChoice]) -> Tried:
    """The fastest; of equal ones that which changes least."""
    policies = list(dict.fromkeys(tried.policy for tried in known))

    def rank(tried: Tried) -> tuple[Any, ...]:
        settings = choices[tried.policy].settings if tried is not own else ()
        values = [s.values.index(tried.parameters[s.key]) for s in settings if s.key in tried.parameters]
        return tried.makespan_us, tried is not own, bool(tried.parameters), policies.index(tried.policy), values

    return min(known, key=rank)


def _others_as_fast(known: Sequence[Tried], best: Tried) -> list[str]:
    """The other policies that are as fast, in the order in which they ran."""
    equal = [tried.policy for tried in known if tried.makespan_us == best.makespan_us]
    return [policy for policy in dict.fromkeys(equal) if policy != best.policy]


def drawn_setting(tried: Iterable[Parameters]) -> str | None:
    """The setting that the runs of a policy are drawn over: the first that is a number, or else the first that is on or off.
    None where all of them are names, or where the policy has none.
    """
    settings = [(key, value) for parameters in tried for key, value in parameters.items() if not isinstance(value, str)]
    # One that has more than two values tells more than one that is on or off.
    return min(settings, key=lambda one: isinstance(one[1], bool), default=(None, None))[0]


def _own_choice(leads: Sequence[int]) -> str:
    """What stands for settings that nobody gave, with the row leads that the policy then chose."""
    if not leads:
        return "its own choice"
    low, high = min(leads), max(leads)
    return f"its own choice, lead_rows={low}" + (f" to {high}" if high > low else "")


def _advice(own: Tried, best: Tried, interval: SavingInterval | None) -> Advice:
    if best is own:
        return "leave"
    if own.makespan_us is None or best.makespan_us is None:
        return "change"
    if saved_pct(own.makespan_us, best.makespan_us) < LEAST_SAVING_PCT:
        return "leave"
    return "measure" if interval and interval.low_pct <= 0 else "change"


def _leave_told(own: Tried, best: Tried, interval: SavingInterval | None) -> str:
    """That nothing is worth a change, and the fastest, if it is another."""
    takes = f"{own.policy} as it is written ({own.makespan_us:.3f} us)"
    if best is own or own.makespan_us is None or best.makespan_us is None:
        return f"No policy or setting that was tried is faster than {takes}. Leave it."
    settings = f" with {parameters_text(best.parameters)}" if best.parameters else ""
    saves = _saves_told(saved_pct(own.makespan_us, best.makespan_us), interval)
    return (
        f"No policy or setting that was tried is faster than {takes} by {LEAST_SAVING_PCT:g} % or more. Leave it. The "
        f"fastest is {best.policy}{settings}, which {saves}."
    )


def _saves_told(saving_pct: float, interval: SavingInterval | None) -> str:
    between = "" if interval is None else f" ({interval.low_pct:.1f} to {interval.high_pct:.1f} %)"
    return f"saves {saving_pct:.1f} %{between}"


def _changes(own: Tried, best: Tried, choices: Mapping[str, PolicyChoice], advice: Advice) -> list[str]:
    """What to change in the kernel, in its own words."""
    choice, changes = choices[best.policy], []
    known = own.parameters if own.policy == best.policy else {}
    if advice == "measure":
        changes.append("The interval contains 0: it may save nothing, so measure both before you change anything.")
    if best.policy != own.policy:
        changes.append(f"Change the policy from {own.policy} to {best.policy}: {choice.meaning}.")
    if not best.parameters and choice.settings:
        changes.append("Leave its settings as the kernel chooses them.")
    for setting in choice.settings:
        if setting.key in best.parameters:
            value = best.parameters[setting.key]
            before = known.get(setting.key)
            if value != before and (value is not False or before is not None):
                shown = ("yes" if value else "no") if isinstance(value, bool) else str(value)
                was = f", now {before}" if before is not None else ""
                changes.append(f"Set {setting.key} to {shown} ({setting.meaning}{was}).")
            if setting.ring:
                changes += _ring_told(setting.ring(value), known.get("ring_m_blocks"))
    left = {key: value for key, value in known.items() if key not in best.parameters}
    return changes + [f"Leave {key} as the kernel chooses it (now {value})." for key, value in left.items()]


def _other_tile(tiles: Sequence[str | None]) -> list[str]:
    """That what is saved may not be the order's alone; `tiles` are those of the scenario, if it ran, and of the best."""
    if len({*tiles}) < 2:
        return []
    own, other = tiles
    return [
        f"Its tile is another one ({other}, instead of {own}): part of the saving may be the tile's, not the order's."
    ]


def _ring_told(ring: Ring, now: Any) -> list[str]:
    if now == ring.m_blocks:
        return []
    was = "" if now is None else f", now {now}"
    return [
        f"Set ring_m_blocks to {ring.m_blocks} (m-blocks that may stand between L1 and L2{was}): the fewest for this lead, "
        f"{ring.room_bytes / 2**20:.1f} MiB of symmetric memory."
    ]


def _leads_table(done: Tuning) -> Any:
    """D_knee, the fastest and the longest lead beside each other."""
    rows = []
    for name, lead in done.notable_leads.items():
        makespan_us, ring = done.leads[lead]
        saved = "" if done.own.makespan_us is None else f"{saved_pct(done.own.makespan_us, makespan_us):.1f} %"
        rows.append((name, lead, f"{makespan_us:.3f}", saved, ring.m_blocks, f"{ring.room_bytes / 2**20:.1f}"))
    of = f"row leads of {done.d_knee_policy}, each with the smallest ring that it can do with"
    return table(of, ("", "lead D, rows", "makespan, us", "saves", "ring, m-blocks", "ring, MiB"), rows)
