"""A validation as one HTML file: no scripts, nothing to fetch."""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING, Any

from . import figures
from .compare import AGREES_PCT, MOST_NOISE_PCT

if TYPE_CHECKING:
    from .validation import Validation

WORST_PROGRAMS = 8


def render(validation: Validation) -> str:
    """The page. The template is report.html.j2 beside this file."""
    from jinja2 import Environment, StrictUndefined

    from .. import __version__

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(files(__package__).joinpath("report.html.j2").read_text(encoding="utf-8"))
    found, summary = validation.calibrated.calibration, validation.summary
    programs = validation.programs()
    order = programs["error_pct"].abs().sort_values(ascending=False).index
    return template.render(
        version=__version__,
        calibration=found,
        numbers=_numbers(validation),
        summary=summary,
        t_iss0_known_to_pct=validation.t_iss0_known_to_pct,
        host=validation.calibrated.host,
        kinds=validation.by_schedule(),
        by_size=validation.by_size(),
        not_measured=validation.not_measured,
        again=[run.as_dict() for run in validation.again],
        warnings=[text[:1].upper() + text[1:] for text in validation.calibrated.warnings],
        worst=programs.loc[order[:WORST_PROGRAMS]].to_dict("records"),
        seed=validation.seed,
        drift_pct=validation.drift_pct,
        wall_s=validation.wall_s,
        agrees_pct=AGREES_PCT,
        most_noise_pct=MOST_NOISE_PCT,
        isolated=figures.isolated_bursts(validation.calibrated),
        trains=figures.trains(validation.calibrated),
        scatter=figures.scatter(validation.comparisons),
        timelines=figures.timelines(validation),
    )


def _numbers(validation: Validation) -> list[dict[str, Any]]:
    """Rows of the table of parameters: symbol, meaning, value, interval, unit."""
    c = validation.calibrated.calibration
    rows = [
        ("T_iss0", f"issues {c.reference_bytes / 1024:g} KiB with no backpressure", c.t_iss0_ns, 1.0, "ns"),
        ("t0", "start of a burst", c.t0_ns, 1.0, "ns"),
        ("w", "issue rate of one producer", c.issue_gbs, 1.0, "GB/s"),
        ("R", "drain rate of all together", c.drain_gbs, 1.0, "GB/s"),
        ("Q", "outstanding capacity of all together", c.capacity_bytes, 1024.0, "KiB"),
        ("knee", "largest isolated burst without stall", c.knee_bytes, 1024.0, "KiB a producer"),
    ]
    names = ("symbol", "meaning", "value", "low", "high", "unit")
    return [
        dict(zip(names, (symbol, meaning, e.value / scale, e.low / scale, e.high / scale, unit), strict=True))
        for symbol, meaning, e, scale, unit in rows
    ]
