"""Tables behind figures of what a topology carries, and of predictions beside published measurements."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from ..answers.saved import read_answer
from ..table_rows import plain_rows

if TYPE_CHECKING:
    from ..sim.topology import Fabric

MACHINES = ("hgx-h100", "mi300x", "dgx1-v100", "hgx-h100-rails")
EVERY = 10
"""Of the published rows one in so many is predicted for the figure, spread evenly; all of them take minutes."""
COLUMNS = ("kind", "family", "machine", "time_us", "predicted_us", "error_pct", "judged")


def topology_table(machines: tuple[str, ...] = MACHINES) -> pd.DataFrame:
    """What each pair of GPUs has in an All-to-All of all GPUs: machine, source, destination, gbs.

    The least over the ports of its route of the port's rate, shared evenly by the routes through it. No simulation.
    """
    from ..scenarios.machine_files import load_machine

    return pd.concat(
        [_pairs(load_machine(name).fabric()).assign(machine=name) for name in machines], ignore_index=True
    )[["machine", "source", "destination", "gbs"]]


def _pairs(fabric: Fabric) -> pd.DataFrame:
    from ..sim.topology import SCATTER
    from ..sim.units import gbs

    count = fabric.n_gpus
    pair_of_hop = np.repeat(np.arange(count**2), np.diff(fabric.route_first))
    apart = ~np.eye(count, dtype=bool)
    used = apart.ravel()[pair_of_hop]
    routes = np.bincount(fabric.route_ports[used], minlength=fabric.n_ports)
    share = fabric.rates_kbs[:, SCATTER] / np.maximum(routes, 1)
    least = np.full(count**2, np.inf)
    np.minimum.at(least, pair_of_hop[used], share[fabric.route_ports[used]])
    source, destination = (axis[apart] for axis in np.indices((count, count)))
    rates = [gbs(rate) for rate in least.reshape(count, count)[apart].tolist()]
    return pd.DataFrame({"source": source, "destination": destination, "gbs": rates})


def published_table(answer: str | Path | None = None, workers: int = 1) -> pd.DataFrame:
    """Published measurements that are judged, with their predictions: `COLUMNS`, and one_row_in, see `measured_figure`.

    From a file that `xstage published --json` printed; without one every `EVERY`-th row of the published tables is predicted
    now. Raises `InputError` for a file that is none.
    """
    rows = _stored(Path(answer)) if answer is not None else _predicted(workers)
    table = pd.DataFrame(rows, columns=list(COLUMNS)).assign(one_row_in=EVERY if answer is None else 1)
    return table[table["judged"].astype(bool)].reset_index(drop=True)


def _predicted(workers: int) -> list[dict[str, Any]]:
    from ..predictions.published import predicted
    from ..scenarios.published import Kind, load_published

    kinds: tuple[Kind, ...] = ("megamoe", "attention_tp")
    rows = [row for kind in kinds for row in plain_rows(load_published(kind).reset_index())]
    return predicted(rows[::EVERY], workers)


def _stored(file: Path) -> list[dict[str, Any]]:
    from ..sim.errors import InputError

    found = read_answer(file, "what `xstage published --json` prints")
    try:
        return [{name: row[name] for name in COLUMNS} for row in found["rows"]]
    except (KeyError, TypeError) as error:
        raise InputError(
            "is no answer of `xstage published --json`", file=str(file), allowed="an object whose rows have "
            + ", ".join(COLUMNS),
        ) from error  # fmt: skip
