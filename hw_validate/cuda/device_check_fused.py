"""The fused kernels' part of the device check: numbers of all policies, and a sweep past the point where stores stall.

A wave of L2 tiles of K SMs stores V = K b f bytes far away, where b is a tile and f the share of rows that belong to other
ranks. The way out takes V / R for that, the SMs T_mma + T_iss0 until the next wave. A short run of the kernel tells T_mma
and T_iss0 of a tile, the calibration R; then K is chosen so that both times are equal at a usual expert width, and widths so
that V / R over (T_mma + T_iss0) goes from 0.5 to 2. Then attention with its All-to-All.

`fused.json` is written anew after every policy, so that whatever ends a run early, what was measured is kept.
"""

from __future__ import annotations

import json
import math
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...sim.errors import XstageError
from ...sim.files import write_whole
from ...sim.machine import Machine
from ...sim.schedules.attention_a2a import Attention
from ...sim.schedules.megamoe import MegaMoe
from ..measuring import MeasurementError
from .device import Devices
from .errors import DeviceLostError
from .fused_calls import ATTENTION_POLICIES, MEGAMOE_POLICIES, AttentionCall, Call, MegaMoeCall
from .fused_compare import Compared, ranked_alike
from .fused_megamoe import BLOCK_M, BLOCK_N
from .fused_run import run_policies

if TYPE_CHECKING:
    import pandas as pd

TRANSPORT = "host"
TILE_BYTES = BLOCK_M * BLOCK_N * 2
LARGEST_ERROR = 0.01
"""Of the results, root mean square over that of the exact ones: rounding to bf16 costs half of it at most."""
REPORT, TILES = "fused.json", "fused.parquet"


@dataclass(frozen=True)
class FusedExtent:
    """What runs. `ratios` of V / R over (T_mma + T_iss0), the most telling first; at `usual_width` it is to be 1."""

    megamoe: Mapping[str, Any] = field(
        default_factory=lambda: {"tokens": 512, "hidden": 1024, "experts": 8, "topk": 2, "ranks": 2}
    )
    usual_width: int = 1024
    width_step: int = 128
    most_width: int = 8192
    ratios: tuple[float, ...] = (1.0, 0.5, 2.0, 0.75, 1.4)
    attention: Attention = field(default_factory=lambda: Attention(tokens=2048, heads=8, head_dim=128, ranks=2))
    pilot_sms: int = 8
    repeats: int = 3


USUAL = FusedExtent()


