"""Which experts every token goes to: a router's answer, made up by `balanced`, `even`, `zipf`, `hot_expert` and others.

A row is one (token, top-k slot) pair. A recorded answer is read by `routing_file.recorded`.

Load ratios are of experts: max/mean = 1 is balance. A made-up routing with a stated max/mean meets it in expectation,
over many tokens; `Routing.max_over_mean` is what the drawn tokens achieved (a few tokens are never balanced).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .errors import InputError
from .memory import most_bytes
from .placement import checked_load, max_over_mean
from .units import format_size

_KEYS_PER_CHUNK = 2**24  # bounds the scores held at once to 64 MiB
_COPIES = 3  # of the answer, while it is drawn and checked
_STEEPEST = 64.0  # Zipf exponent, or logarithm of a hot weight, beyond which nothing changes


@dataclass(frozen=True, eq=False)
class Routing:
    """`topk[rank, token, slot]` is the expert of one row, or -1 where the row is masked.

    `topk` has shape [ranks, tokens a rank, k], int32, read-only. Raises `InputError` if an id is outside -1 to
    `n_experts` - 1, or if a token names one expert twice.
    """

    topk: NDArray[np.int32]
    n_experts: int

    def __post_init__(self) -> None:
        topk = checked_topk(self.topk, self.n_experts)
        topk.setflags(write=False)
        object.__setattr__(self, "topk", topk)

    @property
    def n_ranks(self) -> int:
        return int(self.topk.shape[0])

    @property
    def n_tokens(self) -> int:
        """Tokens a rank, masked ones included."""
        return int(self.topk.shape[1])

    @property
    def k(self) -> int:
        return int(self.topk.shape[2])

    @property
    def expert_rows(self) -> NDArray[np.int64]:
        """Rows of every logical expert over all ranks, [experts]."""
        return np.bincount(self.topk[self.topk >= 0], minlength=self.n_experts)

    @property
    def max_over_mean(self) -> float:
        """Achieved expert load ratio; 1 if there are no rows."""
        return max_over_mean(self.expert_rows)

    def of_ranks(self, chosen: slice) -> Routing:
        """The rows of some ranks alone."""
        return Routing(self.topk[chosen].copy(), self.n_experts)

    def masked(self, fraction: float, rng: np.random.Generator, *, whole_tokens: bool = False) -> Routing:
        """The same routing with each row masked with probability `fraction`, or each token with all its rows."""
        if not 0 <= fraction <= 1:
            raise InputError("is not a fraction", field="fraction", value=fraction, allowed="0 to 1")
        drop = rng.random(self.topk.shape[:2] + (() if whole_tokens else (self.k,))) < fraction
        return Routing(np.where(drop[..., None] if whole_tokens else drop, np.int32(-1), self.topk), self.n_experts)


def checked_topk(topk: ArrayLike, n_experts: int, *, file: str | None = None) -> NDArray[np.int32]:
    """A copy of `topk` as int32 [ranks, tokens, k]; raises `InputError` naming rank, token and slot of a bad entry."""
    if n_experts < 1:
        raise InputError("must be at least 1", field="n_experts", value=n_experts, file=file)
    ids = np.asarray(topk)
    if ids.ndim != 3 or ids.shape[0] == 0 or ids.shape[2] == 0 or ids.dtype.kind not in "iu":
        raise InputError(
            "has the wrong shape or type",
            field="topk",
            value=f"{ids.dtype}{list(ids.shape)}",
            allowed="whole numbers [ranks, tokens, k]",
            file=file,
        )
    out_of_range = np.argwhere((ids < -1) | (ids >= n_experts))
    if out_of_range.size:
        rank, token, slot = out_of_range[0].tolist()
        raise InputError(
            "is no expert",
            field=f"topk[{rank}, {token}, {slot}]",
            value=int(ids[rank, token, slot]),
            allowed=f"-1 (masked) to {n_experts - 1}",
            file=file,
        )
    ordered = np.sort(ids, axis=2)
    twice = np.argwhere((ordered[..., 1:] == ordered[..., :-1]) & (ordered[..., 1:] >= 0))
    if twice.size:
        rank, token, _ = twice[0].tolist()
        raise InputError(
            "names an expert twice", field=f"topk[{rank}, {token}]", value=ids[rank, token].tolist(), file=file
        )
    return ids.astype(np.int32)


def balanced(n_ranks: int, n_tokens: int, k: int, n_experts: int, rng: np.random.Generator) -> Routing:
    """Top-k of independent random scores: every set of k experts is equally likely."""
    return from_histogram(np.ones(max(n_experts, 0)), n_ranks, n_tokens, k, rng)


def even(n_ranks: int, n_tokens: int, k: int, n_experts: int, rng: np.random.Generator) -> Routing:
    """As many rows for every expert, to within one over all ranks and two from each; which token goes where is drawn.

    Orders of the experts are dealt out one after another, k to a token, each as often as it takes to end with a token.
    Raises `InputError` as `from_histogram`.
    """
    _check_sizes(n_ranks, n_tokens, k, n_experts)
    rows = math.lcm(n_experts, k)
    orders = rng.permuted(
        np.tile(np.arange(n_experts, dtype=np.int32), (-(-n_ranks * n_tokens * k // rows), 1)), axis=1
    )
    dealt = np.tile(orders, (1, rows // n_experts)).ravel()[: n_ranks * n_tokens * k]
    return Routing(dealt.reshape(n_ranks, n_tokens, k), n_experts)


def from_histogram(load: ArrayLike, n_ranks: int, n_tokens: int, k: int, rng: np.random.Generator) -> Routing:
    """k distinct experts a token, drawn one after another with probability proportional to `load` [experts].

    An expert of load 0 is never drawn. No expert can have more than one row a token, so a load near or above 1/k of the
    total is not reached; compare `expert_rows`. Drawn as the k smallest of exponential variates divided by load (the
    same law as Gumbel top-k; Kool et al., https://arxiv.org/abs/1903.06059); slot 0 is the smallest.

    Raises `InputError` if fewer than k experts have a load, or the answer cannot fit into memory.
    """
    weights = checked_load(load, field="load")
    _check_sizes(n_ranks, n_tokens, k, int(np.count_nonzero(weights)))
    topk = np.empty((n_ranks * n_tokens, k), dtype=np.int32)
    for rows in _chunks(len(topk), max(1, _KEYS_PER_CHUNK // weights.size)):
        topk[rows] = _smallest_k(_race(weights, rows.stop - rows.start, rng), k)
    return Routing(topk.reshape(n_ranks, n_tokens, k), weights.size)


def _check_sizes(n_ranks: int, n_tokens: int, k: int, usable: int) -> None:
    """Raises `InputError` for sizes that cannot be drawn from so many experts, or do not fit into memory."""
    for name, count, least in (("n_ranks", n_ranks, 1), ("n_tokens", n_tokens, 0), ("k", k, 1)):
        if count < least:
            raise InputError(f"must be at least {least}", field=name, value=count)
    if k > usable:
        raise InputError("exceeds the experts that can be drawn", field="k", value=k, allowed=f"1 to {usable}")

    needed = _COPIES * np.dtype(np.int32).itemsize * n_ranks * n_tokens * k
    if needed > (most := most_bytes()):
        raise InputError(
            f"needs {format_size(needed)} for the routing of {n_ranks} ranks",
            field="tokens",
            value=n_tokens,
            allowed=f"what fits into {format_size(most)} of this computer's memory",
        )


def zipf(
    n_ranks: int,
    n_tokens: int,
    k: int,
    n_experts: int,
    rng: np.random.Generator,
    *,
    exponent: float | None = None,
    max_over_mean: float | None = None,
    shuffle: bool = True,
) -> Routing:
    """Zipf popularity: weight 1 / i^exponent for the i-th most popular expert; give the exponent or the max/mean.

    `shuffle` deals popularity out to expert ids at random; without it expert 0 is the most popular, and neighbours that
    share a rank are alike. Raises `InputError` as `zipf_exponent` and `from_histogram`.
    """
    if (exponent is None) == (max_over_mean is None):
        raise InputError("give exactly one of exponent and max_over_mean", field="zipf")
    if max_over_mean is not None:
        exponent = zipf_exponent(max_over_mean, n_experts, k)
    if exponent is None or not (math.isfinite(exponent) and exponent >= 0):
        raise InputError("must be finite and not negative", field="exponent", value=exponent)
    weights = _zipf_weights(exponent, n_experts)
    return from_histogram(rng.permutation(weights) if shuffle else weights, n_ranks, n_tokens, k, rng)


def hot_expert(
    n_ranks: int,
    n_tokens: int,
    k: int,
    n_experts: int,
    rng: np.random.Generator,
    *,
    max_over_mean: float,
    n_hot: int = 1,
) -> Routing:
    """Experts 0 to n_hot - 1 are equally hot, all others equally cold.

    With n_hot = experts a rank and a contiguous placement it is rank 0 that is hot, with the same max/mean. Raises
    `InputError` as `hot_weight` and `from_histogram`.
    """
    weights = _hot_weights(hot_weight(max_over_mean, n_experts, k, n_hot), n_experts, n_hot)
    return from_histogram(weights, n_ranks, n_tokens, k, rng)


def zipf_exponent(max_over_mean: float, n_experts: int, k: int) -> float:
    """Exponent whose expected max/mean expert load is `max_over_mean`, which must lie in [1, n_experts / k)."""
    return _solve(max_over_mean, n_experts, k, 1, lambda exponent: _zipf_weights(exponent, n_experts))


def hot_weight(max_over_mean: float, n_experts: int, k: int, n_hot: int = 1) -> float:
    """Weight of a hot expert (a cold one has 1) for an expected max/mean load in [1, n_experts / max(k, n_hot))."""
    log_weight = _solve(
        max_over_mean, n_experts, k, n_hot, lambda log_weight: _hot_weights(math.exp(log_weight), n_experts, n_hot)
    )
    return math.exp(log_weight)


def expected_max_over_mean(weights: NDArray[np.float64], k: int) -> float:
    """Expected load of the heaviest expert over the mean load, for k draws a token in proportion to `weights`.

    The mean load is k / experts a token. The heaviest expert h is drawn unless k others come first in the race of
    exponential arrivals with rates `weights`: P = integral over u in (0, 1) of P[N(-ln u / w_h) < k], N(t) = number of
    others that arrived by t, a sum of independent Bernoulli(1 - exp(-w_j t)). Relative error below 1e-6 up to 4096
    experts.
    """
    heaviest = int(np.argmax(weights))
    u, share = _quadrature()
    time = -np.log(u) / weights[heaviest]
    others = np.delete(weights, heaviest)
    arrived = -np.expm1(-others[:, None] * time)
    count = np.zeros((k, time.size))  # P[N = 0..k-1] at every time
    count[0] = 1
    for p in arrived:
        count[1:] += p * (count[:-1] - count[1:])
        count[0] -= p * count[0]
    return float(share @ count.sum(axis=0)) * weights.size / k


def _solve(target: float, n_experts: int, k: int, n_hot: int, weights: Callable[[float], NDArray[np.float64]]) -> float:
    """Parameter of `weights`, rising from even weights at 0, whose expected max/mean is `target`."""
    from scipy.optimize import brentq  # scipy loads slowly

    for name, count in (("k", k), ("n_hot", n_hot)):
        if not 1 <= count <= n_experts:
            raise InputError("does not fit the experts", field=name, value=count, allowed=f"1 to {n_experts}")

    def excess(parameter: float) -> float:
        return expected_max_over_mean(weights(parameter), k) - target

    if target == 1:
        return 0.0
    limit = n_experts / max(k, n_hot)
    if not 1 < target < limit or excess(_STEEPEST) <= 0:
        raise InputError("cannot be reached", field="max_over_mean", value=target, allowed=f"1 to below {limit:g}")
    return float(brentq(excess, 0.0, _STEEPEST, xtol=1e-9))


@cache
def _quadrature() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Points in (0, 1) and their weights (Gauss-Legendre)."""
    nodes, share = np.polynomial.legendre.leggauss(256)
    return (nodes + 1) / 2, share / 2


def _zipf_weights(exponent: float, n_experts: int) -> NDArray[np.float64]:
    return np.arange(1, n_experts + 1, dtype=np.float64) ** -exponent


def _hot_weights(weight: float, n_experts: int, n_hot: int) -> NDArray[np.float64]:
    return np.where(np.arange(n_experts) < n_hot, weight, 1.0)


def _chunks(total: int, size: int) -> list[slice]:
    return [slice(start, min(start + size, total)) for start in range(0, total, size)]


def _race(weights: NDArray[np.float64], n_tokens: int, rng: np.random.Generator) -> NDArray[np.float32]:
    """Keys [tokens, experts] whose order is that of exponential variates with rates `weights`."""
    keys = rng.standard_exponential((n_tokens, weights.size), dtype=np.float32)
    if np.all(weights == weights[0]):
        return keys
    with np.errstate(divide="ignore"):
        log_weights = np.log(weights).astype(np.float32)
    np.log(np.maximum(keys, np.finfo(np.float32).tiny, out=keys), out=keys)  # logs, for weights far apart
    keys -= log_weights
    return keys


def _smallest_k(keys: NDArray[np.float32], k: int) -> NDArray[np.int64]:
    chosen = np.argpartition(keys, k - 1, axis=1)[:, :k]
    order = np.argsort(np.take_along_axis(keys, chosen, axis=1), axis=1, kind="stable")
    return np.take_along_axis(chosen, order, axis=1)


def occurrence(group: NDArray[np.integer], n_groups: int) -> NDArray[np.int64]:
    """How many earlier entries have the same group, for every entry of `group` (0 to n_groups - 1)."""
    count = np.bincount(group, minlength=n_groups)
    first = np.cumsum(count) - count
    earlier = np.empty(group.size, dtype=np.int64)
    earlier[stable_order(group, n_groups)] = np.arange(group.size) - np.repeat(first, count)
    return earlier


def stable_order(keys: NDArray[np.integer], n_keys: int) -> NDArray[np.int64]:
    """Indices that sort `keys` (0 to n_keys - 1), equal ones in the order given.

    NumPy sorts 16-bit keys by radix, several times faster than wider ones.
    """
    return np.argsort(keys.astype(np.uint16) if n_keys <= 2**16 else keys, kind="stable")
