"""Run a plan on the GPUs of this computer:  python hw_validate/cuda/run_here.py collect PLAN.npz -o RESULTS.npz

Needs NumPy and CuPy and nothing else, not even xstage installed, so that it runs on a bare cluster node; plans are
made, and results are read, elsewhere (`xstage calibrate|validate --backend cuda --plan FILE | --results FILE`). The
results are written after every part, so that whatever ends a run early, what was measured is kept; they say which
parts are whole, and why others are not.

Exit codes: 0 all parts that this computer can run have run, 2 bad input, 1 failure.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ...sim.calibrate import LEAST_SLOPE_RATIO
from ...sim.errors import InputError, XstageError
from ...sim.files import check_not_read, check_output
from ..measuring import Progress, silent
from .clocks import joined, offsets_now
from .container import SUFFIXES, Container, load, merged, save
from .device import Devices
from .errors import DeviceLostError
from .experiments import Table
from .noted import Noted, knee_ratio
from .parts import AGAIN, PARTS, runs_here
from .run_bursts import THREADS, BurstRunner, scout, wake
from .run_programs import Replays, run_programs
from .transport import AUTO, TRANSPORTS, USUAL_BYTES, Transport, open_transport, peer_matrix

CLOCK_MOVED_PCT = 2.0
AGAIN_ROUNDS = 3
LAST_PARTS = ("completion", "width", "neighbours", "feed", "bulk", "incast")
"""Parts that come after the Programs: they tell more, but nothing is built on them."""
INTERRUPTED = 1


@dataclass(frozen=True)
class Settings:
    """How to measure. `budget_s` is the time after which no further part is begun."""

    transport: str = AUTO
    gpus: int | None = None
    budget_s: float | None = None
    most_bytes: int = USUAL_BYTES
    ctas: int | None = None
    threads: int = THREADS


class Collector:
    """One run of a plan. `results` grows part by part, and is written to `output` each time."""

    def __init__(
        self, plan: Container, devices: Devices, output: str | Path, settings: Settings, progress: Progress
    ) -> None:
        self.plan, self.devices, self.output = plan, devices, output
        self.settings, self.progress = settings, progress
        self.started = time.perf_counter()
        names = [name for name in PARTS if name in plan.header["parts"]]  # in the order of what they are worth
        names += ["programs"] if plan.header.get("programs") else []
        self.order = [n for n in names if n not in LAST_PARTS] + [n for n in names if n in LAST_PARTS]
        self.order += [again for again, part in AGAIN.items() if part in names]
        header = {
            "plan": plan.header,
            "plan_digest": plan.digest(),
            "machine": {
                "platform": devices.platform(),
                "devices": [asdict(one) for one in devices.facts()],
                "peer_matrix": peer_matrix(devices),
            },
            "transport": {},
            "warnings": [],
            "parts": {name: {"state": "not run", "why": "the run ended before"} for name in self.order},
            "complete": False,
        }
        self.results = Container("results", header, dict(plan.arrays))

    @property
    def header(self) -> dict[str, Any]:
        return self.results.header

    def run(self) -> Container:
        """Run all parts. A part that fails does not keep the others from running, unless the GPU is lost or this process is
        to end. The first error is raised in the end, when all that was measured has been written, marked as partial."""
        self._save()
        part, failures = "start", []
        try:
            s = self.settings
            with open_transport(self.devices, s.transport, s.gpus, s.most_bytes) as transport:
                self._note_transport(transport)
                with BurstRunner(self.devices, transport, s.ctas, s.threads) as runner:
                    self._scout(runner)
                    for number, part in enumerate(self.order):
                        self.progress(f"measuring {part}", number / len(self.order))
                        try:
                            self._part(part, runner, transport)
                        except DeviceLostError:
                            raise
                        except Exception as error:  # also one that nobody thought of: this GPU may be here only once
                            self._note_failure(part, error)
                            failures.append(error)
        except BaseException as error:
            self._note_failure(part, error)
            raise
        if failures:
            raise failures[0]
        self.header["complete"] = all(p["state"] in ("done", "skipped") for p in self.header["parts"].values())
        self._save()
        return self.results

    def _note_failure(self, part: str, error: BaseException) -> None:
        why = str(error) if isinstance(error, XstageError) else f"{type(error).__name__} {error}".strip()
        self.header.setdefault("failed", {"part": part, "why": why})
        if part in self.header["parts"]:
            self.header["parts"][part] |= {"state": "failed", "why": why}
        self._save()

    def _part(self, name: str, runner: BurstRunner, transport: Transport) -> None:
        told = self.header["parts"][name]
        spent = time.perf_counter() - self.started
        if self.settings.budget_s is not None and spent > self.settings.budget_s:
            told |= {"state": "not run", "why": f"the budget of {self.settings.budget_s:g} s was spent"}
            return
        rank = transport.ranks[0]
        if (why := runs_here(name, transport.name, rank.compute_capability, transport.n_ranks)) is not None:
            told |= {"state": "skipped", "why": why}
            return
        _, is_steady = wake(runner)
        if not is_steady:
            self._warn(f"{name}: the SM clock was not steady before it, or below half of the stated one")
        begun = time.perf_counter()
        more = self._programs(runner, transport) if name == "programs" else self._bursts(name, runner)
        told |= {"state": "done", "why": None, "after": self.devices.now(rank.index)}
        told |= {"wall_s": time.perf_counter() - begun, **more}
        self._save()

    def _bursts(self, name: str, runner: BurstRunner) -> dict[str, Any]:
        table = self.plan.arrays[f"part/{AGAIN.get(name, name)}/table"]
        if name in AGAIN:
            table = table[table["round"] < AGAIN_ROUNDS]
        resolved = runner.resolve(table)
        done = runner.run(resolved)
        runner.cycles_per_ns = done.cycles_per_ns()
        self.results.arrays.update({f"part/{name}/{key}": array for key, array in done.arrays().items()})
        noted = Noted.of(done.arrays(), self._groups(name))
        moved = noted.clock_moved_pct()
        if moved > CLOCK_MOVED_PCT:
            self._warn(
                f"{name}: the SM clock moved by {moved:.1f} % while it ran; times are in ns by the clock of each moment"
            )
        if name == "bursts" and (ratio := knee_ratio(noted)) < LEAST_SLOPE_RATIO:
            self._warn(
                f"Q cannot be seen: a byte of the largest bursts takes {ratio:.2f} times as long as one of the smallest "
                f"(a knee needs {LEAST_SLOPE_RATIO:g} times); larger bursts, more producers or another transport may show it"
            )
        if groups := self._too_big(name, table, runner):
            self._warn(f"{name}: there is too little memory for the largest bursts of {', '.join(groups)}: left out")
        return {
            "rows": len(resolved),
            "rows_left_out": len(table) - len(resolved),
            "cycles_per_ns": done.cycles_per_ns(),
            "clock_moved_pct": moved,
            "offsets_ns": noted.offsets_ns(),
            "kernel_s": done.wall_s,
        }

    def _programs(self, runner: BurstRunner, transport: Transport) -> dict[str, Any]:
        replays = Replays(runner.cycles_per_ns, self.results.arrays, [{} for _ in self.plan.header["programs"]])
        told = self.header["parts"]["programs"]
        told |= replays.told() | {"offsets": offsets_now(runner)}
        try:
            run_programs(self.plan, self.devices, transport, replays, runner.ctas, self._left_s, self.progress)
        finally:
            told |= replays.told()  # what they ran with may have changed on the way
        told["offsets"] = joined(told["offsets"], offsets_now(runner))
        runner.cycles_per_ns = replays.cycles_per_ns
        if replays.clock_moved_pct > CLOCK_MOVED_PCT:
            self._warn(
                f"programs: the SM clock is {replays.clock_moved_pct:.1f} % off the one that pauses were made for, so every "
                "pause is wrong by as much"
            )
        for number, one in enumerate(replays.programs):
            if "skipped" in one:
                self._warn(f"program {number}: {one['skipped']}")
        if replays.failures:
            raise replays.failures[0]
        return replays.told()

    def _left_s(self) -> float:
        """Seconds of the budget that are left."""
        spent = time.perf_counter() - self.started
        return float("inf") if self.settings.budget_s is None else self.settings.budget_s - spent

    def _groups(self, name: str) -> list[dict[str, Any]]:
        groups: list[dict[str, Any]] = self.plan.header["parts"][AGAIN.get(name, name)]["groups"]
        return groups

    def _too_big(self, name: str, table: Table, runner: BurstRunner) -> list[str]:
        """Groups, and from how many bytes on their bursts do not fit."""
        told = self._groups(name)
        least: dict[str, int] = {}
        for row in table[runner.too_big(table)]:
            group = told[int(row["config"])]["group"]
            least[group] = min(int(row["bytes"]), least.get(group, int(row["bytes"])))
        return [f"{group} (from {size} B on)" for group, size in least.items()]

    def _scout(self, runner: BurstRunner) -> None:
        run, _ = scout(runner)
        self.header["scout"] = {
            "drain_gbs": runner.drain_gbs,
            "cycles_per_ns": runner.cycles_per_ns,
            "kernel_s": run.wall_s,
            "region_bytes": runner.region_bytes,
            "kernels": {str(device): needs for device, needs in runner.kernels.items()},
        }
        self._save()

    def _note_transport(self, transport: Transport) -> None:
        self.header["transport"] = transport.as_dict()
        for warning in transport.warnings:
            self._warn(warning)

    def _warn(self, text: str) -> None:
        self.header["warnings"].append(text)
        print(f"warning: {text}", file=sys.stderr)

    def _save(self) -> None:
        save(self.results, self.output)


def collect(
    plan: Container,
    devices: Devices,
    output: str | Path,
    settings: Settings | None = None,
    progress: Progress = silent,
) -> Container:
    """Run `plan` and write results to `output` after every part. Raises errors of errors.py and `InputError`.

    What a killed process left beside older results of that name is deleted: it is no part of these.
    """
    unknown = [name for name in plan.header["parts"] if name not in PARTS]
    if unknown:
        raise InputError("are unknown", field="parts of the plan", value=unknown, allowed=tuple(PARTS))
    _beside(output).unlink(missing_ok=True)
    return Collector(plan, devices, output, settings or Settings(), progress).run()


def collect_more(
    before: Container,
    plan: Container,
    devices: Devices,
    output: str | Path,
    settings: Settings | None = None,
    progress: Progress = silent,
) -> Container:
    """Run `plan` and write it together with results from before to `output`; so too what was measured until a failure, and
    what a process that was killed here left beside it, of which nothing is measured again. What it left is put aside with a
    warning if it cannot be read or is not of this machine."""
    beside = _beside(output)
    if beside.exists():
        try:
            after = _taken_in(before, beside, output)
            plan = _without(plan, [name for name in plan.header["parts"] if _is_done(after, name, but_not_in=before)])
            before = after
        except InputError as error:
            before = _put_aside(before, beside, error)
    results = before
    try:
        collect(plan, devices, beside, settings, progress)
    finally:
        if beside.exists():
            results = _taken_in(before, beside, output)
    return results


def _beside(output: str | Path) -> Path:
    """Where results lie that are to be added to those in `output`."""
    output = Path(output)
    return output.with_name(f"added-{output.name}")


def _taken_in(before: Container, beside: Path, output: str | Path) -> Container:
    """Results from before with those of a file beside them, which is gone when `output` has both."""
    added = load(beside, "results")
    results = merged(before, added) if added.header["transport"] else before  # it failed before there was one
    save(results, output)
    beside.unlink()
    return results


def _is_done(results: Container, name: str, but_not_in: Container) -> bool:
    now, then = (one.header["parts"].get(name, {}).get("state") for one in (results, but_not_in))
    return bool(now == "done" and then != "done")


def _without(plan: Container, names: Sequence[str]) -> Container:
    parts = {name: told for name, told in plan.header["parts"].items() if name not in names}
    return replace(plan, header={**plan.header, "parts": parts})


def _put_aside(before: Container, beside: Path, error: InputError) -> Container:
    """Keep what cannot be taken in under another name, and say so with the results from before."""
    aside = beside.replace(beside.with_name(f"not-{beside.name}"))
    said = f"what an earlier run left was not taken in, and is now in {aside.name}: {error}"
    print(f"warning: {said}", file=sys.stderr)
    return replace(before, header={**before.header, "warnings": [*before.header["warnings"], said]})


def main(arguments: Sequence[str] | None = None, devices: Callable[[], Devices] | None = None) -> int:
    """The command line; `devices` makes the devices (default: CuPy's)."""
    parser = argparse.ArgumentParser(prog="collect", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("plan", metavar="PLAN.npz")
    parser.add_argument("-o", "--output", required=True, metavar="RESULTS.npz")
    parser.add_argument("--transport", choices=(AUTO, *TRANSPORTS), help="default: as planned")
    parser.add_argument("--gpus", type=int, help="how many GPUs take part in transport peer (default: all)")
    parser.add_argument("--budget", type=float, metavar="SECONDS", help="begin no further part after this long")
    try:
        given = parser.parse_args(arguments)
    except SystemExit as asked:
        return int(asked.code or 0)
    try:
        check_output(given.output, "--output", SUFFIXES)
        check_not_read(given.output, "--output", given.plan)
        plan = load(given.plan, "plan")
        settings = Settings(given.transport or plan.header.get("transport", AUTO), given.gpus, given.budget)
        results = collect(plan, (devices or cupy_devices)(), given.output, settings, _told)
    except InputError as error:
        return _failed(error, 2)
    except XstageError as error:
        return _failed(error, 1)
    except KeyboardInterrupt:
        print("collect: interrupted; what was measured is kept", file=sys.stderr)
        return INTERRUPTED
    states = {name: told["state"] for name, told in results.header["parts"].items()}
    print(json.dumps({"results": given.output, "complete": results.header["complete"], "parts": states}))
    return 0


def cupy_devices() -> Devices:
    from .cupy_devices import CupyDevices

    return CupyDevices()


def _told(doing: str, share: float) -> None:
    print(f"{100 * share:3.0f} %  {doing}", file=sys.stderr)


def _failed(error: XstageError, code: int) -> int:
    print(f"collect: {error}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
