"""Q(K), the capacity that K producing SMs find, as a property of each SM, of the GPU, or the smaller of both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
Form = Literal["each SM", "the GPU", "the smaller of both"]


@dataclass(frozen=True)
class CapacityByProducers:
    """Q(K) as measured, and as three forms: q K, Q0, min(q K, Q0). `missed_pct` is the median miss of each form.

    `form` is the simplest one that misses by no more than a quarter over the best. Where only one number can be told from
    these K, the other is the least it could be, and `bound` says so.
    """

    producers: list[int]
    capacity_bytes: list[float]
    refused: dict[int, str]
    per_sm_bytes: float
    gpu_bytes: float
    missed_pct: dict[str, float]
    form: Form
    bound: str | None


def fit_capacity(producers: Array, capacity: Array, refused: dict[int, str] | None = None) -> CapacityByProducers:
    """q and Q0 from Q(K), with relative errors. Shapes [number of K]; K above 0, capacities in bytes."""
    each, gpu = float(np.exp(np.mean(np.log(capacity / producers)))), float(np.exp(np.mean(np.log(capacity))))

    def missed(predicted: Any) -> float:
        return float(100 * np.median(np.abs(predicted / capacity - 1)))

    best = (np.inf, each, gpu)
    order = np.argsort(producers)
    for split in range(1, len(order)):
        low, high = order[:split], order[split:]
        q, q0 = (np.exp(np.mean(np.log(values))) for values in (capacity[low] / producers[low], capacity[high]))
        loss = float(np.sum(np.log(np.minimum(q * producers, q0) / capacity) ** 2))
        if loss < best[0]:
            best = (loss, float(q), float(q0))
    _, q, q0 = best
    misses = {
        "each SM": missed(each * producers),
        "the GPU": missed(np.full(len(producers), gpu)),
        "the smaller of both": missed(np.minimum(q * producers, q0)),
    }
    least = 1.25 * min(misses.values()) + 0.5
    form: Form = next(name for name in ("each SM", "the GPU", "the smaller of both") if misses[name] <= least)
    bound = None
    if form == "each SM":
        q, q0, bound = (
            each,
            float((each * producers).max()),
            "Q of the GPU is at least this: no number of SMs reached it",
        )
    elif form == "the GPU":
        q0, q, bound = (
            gpu,
            float((gpu / producers).max()),
            "Q of an SM is at least this: the fewest SMs reached the GPU's",
        )
    counts = [int(count) for count in producers[order]]
    return CapacityByProducers(counts, capacity[order].tolist(), refused or {}, q, q0, misses, form, bound)
