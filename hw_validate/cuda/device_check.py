"""Everything worth knowing from a few minutes on one GPU:  python -m xstage.hw_validate.cuda.device_check -o DIR

Needs NumPy and CuPy; with the other packages named below it also fits and simulates, and runs the fused kernels. Without
them the results wait in DIR for `xstage validate --backend cuda --results DIR/host.npz` elsewhere; which are missing is said
first. Runs in the order of what is worth most, writes after each part, and begins nothing new when its time is over:

    check.json     which GPU, driver and host these are, and what the kernels need; what became of each step, what each
                   microbenchmark took; calibration and comparison, if they could be made
    host.npz       bursts, trains, numbers of producers, costs; a dozen unseen Programs; then the other microbenchmarks
    local.npz      bursts and trains into the GPU's own memory: the control
    fused.json, fused.parquet    the fused kernels: numbers and times of all policies, and tiles (device_check_fused.py)
    machine.yaml, ops.parquet    calibration and comparison; `xstage validate` makes a page of host.npz elsewhere

A step that fails, for whatever reason, ends nothing but itself. If it takes the GPU with it, a new process goes on with the
steps behind it, and with the fused kernels that had not run.

Exit codes: 0 no step failed, 2 bad input, 1 some step failed, or needs a package that is not here (the others are kept, and
check.json says which).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ...sim.errors import InputError, XstageError
from ...sim.files import write_whole
from ..measuring import MeasurementError
from .cautions import cautions
from .collect import AGAIN_ROUNDS, Settings, collect, collect_more, cupy_devices
from .container import Container, load
from .device import Devices
from .errors import DeviceLostError, NoGpuError
from .finite_json import as_json
from .noted import Noted
from .parts import CALIBRATION_PARTS, Extent
from .planning import plan
from .run_bursts import THREADS
from .summary import microbenchmarks
from .trains import draw_by_law, made_up_stage, rough_stage
from .transport import USUAL_BYTES, peer_matrix

if TYPE_CHECKING:
    from ...sim.machine import Machine
    from ...sim.program import Program
    from ..validation import Validation
    from .device_check_fused import FusedExtent

EXTENT = Extent(sizes=32, rounds=16, train_rounds=6, train_bursts=32, sweep_rounds=6)
BUDGET_S = 330.0
PROGRAMS, REPEATS = 12, (9, 4)
RANKS = (1, 2, 4)
"""Programs take these in turn: several ranks on one GPU share its egress and its Q."""
CONTROL_PARTS = ("clock", "bursts", "trains")
MORE_PARTS = ("completion", "width", "neighbours", "feed", "bulk")
"""Before the fused kernels, which take all the time that is left: they say what stores, releases and loads cost there."""
STEPS = ("start", "host", "programs", "local", "analysis", "more", "fused", "summary", "reporting")
WITHOUT_GPU = ("analysis", "summary", "reporting")
"""Steps that run even if the GPU is lost or the time over."""
PACKAGES = ("pydantic", "yaml", "numba", "scipy", "pandas", "pyarrow")
"""What fitting, simulating, the fused kernels and the table of ops need beside NumPy."""
NEEDED = {"numba": "to simulate: no comparison. The SimPy engine would take minutes of the GPU's time for the same"}
_REST = "to fit, to simulate and for the fused kernels"
LARGEST_FILE_BYTES = 16 << 20


class DeviceCheck:
    """One check into `folder`. `devices` must be one GPU or more; only the first is used. None: what needs no GPU.

    With `steps` it goes on with these where another process ended. `renew` is to start such a process with the steps that
    it is given, when this one has lost the GPU, and tells whether all went well; without it no more is measured then.
    """

    def __init__(
        self,
        devices: Devices | None,
        folder: Path,
        budget_s: float = BUDGET_S,
        seed: int = 0,
        extent: Extent = EXTENT,
        settings: Settings | None = None,
        fused_extent: FusedExtent | None = None,
        steps: Sequence[str] | None = None,
        renew: Callable[[list[str]], bool] | None = None,
    ) -> None:
        self._devices, self.folder, self.seed, self.extent = devices, folder, seed, extent
        self.settings = settings or Settings(most_bytes=USUAL_BYTES, threads=THREADS)
        self.until = time.perf_counter() + budget_s
        self.steps, self.goes_on, self.renew = steps or STEPS, steps is not None, renew
        self.report: dict[str, Any] = {"steps": {}}
        if self.goes_on and (folder / "check.json").exists():
            self.report = json.loads((folder / "check.json").read_text(encoding="utf-8"))
        self.machine: Machine | None = None
        self.validation: Validation | None = None
        self.fused_extent = fused_extent

    def run(self) -> bool:
        """All steps that there is time for. Whether none failed, or was skipped for want of a package."""
        lost, left = self._devices is None, list(self.steps)
        while left:
            name, begun = left.pop(0), time.perf_counter()
            if name not in WITHOUT_GPU and (lost or begun > self.until):
                why = "the GPU was lost before" if lost else "the time was over"
                if self.report["steps"].get(name, {}).get("state") != "failed":  # in the process before this one
                    self.report["steps"][name] = {"state": "not run", "why": why}
                continue
            print(f"device check: {name}", file=sys.stderr)
            try:
                told = getattr(self, name)() or {}
                self.report["steps"][name] = {"state": "done", **told}
            except Exception as error:  # whatever it is: the other steps tell more, and this GPU may be here only once
                lost = lost or isinstance(error, DeviceLostError)
                self.report["steps"][name] = {"state": "failed", **_said(error)}
            self.report["steps"][name]["wall_s"] = time.perf_counter() - begun
            self._write("check.json", self.report)
            # The fused kernels go on as well: each run is noted before it can take the GPU with it.
            again = ["fused"] * (name == "fused") + left
            if self._devices is not None and lost and self.renew is not None and set(again) - set(WITHOUT_GPU):
                return self.renew(again)
        self.report["files"] = {
            path.name: path.stat().st_size for path in sorted(self.folder.iterdir()) if path.is_file()
        }
        self._write("check.json", self.report)
        return not self.not_done()

    def not_done(self) -> dict[str, str]:
        """By step, why it failed or was skipped."""
        steps = self.report["steps"].items()
        return {name: told["why"] for name, told in steps if told["state"] in ("failed", "skipped")}

    @property
    def devices(self) -> Devices:
        if self._devices is None:
            raise NoGpuError("there is no GPU")
        return self._devices

    def start(self) -> None:
        self.report["missing"] = not_loading(PACKAGES)
        for name, why in self.report["missing"].items():
            print(
                f"device check: {name} does not load, which is needed {NEEDED.get(name, _REST)}: {why}", file=sys.stderr
            )
        found = self.devices.facts()
        self.report["start"] = {
            "platform": self.devices.platform(),
            "devices": [asdict(one) for one in found],
            "peer_matrix": peer_matrix(self.devices),
            "now": self.devices.now(found[0].index),
        }
        self._write("check.json", self.report)
        self.report["start"]["kernels"] = {
            source: self.devices.prepare(found[0].index, f"{source}.cu", [source]) for source in ("bursts", "replay")
        }

    def host(self) -> dict[str, Any]:
        return self._collect(self._plan(CALIBRATION_PARTS), "host", "host.npz")

    def programs(self) -> dict[str, Any]:
        """Programs drawn around the knee that the bursts just showed; only their sizes come from it."""
        results = load(self.folder / "host.npz", "results")
        if (bursts := results.header["parts"]["bursts"])["state"] != "done":
            cause = bursts if bursts["state"] == "failed" else results.header.get("failed", bursts)
            raise MeasurementError(f"there are no bursts to draw programs around: {cause['why']}")
        rng = np.random.default_rng([self.seed, 1])
        try:
            drawn, more = self._drawn_for_the_machine(results, rng), {}
        except Exception as error:  # no law, or no packages to fit and simulate with: a rougher look tells enough
            drawn, more = _drawn_by_law(results, rng), {"drawn_by_law_because": f"{type(error).__name__}: {error}"}
        told = self._collect(self._plan(("clock", "bursts"), drawn, AGAIN_ROUNDS), "host", "host.npz", results)
        return told | more | {"programs": [str(program.meta["schedule"]) for program in drawn]}

    def local(self) -> dict[str, Any]:
        return self._collect(self._plan(CONTROL_PARTS), "local", "local.npz")

    def more(self) -> dict[str, Any]:
        return self._collect(self._plan(MORE_PARTS), "host", "host.npz", load(self.folder / "host.npz", "results"))

    def analysis(self) -> dict[str, Any]:
        """Fit and compare, if the packages for it are here."""
        try:
            from ..validate import calibrate, validate
        except ImportError as error:
            return {"state": "skipped", "why": f"{_missing(error)}; run `{self._elsewhere()}`"}
        calibrated = calibrate("cuda", results=self.folder / "host.npz")
        self.machine = calibrated.machine
        self.report["calibration"] = calibrated.as_dict()
        calibrated.write(self.folder / "machine.yaml")
        try:
            self.validation = validate("cuda", results=self.folder / "host.npz")
        except ImportError as error:
            why = f"{_missing(error)}: calibrated, but nothing simulated; run `{self._elsewhere()}`"
            return {"state": "skipped", "why": why}
        self.report |= self.validation.as_dict()
        self.report["programs"] = self.validation.programs().to_dict("records")
        return {"verdict": self.validation.summary.verdict}

    def fused(self) -> dict[str, Any]:
        """The fused kernels, on the machine just calibrated if there is one, and if the packages for it are here."""
        try:
            from ...scenarios.machine_files import load_machine
            from .device_check_fused import USUAL, FusedCheck
        except ImportError as error:
            return {"state": "skipped", "why": f"{_missing(error)}; the fused kernels need it"}
        if self.goes_on and self.machine is None and (path := self.folder / "machine.yaml").exists():
            self.machine = load_machine(str(path))
        extent = self.fused_extent or USUAL
        machine = None if "numba" in self.report.get("missing", {}) else self.machine  # then there is no simulation
        drain_gbs = self._rough_drain_gbs() if self.machine is None else self.machine.drain_kbs() / 1e6
        check = FusedCheck(self.devices, self.folder, machine, self.until, extent, drain_gbs)
        if self.goes_on:
            check.go_on()
        return check.run()

    def summary(self) -> None:
        """What every configuration took, for those who have nothing but this file, and what speaks against a calibration."""
        found = {}
        for name in ("host", "local"):
            if (path := self.folder / f"{name}.npz").exists():
                found[name] = microbenchmarks(load(path, "results"))
        self.report["microbenchmarks"] = found
        rows = found.get("host", [])
        self.report["cautions"] = cautions(rows, *self._as_calibrated(rows))

    def _as_calibrated(self, rows: Sequence[dict[str, Any]]) -> tuple[float | None, float | None]:
        """The knee in bytes and Q / R in ns by the calibration, as it tells its own cautions by; None: there is none."""
        told = self.report.get("calibration")
        if told is None:
            return None, None
        is_of_all = told["producers"] == max(row["producers"] for row in rows if row["group"] == "isolated")
        return told["knee_bytes"] if is_of_all else 0.0, told["capacity_bytes"] / told["drain_gbs"]

    def reporting(self) -> dict[str, Any]:
        """The table of ops, and the command that makes a page: what takes time and needs no GPU comes last."""
        if "analysis" not in self.steps and (self.folder / "machine.yaml").exists():  # the process before did it
            self.analysis()
        if self.validation is None:
            return {"state": "skipped", "why": "there is no comparison to report on"}
        self.validation.write_ops(self.folder / "ops.parquet")
        return {"page": f"{self._elsewhere()} --report report.html"}

    def _rough_drain_gbs(self) -> float | None:
        """R as the scout of the host link told it."""
        path = self.folder / "host.npz"
        scouted = load(path, "results").header.get("scout", {}) if path.exists() else {}
        return scouted.get("drain_gbs")

    def _drawn_for_the_machine(self, results: Container, rng: np.random.Generator) -> list[Program]:
        """Trains of one rank and of several, and schedules. Raises `NoLawError`, `InputError`, `ImportError`."""
        from .calibration import calibrate
        from .unseen import Ranks, unseen_traces

        found = calibrate(results)
        traces = unseen_traces(found.machine, found.seen.calibration.producers, PROGRAMS, rng, Ranks())
        return [trace.program for trace in traces]

    def _elsewhere(self) -> str:
        return f"xstage validate --backend cuda --results {self.folder / 'host.npz'}"

    def _plan(self, parts: tuple[str, ...], programs: Sequence[Any] = (), rounds: int | None = None) -> Container:
        extent = self.extent if rounds is None else replace(self.extent, rounds=rounds)
        return plan(seed=self.seed, transport="host", parts=parts, extent=extent, programs=programs, repeats=REPEATS)

    def _collect(self, made: Container, transport: str, name: str, before: Container | None = None) -> dict[str, Any]:
        """Run a plan; with results from before, add to them. What was measured until a failure is kept."""
        left = max(1.0, self.until - time.perf_counter())
        settings = replace(self.settings, transport=transport, budget_s=left)
        if before is None:
            results = collect(made, self.devices, self.folder / name, settings)
        else:
            results = collect_more(before, made, self.devices, self.folder / name, settings)
        return {"parts": {part: told["state"] for part, told in results.header["parts"].items()}}

    def _write(self, name: str, content: dict[str, Any]) -> None:
        with write_whole(self.folder / name) as temporary:
            temporary.write_text(as_json(content), encoding="utf-8")


def _drawn_by_law(results: Container, rng: np.random.Generator) -> list[Program]:
    """Trains alone, with nothing but NumPy. Where no knee is to be seen they tell nothing of it, but that replays run."""
    noted = Noted.of(results.under("part/bursts"), results.header["plan"]["parts"]["bursts"]["groups"])
    producers = int(noted.table["producers"][noted.rows("isolated")[0]])
    try:
        stage = rough_stage(noted)
    except InputError:
        stage = made_up_stage(results.header["scout"]["drain_gbs"], producers)
    return draw_by_law(stage, producers, PROGRAMS, rng, RANKS)


def _in_a_new_process(steps: list[str], until: float) -> bool:
    """Replace this process by one with the same command for these steps: only that gets rid of what the GPU still does."""
    left = f"{max(1.0, until - time.perf_counter()):.0f}"
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:], "--steps", ",".join(steps), "--budget", left])


def _said(error: Exception) -> dict[str, Any]:
    """What to note of an error; of one that nobody thought of, where it came from as well."""
    told = {"why": str(error), "error": type(error).__name__}
    return told if isinstance(error, XstageError) else told | {"traceback": "".join(traceback.format_exception(error))}


def not_loading(packages: Sequence[str]) -> dict[str, str]:
    """Which of these do not load, and why: one that is installed may refuse the version of another."""
    found = {}
    for name in packages:
        try:
            import_module(name)
        except Exception as error:  # of whatever kind: it is the package that does not work here
            found[name] = f"{type(error).__name__}: {error}"
    return found


def _missing(error: ImportError) -> str:
    gone = isinstance(error, ModuleNotFoundError) and error.name
    return f"{error.name} is not installed here" if gone else f"a package does not load here ({error})"


def main(arguments: Sequence[str] | None = None, devices: Callable[[], Devices] | None = None) -> int:
    """The command line; `devices` makes the devices (default: CuPy's)."""
    parser = argparse.ArgumentParser(prog="python -m xstage.hw_validate.cuda.device_check", description=_summary())
    parser.add_argument("-o", "--output", required=True, metavar="DIR", help="a folder; made if it is not there")
    parser.add_argument("--budget", type=float, default=BUDGET_S, metavar="SECONDS", help="default: %(default)g")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--steps", help=f"only these, with commas between, for DIR that has the others: {', '.join(STEPS)}"
    )
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
        steps = None if given.steps is None else given.steps.split(",")
        if unknown := [name for name in steps or () if name not in STEPS]:
            raise InputError("are no steps", field="--steps", value=unknown, allowed=STEPS)
        folder.mkdir(parents=True, exist_ok=True)
        until = time.perf_counter() + given.budget
        renew = None if devices is not None else (lambda left: _in_a_new_process(left, until))
        found = _devices_left(devices or cupy_devices, steps is not None)
        check = DeviceCheck(found, folder, given.budget, given.seed, steps=steps, renew=renew)
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
    for name, why in check.not_done().items():
        print(f"device check: {name}: {why}", file=sys.stderr)
    for name, size in check.report["files"].items():
        if size > LARGEST_FILE_BYTES:
            print(f"device check: {name} has {size} bytes, more than {LARGEST_FILE_BYTES}", file=sys.stderr)
    return 0 if good else 1


def _devices_left(make: Callable[[], Devices], goes_on: bool) -> Devices | None:
    """The devices; None if there are none any more where another process had some."""
    try:
        return make()
    except (NoGpuError, DeviceLostError):
        if not goes_on:
            raise
        return None


def _summary() -> str:
    return (__doc__ or "").partition("\n")[0]


if __name__ == "__main__":
    sys.exit(main())
