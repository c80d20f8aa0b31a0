"""The command that asks the closed forms whether a burst fits: `xstage audit`."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from ..terminal.output import print_json, show, with_common_fields
from .options import AsJson, MachineOverrides


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command()(audit)


def audit(
    machine: Annotated[str, typer.Option(help="A machine from `xstage scenarios`, or a YAML file.")],
    producers: Annotated[int, typer.Option(help="SMs of one GPU that store at the same time.")],
    burst: Annotated[
        str,
        typer.Option(
            "--bytes",
            metavar="SIZE",
            help="What each stores in one burst: a number with B, KB, KiB, MB or MiB, such as '32 KiB'.",
        ),
    ],
    gap: Annotated[
        str,
        typer.Option(
            metavar="TIME", help="Time without stores between bursts: a number with ns, us or ms, such as '4 us'."
        ),
    ],
    synchronised: Annotated[
        bool,
        typer.Option(
            "--synchronised", help="Producers start every burst together; by default each runs at its own pace."
        ),
    ] = False,
    to: Annotated[
        str,
        typer.Option(
            metavar="peer|next|all",
            help="Where stores go: to the next GPU while all GPUs do so, to all others while all do so, or to one peer "
            "while no other GPU stores.",
        ),
    ] = "next",
    gpus: Annotated[
        int | None, typer.Option(help="GPUs that take part; all of the machine if not given.", show_default=False)
    ] = None,
    overrides: MachineOverrides = None,
    as_json: AsJson = False,
) -> None:
    """Print whether bursts of stores fit a machine as they are, by what margins, and what to do if not."""
    from ..answers.audit import audit as audited
    from ..answers.audit import audit_parts
    from ..scenarios.loader import machine_overrides, parse_overrides
    from ..scenarios.machine_files import load_machine
    from ..sim.units import parse_size, parse_time

    started = time.perf_counter()
    for parse, text, option in ((parse_size, burst, "--bytes"), (parse_time, gap, "--gap")):
        parse(text, option)  # the options by their own names, not by those of the function
    changes = machine_overrides(parse_overrides(overrides or []))
    load_machine(machine, changes, prefix="--set machine.")
    found = audited(machine, producers, burst, gap, synchronised, changes, to, gpus)  # type: ignore[arg-type]
    if as_json:
        print_json(with_common_fields(found.as_dict(), {"wall_s": time.perf_counter() - started}))
    else:
        show(*audit_parts(found))
