"""The fused kernels' part of the device check: numbers of all policies, and a sweep past the point where stores stall.

A wave of L2 tiles of K SMs stores V = K b f bytes far away, where b is a tile and f the share of rows that belong to other
ranks. The way out takes V / R for that, the SMs T_mma + T_iss0 until the next wave. A short run of the kernel on few SMs
tells T_mma and T_iss0 of a tile, the calibration R; then K is chosen so that both times are equal at a usual expert width.
Two more short runs, on these SMs, tell how T_mma follows the width, and widths are chosen so that V / R over
(T_mma + T_iss0) goes from 0.5 to 2. What the ratio then was is told from the control of each run. All policies run at the
ratio 1.4 first, where much stalls and a few percent of R do not decide how much; then attention with its All-to-All, then
the ratio 2, then the other way to change V: the same SMs and tokens as more ranks, whose rows go to others more often,
f = 1 - 1 / ranks. The other ratios come last: 0.5, where little stalls, then those about 1.

Stores stall once they are ahead of the way out by Q, so a run stores many times Q without a pause: it has as many tokens as
the logs of the SMs have room for, and one expert on each rank, because between the waves of two experts what waits drains.

Numbers need no calibration: without one nothing is simulated, and without any R every policy runs at the usual width.
`fused.json` is written anew after every policy, so that whatever ends a run early, what was measured is kept. A kernel that
ran into its deadline twice, or took the GPU with it four times, is not started again.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
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
from .errors import DeviceLostError, KernelTimeoutError
from .finite_json import as_json
from .fused_calls import ATTENTION_POLICIES, MEGAMOE_POLICIES, AttentionCall, Call, MegaMoeCall
from .fused_compare import Band, Compared, Prediction, Summary, ranked_alike
from .fused_run import SIDES, lowered_policy, measure
from .fused_sweep import among_more_ranks, drain_us, ratios_of, sms_at_ratio_1, widths_for

if TYPE_CHECKING:
    import pandas as pd

TRANSPORT = "host"
LARGEST_ERROR = 0.01
"""Of the results, root mean square over that of the exact ones: rounding to bf16 costs half of it at most."""
MOST_BAD_ENDS = {KernelTimeoutError.__name__: 2, DeviceLostError.__name__: 4}
MOST_OF_LOG = 0.9
"""How full the logs of records may get on average: some SMs run more ops than others."""
MOST_CLOCK_MOVED = 0.02
"""By how much, as a share, the SM clocks of the sides of a run may differ, before that is told."""
RATIO_1 = "1.0"
REPORT, TILES = "fused.json", "fused.parquet"


@dataclass(frozen=True)
class FusedExtent:
    """What runs. `ratios` of V / R over (T_mma + T_iss0), the most telling first; at `usual_width` it is to be 1.

    `megamoe` has the most tokens of a rank that may be; there are fewer, by multiples of `token_step` and down to
    `least_tokens`, until records fit into shared memory. `more_ranks` than those of `megamoe` share its tokens and its SMs
    at the width of ratio 1; they run after the second ratio.
    """

    megamoe: Mapping[str, int] = field(default_factory=lambda: {"tokens": 4096, "hidden": 2048, "topk": 2, "ranks": 2})
    least_tokens: int = 512
    token_step: int = 256
    usual_width: int = 2048
    width_step: int = 64
    most_width: int = 8192
    ratios: tuple[float, ...] = (1.4, 2.0, 0.5, 1.0, 1.2, 0.75)
    more_ranks: tuple[int, ...] = (8, 4)
    attention: Attention = field(
        default_factory=lambda: Attention(tokens=2048, heads=32, head_dim=128, batch=2, ranks=2)
    )
    pilot_sms: int = 8
    repeats: int = 3


USUAL = FusedExtent()


class FusedCheck:
    """One sweep into `folder`; nothing begins that would not be over by `until`.

    `machine` is the GPU as calibrated, to simulate on; `drain_gbs` is R for where nothing is simulated (None: not known).
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
        self.report: dict[str, Any] = {"runs": [], "not_run": [], "ended_badly": {}}
        self.tables: list[pd.DataFrame] = []
        self._simulated: list[tuple[dict[str, Any], Compared, Prediction, Summary]] = []
        self._longest_s: dict[str, float] = {}
        self._noted: Exception | None = None

    def go_on(self) -> None:
        """Take what another process left in the folder as done; what failed in there is not tried again."""
        import pandas as pd

        if (self.folder / REPORT).exists():
            self.report |= json.loads((self.folder / REPORT).read_text(encoding="utf-8")) | {"not_run": []}
            for row in self.report["runs"]:
                for side in SIDES:
                    if side in row:
                        row[side] = {name: math.nan if value is None else value for name, value in row[side].items()}
        if (self.folder / TILES).exists():
            self.tables.append(pd.read_parquet(self.folder / TILES))

    def run(self) -> dict[str, Any]:
        """Everything that there is time for; what there is to tell. Raises `MeasurementError` for wrong numbers."""
        try:
            self._measure()
        except DeviceLostError:
            self._judge()  # the process that goes on has not what it takes
            raise
        self._judge()
        self._check()
        return {"runs": len(self.report["runs"]), "not_run": len(self.report["not_run"])}

    def _judge(self) -> None:
        """Between what each stall is simulated, and whether that agrees: two simulations a run. They need no GPU, and wait
        until it has nothing more to do."""
        for row, one, prediction, summary in self._simulated:
            with self._noting(row, "judgement"):
                assert self.machine is not None
                row["stall_us"] = Band.of(prediction, self.machine, summary, one).judged(one.stall_us())

    def _measure(self) -> None:
        e = self.extent
        sms, widths = self._chosen()
        self.report |= {"sms_per_rank": sms, "widths": widths}
        first, *others = widths.items()
        self._megamoe_policies(*first, sms)
        attention = AttentionCall(e.attention)
        rows = [self._run("attention", attention, policy, None, {}) for policy in ATTENTION_POLICIES]
        self._rank("attention", rows)
        for ratio, width in others[:1]:
            self._megamoe_policies(ratio, width, sms)
        for ranks in e.more_ranks:
            self._more_ranks(ranks, widths.get(RATIO_1, e.usual_width), sms)
        for ratio, width in others[1:]:
            self._megamoe_policies(ratio, width, sms)

    def _chosen(self) -> tuple[int, dict[str, int]]:
        """SMs of a rank, and the width for each ratio; where nothing is known, few SMs and the usual width."""
        e = self.extent
        most = self.devices.facts()[0].sms // e.megamoe["ranks"]
        sms = max(1, min(e.pilot_sms, most))
        pilot = self._pilot(e.usual_width, sms)
        if "widths" in self.report:  # chosen by the process before
            return self.report["sms_per_rank"], self.report["widths"]
        widths = {RATIO_1: e.usual_width}
        if pilot is not None and self.drain_gbs:
            with self._noting(self.report, "choice"):
                ranks = e.megamoe["ranks"]
                sms = sms_at_ratio_1(pilot, ranks, most, self.drain_gbs)
                pilots = {width: self._pilot(width, sms) for width in (e.usual_width, e.usual_width // 2)}
                known = {width: found for width, found in pilots.items() if found is not None} or {e.usual_width: pilot}
                wave_us = drain_us(sms, ranks, self.drain_gbs)
                widths = widths_for(known, wave_us, e.ratios, e.width_step, e.most_width) or widths
        return sms, widths

    def _pilot(self, width: int, sms: int) -> Mapping[str, float] | None:
        """What the control of a short run told; None if it did not run."""
        more = {"width": width, "sms": sms, "tokens": self.extent.least_tokens}
        row = self._run("megamoe", self._megamoe(width, self.extent.least_tokens), "expert_wave", sms, more)
        return None if row is None else row.get("control")

    def _megamoe_policies(self, ratio: str, width: int, sms: int) -> None:
        tokens = self._most_tokens(width, sms, self.extent.megamoe["ranks"])
        call, more = self._megamoe(width, tokens), {"width": width, "ratio": float(ratio), "tokens": tokens}
        self._rank(f"megamoe {ratio}", [self._run("megamoe", call, policy, sms, more) for policy in MEGAMOE_POLICIES])

    def _more_ranks(self, ranks: int, width: int, sms: int) -> None:
        """All policies with the SMs of the usual ranks as `ranks`: as many tiles at once, more of them stored far away."""
        share, ratio = among_more_ranks(sms, self.extent.megamoe["ranks"], ranks)
        tokens = self._most_tokens(width, share, ranks)
        call, more = (
            self._megamoe(width, tokens, ranks),
            {"width": width, "ratio": ratio, "tokens": tokens, "ranks": ranks},
        )
        self._rank(
            f"megamoe {ranks} ranks", [self._run("megamoe", call, name, share, more) for name in MEGAMOE_POLICIES]
        )

    def _megamoe(self, width: int, tokens: int, ranks: int | None = None) -> MegaMoeCall:
        sizes: dict[str, Any] = {**self.extent.megamoe, "tokens": tokens} | ({} if ranks is None else {"ranks": ranks})
        return MegaMoeCall(MegaMoe(numbers="bf16", intermediate=width, experts=sizes["ranks"], **sizes))

    def _most_tokens(self, width: int, sms: int, ranks: int) -> int:
        """Tokens of a rank whose records the logs of its SMs have room for: one that does not fit is written at once, which
        holds up its lane and what waits for that."""
        e = self.extent
        share = e.megamoe["ranks"] / ranks
        tokens = e.megamoe["tokens"]
        while tokens > e.least_tokens:
            full = self._log_share(self._megamoe(width, int(tokens * share), ranks), sms)
            if full <= MOST_OF_LOG:
                break
            tokens = max(e.least_tokens, int(tokens * MOST_OF_LOG / full) // e.token_step * e.token_step)
        return max(1, int(tokens * share))

    def _log_share(self, call: MegaMoeCall, sms: int) -> float:
        """How full the logs get by the policy that has the most records; one that cannot run is told where it is to."""
        shares = [0.0]
        for policy in MEGAMOE_POLICIES.values():
            with suppress(XstageError):
                _, fused, _ = lowered_policy(self.devices, call, policy, TRANSPORT, sms=sms)
                shares.append(fused.lowered.log_share())
        return max(shares)

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
        is_over = begun + self._longest_s.get(kernel, 0.0) > self.until
        if (why := "the time was over" if is_over else self._why_not(kernel)) is not None:
            self.report["not_run"].append(row | {"why": why})
            self._write()
            return None
        runs.append(row)
        self._write()
        tables: dict[str, pd.DataFrame] = {}
        with self._noting(row, "build"):
            chosen = (MEGAMOE_POLICIES if kernel == "megamoe" else ATTENTION_POLICIES)[policy]
            program, fused, row["sms_per_rank"] = lowered_policy(self.devices, call, chosen, TRANSPORT, sms=sms)
            for side in SIDES:
                if (why := self._why_not(kernel)) is not None:
                    row["not_run"] = why
                    break
                with self._noting(row, side):
                    row[side], table = measure(call, program, fused, self.devices, TRANSPORT, self.extent.repeats, side)
                    if table is not None:
                        tables[side] = table
            if (moved := _clock_moved(row)) > MOST_CLOCK_MOVED:
                row["clock_moved_pct"] = 100 * moved
            if self.machine is not None and len(tables) == 2:
                with self._noting(row, "simulation"):
                    prediction = Prediction.of(program, tables["control"], TRANSPORT)
                    one = Compared(policy, row["far"], row["control"], call.summary(prediction.on(self.machine)))
                    told = one.as_dict()
                    row |= {name: told[name] for name in ("simulated", "stall_us", "error_pct")}
                    self._simulated.append((row, one, prediction, call.summary))
            if kernel == "megamoe" and "control" in row and self.drain_gbs:
                row |= ratios_of(row["control"], drain_us(row["sms_per_rank"], call.ranks, self.drain_gbs))
        # The first run of a kernel compiles it, which no other does.
        took_s = time.perf_counter() - begun if kernel in self._longest_s else 0.0
        self._longest_s[kernel] = max(self._longest_s.get(kernel, 0.0), took_s)
        with self._noting(row, "table"):
            self._keep(call, tables, {"kernel": kernel, "policy": policy, **more})
        return row

    def _why_not(self, kernel: str) -> str | None:
        """Why a kernel is not started again: each of these ends takes as long as many good runs."""
        ended = self.report["ended_badly"].get(kernel, {})
        for name, most in MOST_BAD_ENDS.items():
            if ended.get(name, 0) >= most:
                return f"this kernel ended in {name} {most} times"
        return None

    @contextmanager
    def _noting(self, row: dict[str, Any], doing: str) -> Iterator[None]:
        """What fails in here is noted, whatever it is, and only a lost GPU ends more than this."""
        try:
            yield
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
            if error is not self._noted:  # a lost GPU ends what is around as well
                row.setdefault("failed", {})[doing] = why
                ended = self.report["ended_badly"].setdefault(row.get("kernel", "all"), {})
                ended[type(error).__name__] = ended.get(type(error).__name__, 0) + 1
            self._noted = error
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
            temporary.write_text(as_json(self.report), encoding="utf-8")


def _clock_moved(row: Mapping[str, Any]) -> float:
    """By how much the fastest SM clock of the sides of a run is above the slowest."""
    clocks = [row[side]["sm_mhz"] for side in SIDES if side in row]
    return max(clocks) / min(clocks) - 1 if clocks else 0.0
