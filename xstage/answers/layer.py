"""`xstage layer`: one block of a model, end to end, under several policies of its communicating kernels.

    xs.layer("dit-moe")                                   # on 8 GPUs of hgx-b200, all policies
    xs.layer("llama-3-70b", "hgx-h100", policies=["serial", "reshaped"], tokens=16384)

Kernels are simulated one by one and laid out in time, see sim/layers.py; scenarios/layers.py has the models.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..sim.arguments import check_whole, paths_and_values
from ..sim.errors import InputError, XstageError
from ..sim.units import PS_PER_US
from ..terminal.output import Printed, table, warning_parts, with_warnings
from ..terminal.progress import Progress, silent
from .reruns import chosen_policies

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from ..sim.layers import BlockTime
    from ..sim.machine import Machine

MACHINE, GPUS = "hgx-b200", 8
COARSEST_GRANULE = 8192
"""Bytes; whole kernels are less sensitive to the granule than bursts (docs/model.md)."""
USED_CAPACITY = 0.95
"""Least share of the stage's room that whole granules fill."""


@dataclass(frozen=True, eq=False)
class LayerRun:
    """The block under one policy, or the error that kept it from running."""

    policy: str
    time: BlockTime | None
    error: str | None = None

    @property
    def makespan_us(self) -> float | None:
        return None if self.time is None else self.time.total_ps / PS_PER_US


@dataclass(frozen=True, repr=False, eq=False)
class Layer(Printed):
    """A block of a model under several policies. The first that ran is the baseline of the speedups.

    `tokens` are those of the whole `sequence`, or of each `rank` where attention runs by data (deepseek-v3), as
    `tokens_of` says. `expert_numbers` are the types of weights and activations of its experts, None where it has none;
    `warnings` name what is known to decide such answers.
    """

    model: str
    machine: str
    gpus: int
    tokens: int
    tokens_of: str
    expert_numbers: str | None
    seed: int
    runs: tuple[LayerRun, ...]
    warnings: tuple[str, ...] = ()

    @property
    def baseline(self) -> LayerRun | None:
        return next((run for run in self.runs if run.time is not None), None)

    def rows(self) -> list[dict[str, Any]]:
        """One a policy: makespan_us, speedup, exposed communication (us and percent) and the error, if any."""
        base = self.baseline
        return [
            {
                "policy": run.policy,
                "makespan_us": run.makespan_us,
                "speedup": base.makespan_us / run.makespan_us
                if base and base.makespan_us and run.makespan_us
                else None,
                "exposed_us": None if run.time is None else run.time.exposed_ps / PS_PER_US,
                "exposed_pct": None if run.time is None else 100 * run.time.exposed_ps / max(1, run.time.total_ps),
                "error": run.error,
            }
            for run in self.runs
        ]

    @property
    def frame(self) -> pd.DataFrame:
        """One row a policy and kernel: start, time, time alone, exposed communication (us), share of the block (pct)."""
        import pandas as pd

        tables = [run.time.table().assign(policy=run.policy) for run in self.runs if run.time is not None]
        if not tables:
            return pd.DataFrame()
        joined = pd.concat(tables, ignore_index=True)
        return joined[["policy", *joined.columns.drop("policy")]]

    def as_dict(self) -> dict[str, Any]:
        """The answer of `xstage layer --json`, without the fields that all answers share."""
        frame = self.frame
        kernels = {
            str(policy): rows.drop(columns="policy").to_dict("records")
            for policy, rows in (frame.groupby("policy", sort=False) if len(frame) else ())
        }
        policies = [row | {"kernels": kernels.get(row["policy"], [])} for row in self.rows()]
        base = self.baseline
        answer = {"model": self.model, "machine": self.machine, "gpus": self.gpus, "tokens": self.tokens,
                "tokens_of": self.tokens_of, "expert_numbers": self.expert_numbers,
                "baseline": base.policy if base else None, "policies": policies}  # fmt: skip
        return with_warnings(answer, self.warnings)

    def plot(self) -> Figure:
        """The kernels of each policy, one after the other."""
        from ..plots.layer_figures import layer_figure

        return layer_figure(self.frame, _what(self))

    def save(self, file: str | Path) -> list[Path]:
        """Write the picture of `plot`, and `frame` as CSV beside it. Raises `InputError` for an unknown suffix."""
        from ..plots.save import save

        path = Path(file)
        return save(self.plot(), self.frame, path.parent, path.stem, [path.suffix.removeprefix(".")])

    def __repr__(self) -> str:
        return (
            f"<Layer {self.model} on {self.gpus} GPUs of {self.machine}: {', '.join(run.policy for run in self.runs)}>"
        )

    def printed(self) -> list[Any]:
        """The layer for a person: policies side by side, then the kernels of the fastest."""
        ran = [row for row in self.rows() if row["error"] is None]
        base = self.baseline
        parts: list[Any] = [_what(self)]
        if self.expert_numbers:
            parts.append(f"Experts in {self.expert_numbers}, all else in bf16.")
        if base is not None and base.time is not None:
            best = min((run for run in self.runs if run.time is not None), key=lambda run: run.makespan_us or 0)
            lines = [
                (row["policy"], f"{row['makespan_us']:.1f}", f"{row['speedup']:.3f}", f"{row['exposed_us']:.1f}",
                 f"{row['exposed_pct']:.1f} %")
                for row in ran
            ]  # fmt: skip
            columns = ("policy", "us", f"speedup over {base.policy}", "exposed communication, us", "of the layer")
            parts += ["", table("end to end", columns, lines)]
            for run in dict.fromkeys((base, best)):
                parts += ["", _kernels(run)]
        failed = [(row["policy"], row["error"]) for row in self.rows() if row["error"] is not None]
        if failed:
            parts += ["", table("cannot run", ("policy", "why"), failed)]
        return [*parts, *warning_parts(self.warnings)]


