"""A calibration, and a validation, for a person: made from the answers of `xstage calibrate` and `xstage validate`."""

from __future__ import annotations

from typing import Any

from ..terminal.output import table


def validation_parts(answer: dict[str, Any]) -> list[Any]:
    """The calibration, then how unseen Programs compare with their simulation, in all and by kind."""
    replay = answer["replay"]
    rows = [
        ("programs", f"{replay['programs']}, of which {replay['programs_with_stall']} with stall"),
        ("issue time, median error", f"{replay['median_abs_error_pct']:.1f} %"),
        ("issue time, 90 % are within", f"{replay['p90_abs_error_pct']:.1f} %"),
        *_without_stall(replay),
        ("stall, mean error", f"{replay['stall_mean_abs_error_ns']:.1f} ns a store"),
        ("noise from repeat to repeat", f"{replay['noise_pct']:.1f} %"),
        ("moved since the calibration", "not known" if replay["drift_pct"] is None else f"{replay['drift_pct']:.1f} %"),
        ("verdict", replay["verdict"]),
    ]
    kinds = [
        (kind["schedule"], str(kind["programs"]), str(kind["programs_with_stall"]), f"{kind['median_abs_error_pct']:.1f} %",
         f"{kind['makespan_median_abs_error_pct']:.1f} %", f"{kind['stall_mean_abs_error_ns']:.1f} ns")
        for kind in replay["by_schedule"]
    ]  # fmt: skip
    return [
        *calibration_parts(answer["calibration"]),
        "",
        table("unseen programs: simulated against measured", ("", ""), rows),
        "",
        table("by kind", ("", "programs", "with stall", "issue time", "makespan", "stall a store"), kinds),
        *_again_parts(answer),
    ]


def calibration_parts(found: dict[str, Any]) -> list[Any]:
    """T_iss0, R, Q and the knee with their intervals, and what to mind."""
    between = found["intervals"]
    rows = [
        ("T_iss0", f"{found['t_iss0_ns']:.1f} ns", _interval(between["t_iss0_ns"], 1, ".1f"),
         f"to issue {found['reference_bytes'] / 1024:.3g} KiB"),
        ("R", f"{found['drain_gbs']:.2f} GB/s", _interval(between["drain_gbs"], 1, ".2f"), "drain rate"),
        ("Q", f"{found['capacity_bytes'] / 1024:.2f} KiB", _interval(between["capacity_bytes"], 1024, ".2f"),
         "outstanding capacity"),
        ("knee", f"{found['knee_bytes'] / 1024:.2f} KiB", _interval(between["knee_bytes"], 1024, ".2f"),
         "largest isolated burst of a producer without stall"),
    ]  # fmt: skip
    title = (
        f"{found['host']['processor']}, {found['producers']} producing: the law is off by {found['residual_pct']:.1f} %"
    )
    warnings = [part for text in found["warnings"] for part in ("", f"Note: {text}.")]
    return [table(title, ("", "value", "95 % interval", "what it is"), rows), *warnings]


def _again_parts(answer: dict[str, Any]) -> list[Any]:
    """What runs that were made again say, if there are any."""
    parts: list[Any] = []
    for run in answer.get("again", []):
        says = "agrees with the first run within the intervals" if run["agrees"] else "; ".join(run["why_not"])
        parts += ["", f"{run['run']}: {says}"]
        if run["numbers"]:
            numbers = run["numbers"]
            parts.append(
                f"  T_iss0 {numbers['t_iss0_ns'][0]:.1f} ns, R {numbers['drain_gbs'][0]:.2f} GB/s, "
                f"Q {numbers['capacity_bytes'][0] / 1024:.2f} KiB; median error {run['median_abs_error_pct']:.1f} %, "
                f"{run['verdict']}{'' if run['same_verdict'] else ', unlike the first run'}"
            )
    return parts


def _interval(bounds: list[float], scale: float, spec: str) -> str:
    return " to ".join(format(bound / scale, spec) for bound in bounds)


def _without_stall(replay: dict[str, Any]) -> list[tuple[str, str]]:
    """Programs in which no stall is predicted: whether any was measured."""
    excess, noise = replay["without_stall_excess_pct"], replay["without_stall_noise_pct"]
    if excess is None:
        return []
    told = f"more measured in {replay['programs_without_stall']} with no stall predicted"
    known = replay["t_iss0_known_to_pct"]
    return [(told, f"{excess:+.1f} %; their noise {noise:.1f} %, T_iss0 is known to {known:.0f} %")]
