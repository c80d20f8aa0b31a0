"""What the row lead D of an interleaved MegaMoE costs and brings: the curve behind D_knee (arXiv 2607.23264).

With a small lead L2 tasks are taken before their inputs are there, and Tensor Cores wait inside them. A large lead holds
more m-blocks between L1 and L2, in a ring of symmetric memory. Each lead is run with the smallest ring that it can do with,
as `xstage tune` does, which searches the leads of any call; here stands also what L2 waits for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..sim.arguments import check_whole
from ..sim.errors import InputError
from ..sim.search import knee
from ..terminal.output import Printed, table
from ..terminal.progress import Progress, silent
from ..workers import map_on_workers

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from ..scenarios.loader import Resolved

POLICY = "interleaved"
LEADS = (0, 192, 384, 576, 768, 960, 1152, 1536, 2304, 3072, 6144, 12288)


@dataclass(frozen=True, repr=False, eq=False)
class LeadCurve(Printed):
    """`rows`: one a lead, of one rank against its mirror."""

    model: str
    tokens: int
    rows: list[dict[str, Any]]

    @property
    def knee_rows(self) -> int:
        """D_knee: the smallest lead that is within 1 % of the fastest."""
        return knee_of(self.rows)

    def as_dict(self) -> dict[str, Any]:
        return {"model": self.model, "tokens": self.tokens, "knee_rows": self.knee_rows, "rows": self.rows}

    @property
    def frame(self) -> pd.DataFrame:
        """One row a lead."""
        import pandas as pd

        return pd.DataFrame(self.rows)

    def plot(self) -> Figure:
        """Makespan and ring over the lead, with its knee."""
        from ..plots.paper_figures import lead_figure

        return lead_figure(self.frame, self.knee_rows, lead_setting(self.model, self.tokens))

    def __repr__(self) -> str:
        return f"<LeadCurve of {self.model}, {self.tokens} tokens: D_knee {self.knee_rows} rows>"

    def printed(self) -> list[Any]:
        """The curve of leads for a person."""
        rows = [
            (row["lead_rows"], f"{row['makespan_us']:.1f}", f"{row['l2_input_wait_us']:.2f}",
             f"{row['stall_total_us']:.1f}", row["ring_m_blocks"], f"{row['ring_mib']:.1f}")
            for row in self.rows
        ]  # fmt: skip
        return [
            f"{self.model}, W8A8, {self.tokens} tokens a rank, balanced; interleaved, each lead in the smallest ring it "
            "needs.",
            "",
            table("", ("lead D, rows", "makespan, us", "L2 waits for inputs, us a task", "stall, us", "ring, m-blocks",
                  "ring, MiB"), rows), "",
            f"D_knee: {self.knee_rows} rows. Below it L2 tasks wait for inputs; above it the ring grows and little is "
            "gained.",
        ]  # fmt: skip


def paper_lead(
    model: str = "dsv4-flash",
    tokens: int = 8192,
    leads: Sequence[int] = LEADS,
    *,
    workers: int = 2,
    progress: Progress = silent,
) -> LeadCurve:
    """Run a balanced W8A8 call of `model` with each lead (rows, ascending). Raises `InputError` for an unknown model."""
    check_whole(tokens, "tokens")
    check_whole(workers, "workers")
    points = [(model, tokens, lead) for lead in _rows(leads)]
    return LeadCurve(model, tokens, map_on_workers(simulate_lead, points, workers, progress))


def _rows(leads: Sequence[int]) -> list[int]:
    """The leads in order, each once. Raises `InputError` for none, and for what is no number of rows."""
    if not isinstance(leads, Iterable) or isinstance(leads, str) or not (found := list(leads)):
        raise InputError("must be a list of rows", field="leads", value=leads)
    for lead in found:
        check_whole(lead, "leads", 0)
    return sorted(set(found))


def knee_of(rows: Iterable[Mapping[Any, Any]]) -> int:
    """D_knee of rows with lead_rows and makespan_us, of which there is one at least."""
    found = knee({int(row["lead_rows"]): float(row["makespan_us"]) for row in rows})
    assert found is not None
    return found


def lead_setting(model: str, tokens: int) -> str:
    """What is simulated for each lead, said above the figure."""
    from ..answers.figure_setting import setting_of

    return setting_of(_call(model, tokens, POLICY))


def _call(model: str, tokens: int, policy: str | dict[str, Any]) -> Resolved:
    from ..scenarios.loader import load_scenario

    workload = {
        "kind": "megamoe", "model": model, "tokens": tokens, "numbers": "w8a8", "release": "pr304", "ranks": "symmetric",
        "policy": policy,
    }  # fmt: skip
    scenario = {"name": "lead", "question": "What does this lead cost?", "machine": "hgx-b200", "workload": workload}
    return load_scenario(scenario | {"granule": "4 KiB"})


def simulate_lead(point: tuple[str, int, int]) -> dict[str, Any]:
    """One lead: how long, what L2 tasks and stores waited for, and the ring."""
    from ..answers.api import run
    from ..sim.schedules.megamoe import l2_tiles
    from ..sim.units import PS_PER_US

    model, tokens, lead = point
    [setting] = _call(model, tokens, POLICY).policies()[POLICY].settings
    assert setting.ring is not None
    ring = setting.ring(lead)
    done = run(_call(model, tokens, {"name": POLICY, **setting.given(lead)}), engine="compiled", trace="summary")
    stall = int(done.trace.outcome.lanes["stall_ps"].sum()) / PS_PER_US
    return {
        "lead_rows": lead,
        "makespan_us": done.makespan_us,
        "l2_input_wait_us": float(l2_tiles(done.trace).inputs_us.mean()),
        "stall_total_us": stall,
        "ring_m_blocks": ring.m_blocks,
        "ring_mib": ring.room_bytes / 2**20,
    }
