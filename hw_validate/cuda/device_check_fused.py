"""The fused kernels' part of the device check: numbers of all policies, and a sweep past the point where stores stall.

A wave of L2 tiles of K SMs stores V = K b f bytes far away, where b is a tile and f the share of rows that belong to other
ranks. The way out takes V / R for that, the SMs T_mma + T_iss0 until the next wave. A short run of the kernel tells T_mma
and T_iss0 of a tile, the calibration R; then K is chosen so that both times are equal at a usual expert width, and widths so
that V / R over (T_mma + T_iss0) goes from 0.5 to 2. All policies run at the ratio 1 first, then attention with its
All-to-All, then the other ratios, and last the other way to change V: the same SMs at the same width as more ranks, whose
rows go to others more often, f = 1 - 1 / ranks.

Numbers need no calibration: without one nothing is simulated, and without any R every policy runs at the usual width.
`fused.json` is written anew after every policy, so that whatever ends a run early, what was measured is kept.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...sim.files import write_whole
from ...sim.machine import Machine
from ...sim.schedules.attention_a2a import Attention
from ...sim.schedules.megamoe import MegaMoe
from ..measuring import MeasurementError
from .device import Devices
from .errors import DeviceLostError
from .fused_calls import ATTENTION_POLICIES, MEGAMOE_POLICIES, AttentionCall, Call, MegaMoeCall
from .fused_compare import Compared, compared, ranked_alike
from .fused_megamoe import BLOCK_M, BLOCK_N
from .fused_run import SIDES, lowered_policy, measure

if TYPE_CHECKING:
    import pandas as pd

TRANSPORT = "host"
TILE_BYTES = BLOCK_M * BLOCK_N * 2
LARGEST_ERROR = 0.01
"""Of the results, root mean square over that of the exact ones: rounding to bf16 costs half of it at most."""
REPORT, TILES = "fused.json", "fused.parquet"


@dataclass(frozen=True)
class FusedExtent:
    """What runs. `ratios` of V / R over (T_mma + T_iss0), the most telling first; at `usual_width` it is to be 1.

    `more_ranks` than those of `megamoe` share its SMs at the width of the first ratio.
    """

    megamoe: Mapping[str, Any] = field(
        default_factory=lambda: {"tokens": 512, "hidden": 1024, "experts": 8, "topk": 2, "ranks": 2}
    )
    usual_width: int = 1024
    width_step: int = 128
    most_width: int = 8192
    ratios: tuple[float, ...] = (1.0, 0.5, 2.0, 0.75, 1.4)
    more_ranks: tuple[int, ...] = (4, 8)
    attention: Attention = field(default_factory=lambda: Attention(tokens=2048, heads=8, head_dim=128, ranks=2))
    pilot_sms: int = 8
    repeats: int = 3


USUAL = FusedExtent()


class FusedCheck:
    """One sweep into `folder`; nothing begins that would not be over by `until`.

    `machine` is the GPU as calibrated, `drain_gbs` a rough R for where there is none (None: neither is known).
    """

    def __init__(
        self,
        devices: Devices,
        folder: Path,
        machine: Machine | None,
        until: float,
        extent: FusedExtent = USUAL,
        drain_gbs: float | None = None,
    ) -> None:
        self.devices, self.folder, self.machine, self.until, self.extent = devices, folder, machine, until, extent
        self.drain_gbs = drain_gbs if machine is None else machine.drain_kbs() / 1e6
        self.report: dict[str, Any] = {"runs": [], "not_run": []}
        self.tables: list[pd.DataFrame] = []
        self._longest_s = 0.0

    def go_on(self) -> None:
        """Take what another process left in the folder as done; what failed in there is not tried again."""
        import pandas as pd

        if (self.folder / REPORT).exists():
            self.report |= json.loads((self.folder / REPORT).read_text(encoding="utf-8"))
            for row in self.report["runs"]:
                for side in SIDES:
                    if side in row:
                        row[side] = {name: math.nan if value is None else value for name, value in row[side].items()}
        if (self.folder / TILES).exists():
            self.tables.append(pd.read_parquet(self.folder / TILES))

    def run(self) -> dict[str, Any]:
        """Everything that there is time for; what there is to tell. Raises `MeasurementError` for wrong numbers."""
        e = self.extent
        most = self.devices.facts()[0].sms // e.megamoe["ranks"]
        pilot_sms = max(1, min(e.pilot_sms, most))
        pilot = self._run("megamoe", self._megamoe(e.usual_width), "expert_wave", pilot_sms, {"width": e.usual_width})
        sms, widths = pilot_sms, {"1.0": e.usual_width}
        if "widths" in self.report:  # chosen by the process before
            sms, widths = self.report["sms_per_rank"], self.report["widths"]
        elif pilot is not None and "control" in pilot and self.drain_gbs:
            with self._noting(self.report, "choice"):
                sms, widths = self._choose(pilot["control"], most, self.drain_gbs)
        self.report |= {"sms_per_rank": sms, "widths": widths}
        first, *others = widths.items()
        self._megamoe_policies(*first, sms)
        rows = [self._run("attention", AttentionCall(e.attention), policy, None, {}) for policy in ATTENTION_POLICIES]
        self._rank("attention", rows)
        for ratio, width in others:
            self._megamoe_policies(ratio, width, sms)
        for ranks in e.more_ranks:
            self._more_ranks(ranks, first[1], sms)
        self._check()
        return {"runs": len(self.report["runs"]), "not_run": len(self.report["not_run"])}

    def _megamoe_policies(self, ratio: str, width: int, sms: int) -> None:
        call, more = self._megamoe(width), {"width": width, "ratio": float(ratio)}
        self._rank(f"megamoe {ratio}", [self._run("megamoe", call, policy, sms, more) for policy in MEGAMOE_POLICIES])

    def _more_ranks(self, ranks: int, width: int, sms: int) -> None:
        """All policies with the SMs of the usual ranks as `ranks`: as many tiles at once, more of them stored far away."""
        usual = self.extent.megamoe["ranks"]
        share = max(1, round(sms * usual / ranks))
        ratio = (ranks - 1) * share / ((usual - 1) * sms)  # V is that of K f = ranks * share * (1 - 1 / ranks) SMs
        call, more = self._megamoe(width, ranks), {"width": width, "ratio": ratio, "ranks": ranks}
        self._rank(
            f"megamoe {ranks} ranks", [self._run("megamoe", call, name, share, more) for name in MEGAMOE_POLICIES]
        )

    def _megamoe(self, width: int, ranks: int | None = None) -> MegaMoeCall:
        sizes = {**self.extent.megamoe} | ({} if ranks is None else {"ranks": ranks})
        return MegaMoeCall(MegaMoe(numbers="bf16", intermediate=width, **sizes))

    def _choose(self, control: Mapping[str, float], most: int, drain_gbs: float) -> tuple[int, dict[str, int]]:
        """SMs of a rank, and the width for each ratio, from the times of a tile at the usual width."""
        e, ranks = self.extent, self.extent.megamoe["ranks"]
        per_sm_us = TILE_BYTES * (1 - 1 / ranks) / (1000 * drain_gbs)  # V / R of one SM; 1 GB/s is 1000 B/us
        mma_us, issue_us = control["main_loop_us"], control["stores_us"]
        sms = max(1, min(most, round((mma_us + issue_us) / per_sm_us / ranks)))
        widths: dict[str, int] = {}
        for ratio in e.ratios:
            wanted = e.usual_width * (ranks * sms * per_sm_us / ratio - issue_us) / max(mma_us, 1e-3)
            width = e.width_step * max(1, round(wanted / e.width_step))
            if width <= e.most_width and width not in widths.values():
                widths[str(ratio)] = width
        return sms, widths

    def _run(
        self, kernel: str, call: Call, policy: str, sms: int | None, more: dict[str, Any]
    ) -> dict[str, Any] | None:
        """One policy, noted in the report with all that came of it; None if there was no time."""
        row: dict[str, Any] = {"kernel": kernel, "policy": policy, **more}
        runs: list[dict[str, Any]] = self.report["runs"]
        for done in runs:
            if row.items() <= done.items():
                return done  # by the process before
        begun = time.perf_counter()
        if begun + self._longest_s > self.until:
            self.report["not_run"].append(row | {"why": "the time was over"})
            self._write()
            return None
        runs.append(row)
        self._write()
        tables: dict[str, pd.DataFrame] = {}
        with self._noting(row, "build"):
            chosen = (MEGAMOE_POLICIES if kernel == "megamoe" else ATTENTION_POLICIES)[policy]
            program, fused, row["sms_per_rank"] = lowered_policy(self.devices, call, chosen, TRANSPORT, sms=sms)
            for side in SIDES:
                with self._noting(row, side):
                    row[side], table = measure(call, program, fused, self.devices, TRANSPORT, self.extent.repeats, side)
                    if table is not None:
                        tables[side] = table
            if self.machine is not None and len(tables) == 2:
                with self._noting(row, "simulation"):
                    one = compared(
                        policy, program, tables["far"], tables["control"], self.machine, TRANSPORT, call.summary
                    )
                    row |= {"simulated": dict(one.simulated), "error_pct": one.as_dict()["error_pct"]}
        self._longest_s = max(self._longest_s, time.perf_counter() - begun)
        with self._noting(row, "table"):
            self._keep(call, tables, {"kernel": kernel, "policy": policy, **more})
        return row

    @contextmanager
    def _noting(self, row: dict[str, Any], doing: str) -> Iterator[None]:
        """What fails in here is noted, whatever it is, and only a lost GPU ends more than this."""
        try:
            yield
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
            failed = row.setdefault("failed", {})
            if why not in failed.values():  # a lost GPU ends what is around as well
                failed[doing] = why
            if isinstance(error, DeviceLostError):
                raise
        finally:
            self._write()

    def _keep(self, call: Call, tables: Mapping[str, pd.DataFrame], told: dict[str, Any]) -> None:
        """Add the tiles of a run to the table of all."""
        import pandas as pd

        self.tables += [call.tile_times(table).assign(**told, side=side) for side, table in tables.items()]
        if self.tables:
            with write_whole(self.folder / TILES) as temporary:
                pd.concat(self.tables, ignore_index=True).to_parquet(temporary)

    def _rank(self, what: str, rows: list[dict[str, Any] | None]) -> None:
        """How much faster each policy is than the first, and whether simulated ones come in the same order."""
        ran = [row for row in rows if row is not None and "far" in row]
        if len(ran) > 1:
            base = ran[0]["far"]["makespan_us"]
            speedup = {row["policy"]: {"measured": base / row["far"]["makespan_us"]} for row in ran}
            self.report.setdefault("speedup", {})[what] = speedup
        simulated = [
            Compared(row["policy"], row["far"], row["control"], row["simulated"]) for row in ran if "simulated" in row
        ]
        if len(simulated) > 1:
            self.report.setdefault("ranked_alike", {})[what] = ranked_alike(simulated)
            for one in simulated:
                speedup[one.policy] = one.speedup(simulated[0])
        self._write()

    def _check(self) -> None:
        rows = self.report["runs"]
        for row in rows:
            for side in SIDES:
                if side in row and not row[side]["relative_error"] <= LARGEST_ERROR:
                    raise MeasurementError(
                        f"{row['kernel']}, policy {row['policy']}, {side}: results are off by "
                        f"{row[side]['relative_error']:.2g} in {row[side]['wrong_rows']:.2%} of the rows, and rounding "
                        f"explains {LARGEST_ERROR:g} at most"
                    )
        failed = [f"{doing} of {row['policy']}: {why}" for row in rows for doing, why in row.get("failed", {}).items()]
        if failed:
            raise MeasurementError(f"{len(failed)} runs failed, the first is {failed[0]}")
        if not rows:
            raise MeasurementError("there was no time for any fused kernel")

    def _write(self) -> None:
        with write_whole(self.folder / REPORT) as temporary:
            temporary.write_text(json.dumps(_finite(self.report), indent=1, default=str) + "\n", encoding="utf-8")


def _finite(value: Any) -> Any:
    """Plain data with null for what is no number, such as the error of a stall that was not measured."""
    if isinstance(value, Mapping):
        return {name: _finite(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
