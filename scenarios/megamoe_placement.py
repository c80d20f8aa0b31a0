"""Which rank holds which expert, as a MegaMoE scenario says it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from ..sim.checked import Checked
from ..sim.errors import InputError
from ..sim.quantities import Count, CountOrZero
from .workload import choice_by

if TYPE_CHECKING:
    from ..sim.placement import Placement as Placed
    from ..sim.routing import Routing as Routed
    from ..sim.schedules.megamoe import MegaMoe


class Contiguous(Checked):
    """Expert e on rank e // (experts / ranks)."""

    kind: Literal["contiguous"]


class Eplb(Checked):
    """Balanced by load with `redundant` extra copies, after github.com/deepseek-ai/EPLB.

    The load is that of earlier tokens of the same popularity; of a recorded routing, which has no others, its own.
    """

    kind: Literal["eplb"]
    redundant: CountOrZero = 0
    groups: Count = 1
    nodes: Count = 1


EARLIER_ROWS = 1000
"""Mean rows of an expert in the statistics of EPLB: popularity is known to 3 %. Servers count over many steps, vLLM over the
last 1000 (https://docs.vllm.ai/en/stable/api/vllm/config/parallel/, window_size)."""
MOST_EARLIER_SCORES = 2**27
"""Of tokens times experts: more would take seconds to draw."""

Placement = Annotated[Contiguous | Eplb, Field(discriminator="kind"), choice_by("kind")]


def check_placement(placement: Contiguous | Eplb, experts: int, gpus: int) -> None:
    """Raises `InputError`, in the words of the scenario, for experts that cannot be placed so."""
    fewest = -experts % gpus
    if isinstance(placement, Eplb):
        _check_copies(placement.redundant, fewest, experts, gpus)
        _check_divides("groups", placement.groups, experts, "experts")
        _check_divides("nodes", placement.nodes, gpus, "gpus")
    elif fewest:
        allowed = f"a multiple of {gpus}, or placement: {{kind: eplb, redundant: {fewest}}}"
        raise InputError(f"cannot be spread evenly over {gpus} gpus", field="experts", value=experts, allowed=allowed)


def _check_copies(redundant: int, fewest: int, experts: int, gpus: int) -> None:
    """One copy of every expert on every GPU is the most that can be of use."""
    most = max(fewest, experts * (gpus - 1))
    if redundant % gpus != fewest:
        reason = f"cannot be spread evenly over {gpus} gpus together with the {experts} experts"
    elif redundant > most:
        reason = f"is more than a copy of each of {experts} experts on each of {gpus} gpus"
    else:
        return
    first = ", ".join(str(count) for count in range(fewest, most + 1, gpus)[:3])
    allowed = first if most < fewest + 3 * gpus else f"{first}, ... up to {most}"
    raise InputError(reason, field="redundant", value=redundant, allowed=allowed)


def _check_divides(key: str, parts: int, whole: int, of: str) -> None:
    if whole % parts:
        raise InputError(f"do not divide {whole} {of}", field=key, value=parts, allowed=f"a divisor of {whole}")


def earlier_batches(shape: MegaMoe) -> int:
    """Batches from which EPLB takes its statistics: `EARLIER_ROWS` an expert or more, as far as they are quickly drawn."""
    tokens = max(1, shape.ranks * shape.tokens)
    enough = -(-EARLIER_ROWS * shape.experts // (tokens * shape.topk))
    return max(1, min(enough, MOST_EARLIER_SCORES // (tokens * shape.experts)))


def placed(placement: Contiguous | Eplb, rows: Routed, earlier: Routed | None = None) -> Placed:
    """The placement for what was routed; EPLB goes by the load of each expert in what was routed `earlier`, if there is
    such.
    """
    from ..sim.placement import contiguous, eplb

    if isinstance(placement, Contiguous):
        return contiguous(rows.n_experts, rows.n_ranks)
    return eplb(
        (rows if earlier is None else earlier).expert_rows,
        n_replicas=rows.n_experts + placement.redundant,
        n_ranks=rows.n_ranks,
        n_groups=placement.groups,
        n_nodes=placement.nodes,
    )
