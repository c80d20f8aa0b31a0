"""A scenario again, with another workload, policy, machine or fabric: what compare, explain, needs and tune have in
common.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

from ..scenarios.loader import Resolved
from ..scenarios.workload import PolicyChoice
from ..scenarios.workloads import WORKLOADS
from ..sim.arguments import names
from ..sim.checked import closest, nowhere
from ..sim.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

    from ..scenarios.schema import Scenario
    from ..scenarios.workload import Workload
    from ..sim.machine import Machine
    from ..sim.program import Program
    from ..sim.run_options import TraceLevel
    from ..sim.topology import Fabric
    from ..sim.trace import Trace

Given: TypeAlias = "str | Path | Mapping[str, Any] | Scenario | Resolved"
Parameters = dict[str, Any]


def with_workload(resolved: Resolved, workload: Workload) -> Resolved:
    """The scenario with another workload of the same kind, which is not what was written."""
    scenario = resolved.scenario.model_copy(update={"workload": workload})
    return replace(resolved, scenario=scenario, places=nowhere)


def with_numbers(machine: Machine, values: Mapping[str, Any]) -> Machine:
    """The machine with other values, in inside units, by dotted path; sources stay, though the values are not theirs."""
    for path, value in values.items():
        part, name = path.split(".")
        number = getattr(getattr(machine, part), name).model_copy(update={"value": value})
        machine = machine.model_copy(update={part: getattr(machine, part).model_copy(update={name: number})})
    return machine


def simulated(
    resolved: Resolved,
    trace: TraceLevel = "summary",
    change: Callable[[Fabric], Fabric] | None = None,
    program: Program | None = None,
) -> Trace:
    """The scenario's run in its engine, on its fabric or on what `change` makes of it. `program` is its own, if known."""
    from ..sim.execute import simulate

    fabric = resolved.fabric()
    known = resolved.program() if program is None else program
    return simulate(known, change(fabric) if change else fabric, resolved.scenario.engine, trace)


def taken_ps(resolved: Resolved, run: Trace) -> int:
    """How long a run of the scenario took, to the end that its workload is judged by."""
    is_sender_visible = resolved.scenario.workload.judged_by == "sender_visible"
    return run.outcome.lanes_end_ps if is_sender_visible else run.makespan_ps


def end_in_words(resolved: Resolved) -> str:
    """That end as answers call it."""
    return resolved.scenario.workload.judged_by.replace("_", "-")


def choices_of(resolved: Resolved) -> Mapping[str, PolicyChoice]:
    """The policies of the scenario's workload, its own first. Raises `InputError` where there is nothing to choose."""
    workload, choices = resolved.scenario.workload, resolved.policies()
    if not choices:
        having = sorted(kind for kind, model in WORKLOADS.items() if "policy" in model.model_fields)
        raise InputError("has no policies", field="workload.kind", value=workload.kind, allowed=having)
    own = own_policy(resolved)
    return {name: choices[name] for name in sorted(choices, key=lambda name: name != own)}


def comparable(resolved: Resolved) -> Mapping[str, PolicyChoice]:
    """The same and, last unless it is the scenario's own, the policy that sends nothing, which is a bound and no choice."""
    choices, own = choices_of(resolved), resolved.scenario.workload
    bound = own.without_sending() or own
    name = str(bound.policy_name)
    if name in choices:
        return choices
    only = {name: PolicyChoice("computation alone, nothing is sent")}
    return {**only, **choices} if bound is own else {**choices, **only}


def chosen_policies(choices: Collection[str], policies: Sequence[str] | None, field: str = "policies") -> list[str]:
    """The names asked for, or all. Raises `InputError` for one that there is not or that is given twice, or for none."""
    if policies is None:
        return list(choices)
    asked = names(policies, field)
    for name in asked:
        if name not in choices:
            raise InputError(
                f"is no policy of this workload{closest(name, choices)}", field=field, value=name, allowed=choices
            )
        if asked.count(name) > 1:
            raise InputError("is given twice", field=field, value=name)
    if not asked:
        raise InputError("names no policy", field=field, allowed=choices)
    return asked


def own_policy(resolved: Resolved) -> str:
    """The name of the scenario's policy."""
    return str(resolved.scenario.workload.policy_name)


def own_parameters(resolved: Resolved) -> Parameters:
    """What the scenario says about its policy; what it leaves to the policy is left out."""
    written: Parameters = resolved.scenario.workload.policy.model_dump(  # type: ignore[attr-defined]
        exclude={"name"}, exclude_none=True, exclude_defaults=True
    )
    return written


def under_policy(resolved: Resolved, name: str, choice: PolicyChoice) -> tuple[Resolved, Parameters]:
    """The scenario under a policy, and its parameters: its own as it is written, another with what it needs to be given."""
    if name == own_policy(resolved):
        return resolved, own_parameters(resolved)
    workload = resolved.scenario.workload.with_policy(name, choice.usual())
    changed = with_workload(resolved, workload)
    return changed, own_parameters(changed)
