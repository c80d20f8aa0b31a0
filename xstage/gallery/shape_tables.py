"""Tables over many shapes behind figures: MegaMoE calls, attention by length, tensor-parallel layers by size."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from ..paper.calls import CALL, STUDY, by_call
from ..workers import map_on_workers

ATTENTION_SCENARIO = "attention-x-stage"
ATTENTION_TOKENS = (2048, 4096, 8192, 16384, 32768, 65536, 131072)
ATTENTION_POLICIES: tuple[tuple[str, Any], ...] = (
    ("compute_only", "compute_only"),
    ("serial", "serial"),
    ("reserved_sms", {"name": "reserved_sms", "sms": 8}),
    ("comm_warp", "comm_warp"),
    ("piggyback", "piggyback"),
)
MEASURED = {"xstage_serial": "serial", "xstage_piggyback": "piggyback"}

TP_SCENARIO = "gemm-rs-llama-fused"
TP_ROWS = (512, 1024, 2048, 4096, 8192, 16384)
TP_DEPTHS = (4096, 8192, 14336, 28672, 53248)
TP_POLICIES: tuple[tuple[str, Any], ...] = (
    ("serial", "serial"),
    ("fused", "fused"),
    ("reserved_sms", {"name": "reserved_sms", "sms": 16}),
    ("reshaped", "reshaped"),
)

Point = tuple[str, dict[str, Any]]


def makespan_us(point: Point) -> float:
    """The makespan of a scenario with some values replaced."""
    from ..answers.api import run

    scenario, overrides = point
    return run(scenario, overrides=overrides, engine="compiled", trace="off").makespan_us


def attention_table(workers: int = 1) -> pd.DataFrame:
    """FA3 and the All-to-All behind it by sequence length and policy: series (simulated, measured), policy, tokens,
    makespan_us, speedup over serial. Measured rows are those of the X-Stage paper; with rows marked `fitted` the machine was
    calibrated.
    """
    points = [(policy, tokens) for policy, _ in ATTENTION_POLICIES for tokens in ATTENTION_TOKENS]
    given = dict(ATTENTION_POLICIES)
    inputs = [
        (ATTENTION_SCENARIO, {"workload.policy": given[policy], "workload.tokens": tokens}) for policy, tokens in points
    ]
    times = map_on_workers(makespan_us, inputs, workers)
    rows = [("simulated", *point, time, False) for point, time in zip(points, times, strict=True)]
    table = pd.DataFrame(
        [*rows, *_measured_attention()], columns=["series", "policy", "tokens", "makespan_us", "fitted"]
    )
    return _with_speedup(table, ["series", "tokens"])


def _measured_attention() -> list[tuple[str, str, int, float, bool]]:
    from ..scenarios.published import load_published

    known = load_published("attention_tp").reset_index()
    mine = known[known["version"].isin(MEASURED)]
    return [
        ("measured", MEASURED[str(row["version"])], int(row["seq"]), float(row["time_us"]), bool(row["fit"]))
        for row in mine.to_dict("records")
    ]


def tensor_parallel_table(workers: int = 1) -> pd.DataFrame:
    """A GEMM with its ReduceScatter by rows m and depth k (n = 8192): m, k, policy, makespan_us, speedup over serial."""
    points = [(m, k, policy) for m in TP_ROWS for k in TP_DEPTHS for policy, _ in TP_POLICIES]
    given = dict(TP_POLICIES)
    inputs = [
        (TP_SCENARIO, {"workload.m": m, "workload.k": k, "workload.policy": given[policy]}) for m, k, policy in points
    ]
    times = map_on_workers(makespan_us, inputs, workers)
    table = pd.DataFrame(points, columns=["m", "k", "policy"]).assign(makespan_us=times)
    return _with_speedup(table, ["m", "k"])


def _with_speedup(table: pd.DataFrame, same: Sequence[str]) -> pd.DataFrame:
    """With the column `speedup`: the time of policy serial over that of the row; rows of the same `same` belong together."""
    serial = table[table["policy"] == "serial"].set_index(list(same))["makespan_us"]
    own = pd.MultiIndex.from_frame(table[list(same)])
    return table.assign(speedup=serial.reindex(own).to_numpy() / table["makespan_us"])


def calls_table(folder: str | Path | None = None, workers: int = 1) -> pd.DataFrame:
    """The kinds of MegaMoE calls of the study megamoe-84, a row a call: see `by_call` in xstage/paper/calls.py.

    From a folder that `xstage paper speedups -o DIR` or `xstage sweep megamoe-84 -o DIR` wrote; without one the 42 balanced
    calls are simulated, one rank each. Raises `InputError` for a folder without such a table.
    """
    if folder is not None:
        return by_call(_points(Path(folder)))
    from ..scenarios.study import load_study

    study = load_study(STUDY)
    known = [cells for cells in (study.cells(point) for point in study.points()) if _ranks(cells) == "symmetric"]
    rows = map_on_workers(_call, [{axis: cells[f"workload.{axis}"] for axis in _AXES} for cells in known], workers)
    return by_call(pd.DataFrame(rows))


_AXES = ("model", "numbers", "tokens", "policy")


def _ranks(cells: dict[str, Any]) -> str:
    return str(cells["workload.ranks"])


def _call(cells: dict[str, Any]) -> dict[str, Any]:
    """One point of the study, with the columns that `by_call` reads."""
    from ..answers.api import run
    from ..scenarios import catalogue
    from ..scenarios.document import read
    from ..scenarios.loader import load_scenario

    base = dict(read(catalogue.find(STUDY, "study")).data)["scenario"]
    overrides = {f"workload.{name}": value for name, value in cells.items()} | {"workload.ranks": "symmetric"}
    done = run(load_scenario(base | {"name": STUDY}, overrides), engine="compiled", trace="summary")
    return {
        **{f"workload.{name}": value for name, value in cells.items()},
        "workload.ranks": "symmetric",
        "makespan_us": done.makespan_us,
        "stall_total_us": done.metrics["stall_total_us"],
        "roles.mma.lanes": done.metrics["roles"]["mma"]["lanes"],
    }


def _points(folder: Path) -> pd.DataFrame:
    from ..sim.errors import InputError
    from ..sweeps.table import FILE, read_table

    points = read_table(folder)
    needed = [*(f"workload.{name}" for name in (*CALL[:3], "ranks", "policy")), "makespan_us", "roles.mma.lanes"]
    if missing := [name for name in needed if name not in points]:
        raise InputError("is no table of MegaMoE calls: it lacks a column", file=str(folder / FILE), value=missing[0],
                         allowed=f"what `xstage sweep {STUDY} -o DIR` writes")  # fmt: skip
    return points[points["error"].isna()]
