"""What only GPUs let choose: transport, number of GPUs, and files of the collector. Needs nothing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ...sim.errors import InputError
from ...sim.files import check_output
from .container import SUFFIXES
from .transport import AUTO, TRANSPORTS


@dataclass(frozen=True)
class OnGpus:
    """As given; None where not. `results` is read instead of measuring, `keep` is written."""

    transport: str | None = None
    gpus: int | None = None
    results: str | Path | None = None
    keep: str | Path | None = None

    def refuse_on_cpu(self) -> None:
        """Raise `InputError` for an option that has no meaning without GPUs."""
        for name, value in vars(self).items():
            if value is not None:
                raise InputError("needs backend cuda", field=name, value=str(value))

    def check(self, producers: int = 1) -> None:
        """Raise `InputError` for a value that there is not, and for options that exclude each other."""
        if producers != 1:
            raise InputError("is for backend cpu: a GPU stores with all SMs, and with fewer to tell Q(K)",
                             field="producers", value=producers)  # fmt: skip
        if self.transport not in (None, AUTO, *TRANSPORTS):
            raise InputError("is no transport", field="transport", value=self.transport, allowed=(AUTO, *TRANSPORTS))
        if self.keep is not None:
            check_output(self.keep, "keep", SUFFIXES)
        if self.results is None:
            return
        for name in ("transport", "gpus", "keep"):
            if getattr(self, name) is not None:
                raise InputError("is settled in the results", field=name, value=str(getattr(self, name)))


NOTHING_SAID = OnGpus()
