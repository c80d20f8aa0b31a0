"""Errors of the model as a person who wrote a scenario can use them: with the key that was written, its file and line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ..sim.checked import Checked, Path, Where
from ..sim.errors import InputError
from ..sim.machine import PARTS
from .workload import Workload

KEYS = {
    "n_experts": "experts",
    "n_ranks": "gpus",
    "ranks": "gpus",
    "n_tokens": "tokens",
    "k": "topk",
    "burst_bytes": "burst",
    "starts_ps": "starts",
    "l1_main_loop_ps": "l1_main_loop",
    "l2_main_loop_ps": "l2_main_loop",
    "reserved_sms": "sms",
    "fraction": "masked",
}
"""What the model calls by another name than the scenario does; a key of the workload with the model's name goes first."""
LINK = ("disturb", "degraded_link", "between")
"""The one key outside the workload that only the model can check: which links there are."""


@contextmanager
def named_as_written(workload: Workload, place: Where) -> Iterator[None]:
    """Gives an `InputError` from the block the path and the place of the key that it is about.

    One that names a file is about that file; one about no key of the scenario stands where the workload does.
    """
    try:
        yield
    except InputError as error:
        if error.file is not None:
            raise
        path, written = _paths(error.field, workload)
        raise place(written).error(error.reason, path, error.value, error.allowed) from None


def _paths(field: str | None, workload: Workload) -> tuple[Path, Path]:
    """What to call the model's `field`, and the key that it comes from; the workload if no key is like it."""
    if field is None:
        return (), ("workload",)
    if field.startswith("workload."):
        path = tuple(field.split("."))
        return path, path
    if field == LINK[-1]:
        return LINK, LINK
    if field.split(".")[0] in PARTS:
        return ("machine", field), ("machine", "overrides", field)
    name, bracket, index = field.partition("[")
    for key in (name, KEYS.get(name)):
        if key and (above := _above(key, workload)):
            return (*above, f"{key}{bracket}{index}"), (*above, key)
    return (field,), ("workload",)


def _above(key: str, workload: Workload) -> Path:
    """The path of what has that key: the workload, or its policy, routing or placement; empty if none of them."""
    if key in type(workload).model_fields:
        return ("workload",)
    for name in type(workload).model_fields:
        part = getattr(workload, name)
        if isinstance(part, Checked) and key in type(part).model_fields:
            return ("workload", name)
    return ()
