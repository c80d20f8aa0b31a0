"""All microbenchmarks of a results file as one flat table: what each configuration took, by the median over its rounds.

Needs NumPy alone, so that a bare node can tell what it measured.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from . import experiments as e
from .container import Container
from .noted import Noted
from .parts import AGAIN

ALONE = {"loads under stores": "no loads", "fences under stores": "no loads"}
"""Groups in which something goes on beside the stores, and the group without it."""

_MARKS = {e.STORE: "issued", e.BULK: "issued"} | dict.fromkeys((e.FEED, e.PULL, e.TICKET, e.FLAG, e.SYNC), "end")
_BULK_MARKS = ("issued", "read", "done", "back")
COUNTS = e.LOADS | e.FENCES
"""The third mark of such a row is no time, but how much went on beside its stores."""


def microbenchmarks(results: Container) -> list[dict[str, Any]]:
    """One row a configuration: part, group, what tells it from others, rounds, and ns from the start of a burst to each time
    that was noted, as a mean over SMs; `slowest_ns` is to the first of them, of the SM that took longest. `cycles_per_ns` is
    the SM clock that they were noted by. `gbs` is what all its SMs stored or loaded in the mean time to the first; the first
    burst of a train is left out, because it met an empty stage. `slowed_pct` is by how much something beside the stores
    slowed them. Rows that note no times of bursts (clock, offset) are left out.
    """
    rows = []
    for name, told in results.header["parts"].items():
        source = AGAIN.get(name, name)
        if told["state"] != "done" or name == "programs":
            continue
        groups = results.header["plan"]["parts"][source]["groups"]
        noted = Noted.of(results.under(f"part/{name}"), groups)
        for config in np.unique(noted.table["config"]):
            numbers = np.flatnonzero(noted.table["config"] == config)
            if noted.table["kind"][numbers[0]] in _MARKS:
                rows.append({"part": name, **_configuration(noted, numbers)})
    for row in rows:
        for other in rows:
            alike = all(row[name] == other[name] for name in ("part", "producers", "bytes"))
            if alike and ALONE.get(row["group"]) == other["group"]:
                row["slowed_pct"] = 100 * (row["issued_ns"] / max(other["issued_ns"], 1e-3) - 1)
    return rows


def _configuration(noted: Noted, numbers: Any) -> dict[str, Any]:
    row = noted.table[numbers[0]]
    flags = int(row["flags"])
    size = int(row["other_bytes"] if flags & e.LIGHT else row["bytes"])
    sms = 1 if flags & e.LIGHT else int(row["producers"])
    told: dict[str, Any] = {
        "group": noted.groups[int(row["config"])]["group"],
        "producers": int(row["producers"]),
        "bytes": size,
        **{name: int(row[name]) for name in ("bursts", "warps", "width", "chunk")},
        "gap_drains": float(row["gap_drains"]),
        "rounds": len(numbers),
        "cycles_per_ns": float(np.median(noted.cycles_per_ns[numbers])),
    }
    sender = (int(row["senders"]) & -int(row["senders"])).bit_length() - 1
    each = [_from_start(noted.ns(int(i), sender), row) for i in numbers]
    middle = np.median([one.mean(axis=0) for one in each], axis=0)
    names = _mark_names(row)
    told["slowest_ns"] = float(np.median([one[:, 0].max() for one in each]))
    told |= {f"{name}_ns": float(value) for name, value in zip(names, middle, strict=True)}
    if flags & COUNTS:
        counted = float(np.median([noted.cycles(int(i), sender)[..., 2].mean() for i in numbers]))
        told["loads" if flags & e.LOADS else "fences"] = counted
    if row["kind"] in (e.STORE, e.BULK, e.FEED, e.PULL) and size:
        told["gbs"] = float(sms * size / max(middle[0], 1e-3))
    return told


def _from_start(times: Any, row: Any) -> Any:
    """By SM, the mean over bursts of the time from the start of a burst to each mark behind it."""
    times = times[:1] if row["kind"] == e.FLAG else times
    later = times[:, 1:] if row["bursts"] > 1 else times
    marks = len(_mark_names(row))
    wanted = [1, *range(3 if row["flags"] & COUNTS else 2, times.shape[2])][:marks]
    return (later[..., wanted] - later[..., :1]).mean(axis=1)


def _mark_names(row: Any) -> list[str]:
    if row["kind"] == e.BULK:
        return list(_BULK_MARKS)
    flags = int(row["flags"])
    more = [name for flag, name in ((e.FENCE, "fenced"), (e.ECHO, "echoed"), (e.BACK, "back")) if flags & flag]
    return [_MARKS[int(row["kind"])], *more]
