"""Arguments and options that several commands share, and how a list of names is read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Scenario = Annotated[str, typer.Argument(metavar="SCENARIO", help="A name from `xstage scenarios`, or a YAML file.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY.PATH=VALUE",
        help="Replace a value of the scenario or its machine, such as workload.tokens=4096. Repeatable.",
    ),
]
MachineOverrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="machine.PATH=VALUE",
        help="Replace a number of the machine, such as machine.interconnect.drain_rate=900GB/s. Repeatable.",
    ),
]
Workers = Annotated[int, typer.Option(min=1, help="Processes that simulate at the same time.")]
Plot = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Also draw it, as .png, .svg or .pdf, with its table beside it as .csv."),
]


def names(text: str | None, option: str) -> list[str] | None:
    """The names of an option, None where it was not given. Raises `BadParameter` for an empty one."""
    found = None if text is None else [name.strip() for name in text.split(",")]
    if found is not None and not all(found):
        raise typer.BadParameter(f"has an empty name: '{text}'", param_hint=option)
    return found
