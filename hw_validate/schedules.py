"""What MegaMoE and attention schedules that calibration never saw are drawn from, for cores and for GPUs.

They are the Programs of the simulator's own builders. Stores take what the calibrated machine takes. All other times are
those of the SMs of a GPU of the catalogue, made longer or shorter by one factor for a whole Program: the ratio of both drain
rates (of what stores, and of an SM) times a random number, so that stores are now rare and now too many.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from ..scenarios.machine_files import load_machine
from ..sim import program as p
from ..sim.machine import Machine
from ..sim.program import Program
from ..sim.routing import Routing, balanced, zipf
from ..sim.schedules import megamoe

RANKS = 2
BASES = ("hgx-h100", "hgx-b200")
"""Whose SMs compute: kernels of both families."""
PACES = (0.3, 8.0)
"""Range of the random part of the factor."""
MEGAMOE: dict[str, tuple[megamoe.Policy, ...]] = {
    "sm90": (megamoe.ExpertWave(), megamoe.Interleaved(), megamoe.Interleaved(ready=True), megamoe.Lag(1, 1, 1)),
    "sm100": (megamoe.ExpertWave(), megamoe.Interleaved(), megamoe.Interleaved(ready=True), megamoe.Alternating()),
}
ATTENTION = ("piggyback", "comm_warp", "reserved_sms")


@cache
def base_machine(name: str) -> Machine:
    """A machine of `BASES`, read once."""
    return load_machine(name)


def family_of(machine: Machine) -> str:
    """The family of its kernels: a key of `MEGAMOE`."""
    kernels = machine.compute.kernels
    return "sm90" if kernels is None else str(kernels.value)


def few_sms(base: Machine, calibrated: Machine, sms: int) -> Machine:
    """`sms` SMs of `base`, with their share of its compute power, that store through the calibrated stage."""
    data, stage = (m.model_dump(mode="json", exclude_unset=True) for m in (base, calibrated))
    compute = data["compute"]
    share = sms / base.sms
    for name in ("bf16_tflops", "fp8_tflops", "fp4_tflops"):
        if name in compute:
            compute[name] = _assumed(compute[name]["value"] * share)
    for name in ("hbm_rate", "l2_rate", "l2_throughput"):
        number = getattr(base.compute, name)
        if number is not None:
            compute[name] = _assumed(f"{round(number.value * share)} kB/s")
    compute["sms"] = _assumed(sms)
    wiring = stage["interconnect"] | {"gpus": _assumed(RANKS)}
    return Machine.parse(data | {"compute": compute, "stage": stage["stage"], "interconnect": wiring})


def paced(program: Program, factor: float, least_pull_ps: int) -> Program:
    """The Program with every time but those of its stores multiplied by `factor`, and pulls of `least_pull_ps` or more."""
    ops, lanes = program.ops.copy(), program.lanes.copy()
    others, pulls = ops["kind"] != p.STORE, (ops["kind"] == p.SIGNAL) & (ops["duration_ps"] > 0)
    ops["duration_ps"][others] = np.round(ops["duration_ps"][others] * factor)
    ops["duration_ps"][pulls] = np.maximum(ops["duration_ps"][pulls], least_pull_ps)
    lanes["start_ps"] = np.round(lanes["start_ps"] * factor)
    return replace(program, ops=ops, lanes=lanes, meta=program.meta | {"pace": factor})


def pace_factor(base: Machine, calibrated: Machine, producers: int, rng: np.random.Generator) -> float:
    """By what to multiply times: what an SM of `base` drains over what one of `producers` of `calibrated` does, times a
    random number of `PACES`."""
    ratio = (base.drain_kbs("all") / base.sms) / (calibrated.drain_kbs() / producers)
    return float(ratio * np.exp(rng.uniform(*np.log(PACES))))


def drawn_routing(shape: megamoe.MegaMoe, rng: np.random.Generator) -> Routing:
    """Even, or more or less skewed."""
    sizes = (shape.ranks, shape.tokens, shape.topk, shape.experts)
    return balanced(*sizes, rng) if rng.random() < 0.5 else zipf(*sizes, rng=rng, exponent=float(rng.uniform(0.3, 1.2)))


def _assumed(value: Any) -> dict[str, Any]:
    return {"value": value, "assumed": True, "source": "a few SMs of the machine, for a drawn schedule"}
