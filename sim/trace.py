"""What happened in a run, as tables with names and units.

Simulated and measured traces have the same columns, so comparing them is a join. Times are microseconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from . import program as p
from .errors import InputError
from .outcome import OP_OF_TASK_WAIT, Outcome
from .program_index import ran_parts
from .units import PS_PER_US

if TYPE_CHECKING:
    import pandas as pd

    from .layout import Layout
    from .program import Program
    from .topology import Fabric

TAGS = ("phase", "expert", "m_block", "n_block")


@dataclass(frozen=True, eq=False, repr=False)
class Trace:
    """What happened in one run, as tables: `run(...).trace`, made by `execute.simulate`."""

    program: Program
    fabric: Fabric
    layout: Layout
    outcome: Outcome
    engine: str
    level: str
    """How much was kept: off, summary or full. `lanes` and `ports` are always there."""
    wall_s: float

    @property
    def makespan_ps(self) -> int:
        """From time 0 until the last lane is free and the last byte is visible."""
        return max(self.outcome.lanes_end_ps, self.outcome.arrived_ps)

    def __repr__(self) -> str:
        return f"<Trace, {self.level}, of the {self.engine} engine: {self.makespan_ps / PS_PER_US:.3f} us>"

    def ops(self) -> pd.DataFrame:
        """One row an op, in order of completion: who (gpu, sm, lane, role), what (task and its tags, op, kind, bytes), when
        (start_us, end_us) and how much of it was stall_us or wait_us (and for which cause). A row of kind "task" is a lane
        that waited for its group to take a task. Needs a full trace.
        """
        import pandas as pd

        self._need("full", "ops")
        records = self.outcome.op_records
        op = records["op"]
        real = op != OP_OF_TASK_WAIT
        kind = np.where(real, self.program.ops["kind"][op], len(p.KIND_NAMES)) if len(self.program.ops) else op
        moves = np.isin(kind, (p.STORE, p.LOAD))
        return pd.DataFrame(
            self._who(records["lane"])
            | {"task": records["task"]}
            | self._tags(records["task"])
            | {
                "op": op,
                "kind": _names(kind, [*p.KIND_NAMES, "task"]),
                "bytes": np.where(moves, self.program.ops["bytes"][op], 0) if len(op) else op,
            }
            | {f"{name}_us": records[f"{name}_ps"] / PS_PER_US for name in ("start", "end", "stall", "wait")}
            | {"cause": _names(records["cause"], p.CAUSES)}
        )

    def granules(self) -> pd.DataFrame:
        """One row a granule by ticket: from where to where, bytes, and when it was admitted, drained and visible (us).
        Requests of loads are among them. Needs a full trace.
        """
        import pandas as pd

        self._need("full", "granules")
        records = self.outcome.granule_records
        columns = {name: records[name] for name in ("ticket", "parcel", "lane", "op", "source", "destination", "bytes")}
        kind = self.program.ops["kind"][records["op"]] if len(records) else records["op"]
        return pd.DataFrame(
            columns
            | {"kind": _names(kind, p.KIND_NAMES)}
            | {f"{name}_us": records[f"{name}_ps"] / PS_PER_US for name in ("admitted", "drained", "visible")}
        )

    def spans(self) -> pd.DataFrame:
        """One row a task and lane: from the first to the last of its ops, and the stall in between (us)."""
        import pandas as pd

        if self.level == "off":
            self._need("summary", "spans")
        task, lane, row = self.parts()
        spans = self.outcome.spans
        return pd.DataFrame(
            self._who(lane)
            | {"task": task}
            | self._tags(task)
            | {f"{name}_us": spans[f"{name}_ps"][row] / PS_PER_US for name in ("start", "end", "stall")}
            | {"span_us": (spans["end_ps"][row] - spans["start_ps"][row]) / PS_PER_US}
        )

    def lanes(self) -> pd.DataFrame:
        """One row a lane: when it ended, how long it was busy, stalled, and waiting by cause (us), bytes issued and loaded.

        start + busy + stall + waits = end, to the last picosecond.
        """
        import pandas as pd

        totals = self.outcome.lanes
        waits = {f"wait_{cause}_us": totals["wait_ps"][:, i] / PS_PER_US for i, cause in enumerate(p.CAUSES)}
        return pd.DataFrame(
            self._who(np.arange(len(totals)))
            | {"start_us": self.program.lanes["start_ps"] / PS_PER_US}
            | {f"{name}_us": totals[f"{name}_ps"] / PS_PER_US for name in ("end", "busy", "stall")}
            | waits
            | {name: totals[name] for name in ("stored_bytes", "loaded_bytes")}
        )

    def ports(self) -> pd.DataFrame:
        """One row a port: bytes passed, busy time (us), and its share of the makespan (use_pct)."""
        import pandas as pd

        totals = self.outcome.ports
        return pd.DataFrame(
            {
                "port": self.fabric.port_names,
                "bytes": totals["bytes"],
                "busy_us": totals["busy_ps"] / PS_PER_US,
                "use_pct": 100 * totals["busy_ps"] / max(1, self.makespan_ps),
            }
        )

    def occupancy(self, gpu: int) -> pd.DataFrame:
        """Bytes held in the stage of a GPU over time, as steps: time_us and held_bytes from then on. Needs a full trace."""
        import pandas as pd

        time, held = self.occupancy_steps(gpu)
        return pd.DataFrame({"time_us": time / PS_PER_US, "held_bytes": held})

    def occupancy_steps(self, gpu: int) -> tuple[Any, Any]:
        """As `occupancy`, as two integer arrays in ps and bytes."""
        self._need("full", "occupancy")
        records = self.outcome.granule_records
        stages = self.fabric.stages
        ops = self.program.ops[records["op"]]
        stored = np.isin(ops["kind"], (p.STORE, p.SIGNAL)) & (ops["flags"] & p.FROM_MEMORY == 0)
        stored &= stages[records["source"]] == stages[gpu]
        records = records[stored]
        # The copies of a multicast share one place in the stage, from admission until the last of them is drained.
        _, first, place = np.unique(records["parcel"], return_index=True, return_inverse=True)
        drained = np.zeros(len(first), dtype=np.int64)
        np.maximum.at(drained, place, records["drained_ps"])
        time = np.concatenate([records["admitted_ps"][first], drained])
        change = np.concatenate([records["bytes"][first], -records["bytes"][first]])
        order = np.lexsort((change, time))
        return time[order], np.cumsum(change[order])

    def first_ports(self, granules: Any) -> Any:
        """The port by which each of these granule records left its source for another GPU."""
        pair = granules["source"].astype(np.int64) * self.fabric.n_gpus + granules["destination"]
        is_reply = granules["source"] != self.program.lanes["gpu"][granules["lane"]]
        first, ports = self.fabric.reply_routes
        stores = self.fabric.route_first[pair].astype(np.int64)
        from_memory = self.program.ops["flags"][granules["op"]] & p.FROM_MEMORY > 0
        stores += from_memory & (self.fabric.route_first[pair + 1] - stores > 2)
        return np.where(is_reply, ports[first[pair]], self.fabric.route_ports[stores])

    def parts(self) -> tuple[Any, Any, Any]:
        """Task, lane and row of the spans of every part of a task that ran."""
        return ran_parts(self.program, self.layout.span_first, self.outcome.spans["group"])

    def _who(self, lane: Any) -> dict[str, Any]:
        rows = self.program.lanes[lane]
        return {"gpu": rows["gpu"], "sm": rows["sm"], "lane": lane, "role": _names(rows["role"], self.program.roles)}

    def _tags(self, task: Any) -> dict[str, Any]:
        known = task >= 0
        rows = self.program.tasks[np.where(known, task, 0)] if len(self.program.tasks) else np.zeros(0, p.TASK)
        tags = {tag: np.where(known, rows[tag], -1) for tag in TAGS}
        return tags | {"phase": _names(tags["phase"], self.program.phases)}

    def _need(self, level: str, table: str) -> None:
        if self.level != level:
            raise InputError(f"{table} need a {level} trace", field="trace", value=self.level, allowed=[level])


def _names(index: Any, names: Any) -> Any:
    """Categories for a column of small numbers; -1 is a missing value."""
    import pandas as pd

    return pd.Categorical.from_codes(np.asarray(index, dtype=np.int64), categories=pd.Index(list(names), dtype=object))
