"""How a Program is run: by which engine, and how much of the run is kept."""

from __future__ import annotations

from typing import Literal, get_args

from .errors import InputError

EngineName = Literal["simpy", "compiled"]
TraceLevel = Literal["off", "summary", "full"]


def check_options(engine: str, trace: str) -> None:
    """Raises `InputError` for an engine or a level that there is not."""
    for field, value, allowed in (("engine", engine, EngineName), ("trace", trace, TraceLevel)):
        if value not in get_args(allowed):
            raise InputError("is unknown", field=field, value=value, allowed=get_args(allowed))
