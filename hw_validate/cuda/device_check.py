"""Everything worth knowing from a few minutes on one GPU:  python -m xstage.hw_validate.cuda.device_check -o DIR

Needs NumPy and CuPy; with the other packages of xstage it also fits, simulates and draws, without them the results wait in
DIR for `xstage validate --backend cuda --results DIR/host.npz` elsewhere. Runs in the order of what is worth most, writes
after each part, and begins nothing new when its time is over:

    start.json     which GPU, driver and host these are, and what the kernels need; written first
    host.npz       bursts, trains, numbers of producers, costs; a dozen unseen Programs; then the other microbenchmarks
    local.npz      bursts and trains into the GPU's own memory: the control
    check.json     what became of each step, what each microbenchmark took; calibration and comparison, if they could be made
    machine.yaml, programs.parquet, ops.parquet, report.html    the same, for machines and people
    fused.json, fused.parquet    the fused kernels: numbers and times of all policies, and tiles (device_check_fused.py)

Exit codes: 0 all steps done, 2 bad input, 1 some step failed (the others are kept, and check.json says which).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...sim.calibrate import NoLawError
from ...sim.errors import InputError, XstageError
from ...sim.files import write_whole
from ..measuring import MeasurementError
from .collect import AGAIN_ROUNDS, Settings, collect, collect_more, cupy_devices
from .container import Container, load
from .device import Devices
from .errors import DeviceLostError
from .noted import Noted
from .parts import CALIBRATION_PARTS, Extent
from .planning import plan
from .run_bursts import THREADS
from .summary import microbenchmarks
from .trains import draw_by_law, rough_stage
from .transport import USUAL_BYTES, peer_matrix

if TYPE_CHECKING:
    from ...sim.machine import Machine
    from ...sim.program import Program
    from .device_check_fused import FusedExtent

EXTENT = Extent(sizes=32, rounds=16, train_rounds=6, train_bursts=32, sweep_rounds=6)
BUDGET_S = 330.0
PROGRAMS, REPEATS = 12, (9, 4)
RANKS = (1, 2, 4)
"""Programs take these in turn: several ranks on one GPU share its egress and its Q."""
CONTROL_PARTS = ("clock", "bursts", "trains")
LATER_PARTS = ("completion", "width", "neighbours", "feed", "bulk")
LARGEST_FILE_BYTES = 16 << 20


class DeviceCheck:
    """One check into `folder`. `devices` must be one GPU or more; only the first is used."""

    def __init__(
        self,
        devices: Devices,
        folder: Path,
        budget_s: float = BUDGET_S,
        seed: int = 0,
        extent: Extent = EXTENT,
        settings: Settings | None = None,
        fused_extent: FusedExtent | None = None,
    ) -> None:
        self.devices, self.folder, self.seed, self.extent = devices, folder, seed, extent
        self.settings = settings or Settings(most_bytes=USUAL_BYTES, threads=THREADS)
        self.until = time.perf_counter() + budget_s
        self.report: dict[str, Any] = {"steps": {}}
        self.machine: Machine | None = None
        self.fused_extent = fused_extent

    def run(self) -> bool:
        """All steps that there is time for. Whether none failed."""
        steps = (self.start, self.host, self.programs, self.local, self.analysis, self.fused, self.later)
        lost = False
        for step in steps:
            name, begun = step.__name__, time.perf_counter()
            if name != "analysis" and (lost or begun > self.until):
                why = "the GPU was lost before" if lost else "the time was over"
                self.report["steps"][name] = {"state": "not run", "why": why}
                continue
            print(f"device check: {name}", file=sys.stderr)
            try:
                told = step() or {}
                self.report["steps"][name] = {"state": "done", **told}
            except XstageError as error:
                lost = lost or isinstance(error, DeviceLostError)
                self.report["steps"][name] = {"state": "failed", "why": str(error), "error": type(error).__name__}
            self.report["steps"][name]["wall_s"] = time.perf_counter() - begun
            self._write("check.json", self.report)
        self._summarise()
        self.report["files"] = {
            path.name: path.stat().st_size for path in sorted(self.folder.iterdir()) if path.is_file()
        }
        self._write("check.json", self.report)
        return all(told["state"] != "failed" for told in self.report["steps"].values())

    def start(self) -> None:
        found = self.devices.facts()
        facts = {
            "platform": self.devices.platform(),
            "devices": [asdict(one) for one in found],
            "peer_matrix": peer_matrix(self.devices),
            "now": self.devices.now(found[0].index),
            "kernels": {
                source: self.devices.prepare(found[0].index, f"{source}.cu", [source])
                for source in ("bursts", "replay")
            },
        }
        self._write("start.json", facts)

    def host(self) -> dict[str, Any]:
        return self._collect(self._plan(CALIBRATION_PARTS), "host", "host.npz")

    def programs(self) -> dict[str, Any]:
        """Programs drawn around the knee that the bursts just showed; only their sizes come from it."""
        results = load(self.folder / "host.npz", "results")
        rng = np.random.default_rng([self.seed, 1])
        drawn = _drawn_for_the_machine(results, rng) or _drawn_by_law(results, rng)
        told = self._collect(self._plan(("clock", "bursts"), drawn, AGAIN_ROUNDS), "host", "host.npz", results)
        return told | {"programs": [str(program.meta["schedule"]) for program in drawn]}

    def local(self) -> dict[str, Any]:
        return self._collect(self._plan(CONTROL_PARTS), "local", "local.npz")

    def later(self) -> dict[str, Any]:
        return self._collect(self._plan(LATER_PARTS), "host", "host.npz", load(self.folder / "host.npz", "results"))

    def analysis(self) -> dict[str, Any]:
        """Fit and compare, if the packages for it are here."""
        try:
            from ..validate import validate
        except ImportError as error:
            missing = getattr(error, "name", None) or str(error)
            return {"state": "skipped", "why": f"{missing} is not installed here; run `{self._elsewhere()}`"}
        found = validate("cuda", results=self.folder / "host.npz")
        self.report |= found.as_dict()
        self.machine = found.calibrated.machine
        found.calibrated.write(self.folder / "machine.yaml")
        found.write_ops(self.folder / "ops.parquet")
        with write_whole(self.folder / "programs.parquet") as temporary:
            found.programs().to_parquet(temporary)
        found.report(self.folder / "report.html")
        return {"verdict": found.summary.verdict}

    def fused(self) -> dict[str, Any]:
        """The fused kernels on the machine just calibrated, if the packages for it are here."""
        try:
            from .device_check_fused import USUAL, FusedCheck
        except ImportError as error:
            missing = getattr(error, "name", None) or str(error)
            return {"state": "skipped", "why": f"{missing} is not installed here; the fused kernels need it"}
        if self.machine is None:
            raise MeasurementError("there is no calibrated machine to choose sizes by, and to simulate on")
        return FusedCheck(self.devices, self.folder, self.machine, self.until, self.fused_extent or USUAL).run()

    def _summarise(self) -> None:
        """What every configuration took, for those who have nothing but this file."""
        found = {}
        for name in ("host", "local"):
            if (path := self.folder / f"{name}.npz").exists():
                found[name] = microbenchmarks(load(path, "results"))
        self.report["microbenchmarks"] = found

    def _elsewhere(self) -> str:
        return f"xstage validate --backend cuda --results {self.folder / 'host.npz'}"

    def _plan(self, parts: tuple[str, ...], programs: Sequence[Any] = (), rounds: int | None = None) -> Container:
        extent = self.extent if rounds is None else replace(self.extent, rounds=rounds)
        return plan(seed=self.seed, transport="host", parts=parts, extent=extent, programs=programs, repeats=REPEATS)

    def _collect(self, made: Container, transport: str, name: str, before: Container | None = None) -> dict[str, Any]:
        """Run a plan; with results from before, add to them. What was measured until a failure is kept."""
        left = max(1.0, self.until - time.perf_counter())
        given = self.settings
        settings = Settings(transport, None, left, given.most_bytes, given.ctas, given.threads)
        if before is None:
            results = collect(made, self.devices, self.folder / name, settings)
        else:
            results = collect_more(before, made, self.devices, self.folder / name, settings)
        return {"parts": {part: told["state"] for part, told in results.header["parts"].items()}}

    def _write(self, name: str, content: dict[str, Any]) -> None:
        text = json.dumps(content, indent=1, default=str) + "\n"
        with write_whole(self.folder / name) as temporary:
            temporary.write_text(text, encoding="utf-8")


def _drawn_for_the_machine(results: Container, rng: np.random.Generator) -> list[Program]:
    """Trains of one rank and of several, and schedules; none where the packages to fit and simulate are missing."""
    try:
        from .calibration import calibrate
        from .unseen import Ranks, unseen_traces
    except ImportError:
        return []
    try:
        found = calibrate(results)
        traces = unseen_traces(found.machine, found.seen.calibration.producers, PROGRAMS, rng, Ranks())
    except NoLawError:
        return []  # a rougher look may still find a knee
    return [trace.program for trace in traces]


def _drawn_by_law(results: Container, rng: np.random.Generator) -> list[Program]:
    """Trains alone, with nothing but NumPy."""
    noted = Noted.of(results.under("part/bursts"), results.header["plan"]["parts"]["bursts"]["groups"])
    producers = int(noted.table["producers"][noted.rows("isolated")[0]])
    return draw_by_law(rough_stage(noted), producers, PROGRAMS, rng, RANKS)


def main(arguments: Sequence[str] | None = None, devices: Callable[[], Devices] | None = None) -> int:
    """The command line; `devices` makes the devices (default: CuPy's)."""
    parser = argparse.ArgumentParser(prog="python -m xstage.hw_validate.cuda.device_check", description=_summary())
    parser.add_argument("-o", "--output", required=True, metavar="DIR", help="a folder; made if it is not there")
    parser.add_argument("--budget", type=float, default=BUDGET_S, metavar="SECONDS", help="default: %(default)g")
    parser.add_argument("--seed", type=int, default=0)
    try:
        given = parser.parse_args(arguments)
    except SystemExit as asked:
        return int(asked.code or 0)
    try:
        if given.budget <= 0:
            raise InputError("is no time", field="--budget", value=given.budget, allowed="seconds above 0")
        folder = Path(given.output)
        if folder.exists() and not folder.is_dir():
            raise InputError("is not a folder", field="--output", value=given.output)
        folder.mkdir(parents=True, exist_ok=True)
        check = DeviceCheck((devices or cupy_devices)(), folder, given.budget, given.seed)
        good = check.run()
    except InputError as error:
        print(f"device check: {error}", file=sys.stderr)
        return 2
    except XstageError as error:
        print(f"device check: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("device check: interrupted; what was measured is kept", file=sys.stderr)
        return 1
    print(json.dumps({name: told["state"] for name, told in check.report["steps"].items()}))
    for name, size in check.report["files"].items():
        if size > LARGEST_FILE_BYTES:
            print(f"device check: {name} has {size} bytes, more than {LARGEST_FILE_BYTES}", file=sys.stderr)
    return 0 if good else 1


def _summary() -> str:
    return (__doc__ or "").partition("\n")[0]


if __name__ == "__main__":
    sys.exit(main())