class FusedCheck:
    """One sweep into `folder`; `machine` is the GPU as calibrated, and nothing begins that would not be over by `until`."""

    def __init__(
        self, devices: Devices, folder: Path, machine: Machine, until: float, extent: FusedExtent = USUAL
    ) -> None:
        self.devices, self.folder, self.machine, self.until, self.extent = devices, folder, machine, until, extent
        self.report: dict[str, Any] = {"runs": [], "not_run": []}
        self.tables: list[pd.DataFrame] = []
        self._longest_s = 0.0

    def run(self) -> dict[str, Any]:
        """Everything that there is time for; what there is to tell. Raises `MeasurementError` for wrong numbers."""
        e = self.extent
        most = self.devices.facts()[0].sms // e.megamoe["ranks"]
        pilot = self._run(
            "megamoe", self._megamoe(e.usual_width), "expert_wave", min(e.pilot_sms, most), {"width": e.usual_width}
        )
        if pilot is None:
            raise MeasurementError("the first run of the fused kernel gave nothing to plan the others by")
        sms, widths = self._choose(pilot["control"], most)
        self.report |= {"sms_per_rank": sms, "widths": widths}
        for ratio, width in widths.items():
            call = self._megamoe(width)
            rows = [
                self._run("megamoe", call, policy, sms, {"width": width, "ratio": float(ratio)})
                for policy in MEGAMOE_POLICIES
            ]
            self._rank(f"megamoe {ratio}", rows)
        rows = [self._run("attention", AttentionCall(e.attention), policy, None, {}) for policy in ATTENTION_POLICIES]
        self._rank("attention", rows)
        self._check()
        return {"runs": len(self.report["runs"]), "not_run": len(self.report["not_run"])}

    def _megamoe(self, width: int) -> MegaMoeCall:
        return MegaMoeCall(MegaMoe(numbers="bf16", intermediate=width, **self.extent.megamoe))

    def _choose(self, control: Mapping[str, float], most: int) -> tuple[int, dict[str, int]]:
        """SMs of a rank, and the width for each ratio, from the times of a tile at the usual width."""
        e, ranks = self.extent, self.extent.megamoe["ranks"]
        per_sm_us = (
            1000 * TILE_BYTES * (1 - 1 / ranks) / self.machine.drain_kbs()
        )  # V / R of one SM; 1 kB/s is 1e-3 B/us
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
        """One policy, noted in the report; None if it did not run."""
        told = {"kernel": kernel, "policy": policy, **more}
        begun = time.perf_counter()
        if begun + self._longest_s > self.until:
            self.report["not_run"].append(told | {"why": "the time was over"})
            self._write()
            return None
        policies = {policy: (MEGAMOE_POLICIES if kernel == "megamoe" else ATTENTION_POLICIES)[policy]}
        try:
            with tempfile.TemporaryDirectory(prefix="xstage-fused-") as name:
                found = run_policies(
                    self.devices, call, policies, TRANSPORT, Path(name), repeats=self.extent.repeats, sms=sms,
                    calibrated=self.machine,
                )  # fmt: skip
                self._keep(Path(name), policy, told)
        except DeviceLostError as error:
            self.report["not_run"].append(told | {"why": str(error)})
            self._write()
            raise
        except XstageError as error:
            self.report["not_run"].append(told | {"why": str(error)})
            self._write()
            return None
        self._longest_s = max(self._longest_s, time.perf_counter() - begun)
        row: dict[str, Any] = {**told, "sms_per_rank": found["sms_per_rank"], **found["policies"][policy]}
        self.report["runs"].append(row)
        self._write()
        return row

    def _keep(self, folder: Path, policy: str, told: dict[str, Any]) -> None:
        """Add the tiles of a run to the table of all."""
        import pandas as pd

        for side in ("far", "control"):
            self.tables.append(pd.read_parquet(folder / f"{policy}-{side}.parquet").assign(**told, side=side))
        with write_whole(self.folder / TILES) as temporary:
            pd.concat(self.tables, ignore_index=True).to_parquet(temporary)

    def _rank(self, what: str, rows: list[dict[str, Any] | None]) -> None:
        """Whether policies come in the same order, and how much faster each is than the first."""
        ran = [Compared(row["policy"], row["far"], row["control"], row["simulated"]) for row in rows if row is not None]
        if len(ran) > 1:
            self.report.setdefault("ranked_alike", {})[what] = ranked_alike(ran)
            self.report.setdefault("speedup", {})[what] = {row.policy: row.speedup(ran[0]) for row in ran}
        self._write()

    def _check(self) -> None:
        for row in self.report["runs"]:
            for side in ("far", "control", "bare"):
                if not row[side]["relative_error"] <= LARGEST_ERROR:
                    raise MeasurementError(
                        f"{row['kernel']}, policy {row['policy']}, {side}: results are off by "
                        f"{row[side]['relative_error']:.2g}, and rounding explains {LARGEST_ERROR:g} at most"
                    )
        failed = [row["why"] for row in self.report["not_run"] if row["why"] != "the time was over"]
        if failed:
            raise MeasurementError(f"{len(failed)} runs failed, the first because {failed[0]}")

    def _write(self) -> None:
        with write_whole(self.folder / REPORT) as temporary:
            temporary.write_text(json.dumps(_finite(self.report), indent=1) + "\n", encoding="utf-8")


def _finite(value: Any) -> Any:
    """Plain data with null for what is no number, such as the error of a stall that was not measured."""
    if isinstance(value, Mapping):
        return {name: _finite(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
