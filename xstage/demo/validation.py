"""The demo's last section: the stage of this computer's own cores, and how far the simulator is from it.

A computer that cannot be measured, or is too busy for it, is no failure: the section says so and has no numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..pages.report import report
from ..sim.errors import XstageError
from ..sim.files import write_whole
from .section import Section

if TYPE_CHECKING:
    from ..hw_validate.validation import Validation
    from .section import Job

NAME, TITLE = "validation", "This computer: stores of one core past its caches fill a stage too, measured and simulated"
SOURCE = "measured here"
REPORT, PROGRAMS = "validation.html", "validation.csv"


def validation(job: Job) -> Section:
    """Calibrate a core, run unseen programs on it and in the simulator, and write the report."""
    task = job.progress.add_task("validating this computer", total=1.0)
    try:
        from ..hw_validate.validate import validate

        found = validate("cpu", quick=True, progress=lambda doing, share: job.progress.update(task, description=doing))
    except (XstageError, OSError) as refusal:
        job.progress.update(task, completed=1.0)
        return Section(
            NAME,
            TITLE,
            SOURCE,
            rows=(),
            notes=(
                f"No numbers of this computer: {refusal}.",
                "`xstage validate` tries again; nothing else depends on it.",
            ),
        )
    job.progress.update(task, completed=1.0)
    page, programs = job.folder / REPORT, job.folder / PROGRAMS
    report(found, page)
    with write_whole(programs) as temporary:
        found.programs().to_csv(temporary, index=False)
    return Section(NAME, TITLE, SOURCE, rows=(), notes=_notes(found), files=(page, programs))


def _notes(found: Validation) -> tuple[str, ...]:
    answer: dict[str, Any] = found.as_dict()
    numbers, replay = answer["calibration"], answer["replay"]
    measured = (
        f"{numbers['host']['processor']}: T_iss0 {numbers['t_iss0_ns']:.1f} ns for "
        f"{numbers['reference_bytes'] / 1024:g} KiB, "
        f"R {numbers['drain_gbs']:.1f} GB/s, Q {numbers['capacity_bytes'] / 1024:.1f} KiB; "
        f"a burst of {numbers['knee_bytes'] / 1024:.1f} KiB is the largest that does not stall."
    )
    kinds = ", ".join(f"{kind['programs']} {kind['schedule']}" for kind in replay["by_schedule"])
    agreement = (
        f"Of {replay['programs']} programs that this calibration never saw ({kinds}) the time to issue all stores is "
        f"predicted to {replay['median_abs_error_pct']:.1f} % in the median, the makespan to "
        f"{replay['makespan_median_abs_error_pct']:.1f} %; repeats of one program differ by {replay['noise_pct']:.1f} %."
    )
    verdicts = {
        "agrees": "Verdict: agrees.",
        "disagrees": "Verdict: disagrees. In a few seconds, on a computer that does other things too, that is not rare; "
        "`xstage validate` takes its time.",
        "no verdict": "Verdict: none, the repeats differ too much. Try `xstage validate` when less runs on this computer.",
    }
    return (measured, agreement, verdicts[replay["verdict"]])