def layer(
    model: str,
    machine: str | Path | Machine = MACHINE,
    *,
    gpus: int = GPUS,
    tokens: int | None = None,
    policies: Sequence[str] | None = None,
    overrides: Mapping[str, Any] | None = None,
    seed: int = 0,
    progress: Progress = silent,
) -> Layer:
    """Simulate one block of a model under each of `policies`, by default all of them.

    `tokens` replaces the model's usual number, of the whole sequence, or of each rank where attention runs by data
    (deepseek-v3); `overrides` numbers of the machine by dotted path. A policy that the machine or the shape does not allow
    becomes a row with its error. Raises `InputError` for an unknown model, machine or policy, a policy that is given twice,
    none at all, a machine with too few GPUs or without numbers that every policy needs, and where no policy runs.
    """
    from ..scenarios.attention_models import attention_model
    from ..scenarios.cautions import block_cautions
    from ..scenarios.layers import block, block_policies, expert_numbers, tokens_of
    from ..scenarios.machine_files import load_machine, of_machine
    from ..sim.layers import KernelLength, Work, simulate_block

    names = chosen_policies(block_policies(model), policies)
    check_whole(gpus, "gpus")
    check_whole(seed, "seed", 0)
    if tokens is not None:
        check_whole(tokens, "tokens")
    changes = of_machine(paths_and_values(overrides), "--set ")
    loaded = load_machine(machine, changes, "--set ")
    _check_fit(model, loaded, gpus)
    known: dict[Work, KernelLength] = {}
    warnings: dict[str, None] = {}
    runs: list[LayerRun] = []
    granule = _granule_bytes(loaded)
    for done, name in enumerate(names):
        progress(done, len(names))
        try:
            kernels = block(model, name, gpus=gpus, tokens=tokens, seed=seed)
            times = simulate_block(loaded, kernels, granule, known)
            runs.append(LayerRun(name, times))
            warnings |= dict.fromkeys(block_cautions(loaded, changes, gpus, kernels, times.kernels))
        except XstageError as error:
            if done == len(names) - 1 and not any(run.time for run in runs):
                raise  # the shape, not the policy
            runs.append(LayerRun(name, None, str(error)))
    progress(len(names), len(names))
    length = attention_model(model).tokens if tokens is None else tokens
    return Layer(
        model=model,
        machine=loaded.name,
        gpus=gpus,
        tokens=length,
        tokens_of=tokens_of(model),
        expert_numbers=expert_numbers(model),
        seed=seed,
        runs=tuple(runs),
        warnings=tuple(warnings),
    )


def _check_fit(model: str, machine: Machine, gpus: int) -> None:
    """Raises `InputError` where the machine has too few GPUs, or lacks numbers that the block needs under every policy."""
    from ..scenarios.layers import compute_numbers

    if gpus > machine.gpus:
        reason = f"is more than the {machine.gpus} GPUs of {machine.name}"
        raise InputError(reason, field="gpus", value=gpus, allowed=f"1 to {machine.gpus}")
    missing = [name for name in compute_numbers(model) if getattr(machine.compute, name) is None]
    if missing:
        names = ", ".join(f"compute.{name}" for name in missing)
        also = f"another machine, or a machine file with base: {machine.name} that gives each of them with its source"
        reason = f"needs numbers that {machine.name} does not have: {names}"
        raise InputError(reason, field="model", value=model, allowed=also)


def _granule_bytes(machine: Machine) -> int:
    """The coarsest power of two that fills the stage well enough, or the machine's own granule if that is coarser.

    With 30 KiB of an SM it is 2 KiB. 8 KiB would leave 6 KiB empty, and stores would stall that do not.
    """
    rooms = (machine.stage.capacity_sm.value, machine.stage.capacity_gpu.value)
    granule = COARSEST_GRANULE
    while any(room // granule * granule < USED_CAPACITY * room for room in rooms):
        granule //= 2
    return max(granule, machine.granule_bytes)


def _what(done: Layer) -> str:
    of_each = " of each rank" if done.tokens_of == "rank" else ""
    return f"One block of {done.model}, {done.tokens} tokens{of_each}, on {done.gpus} GPUs of {done.machine}"


def _kernels(run: LayerRun) -> Any:
    """The kernels of one policy, with time, share and exposed communication of each."""
    assert run.time is not None
    frame = run.time.table()
    rows = [
        (str(row.kernel), f"{row.time_us:.1f}", f"{row.share_pct:.1f} %", f"{row.exposed_us:.1f}")
        for row in frame.itertuples()
    ]
    return table(f"{run.policy}, kernel by kernel", ("kernel", "us", "share", "exposed us"), rows)


def models_parts() -> list[Any]:
    """The models that have a block, for a person."""
    from ..scenarios.attention_models import attention_model
    from ..scenarios.layers import BLOCKS, block_policies, expert_numbers, tokens_of

    columns = ("model", "heads", "tokens", "of each", "experts", "assumed", "policies")
    rows = [
        (name, known.heads, known.tokens, tokens_of(name), expert_numbers(name) or "", "yes" if known.assumed else "",
         ", ".join(block_policies(name)))
        for name, known in ((name, attention_model(name)) for name in BLOCKS)
    ]  # fmt: skip
    return [table("models with a block", columns, rows)]
