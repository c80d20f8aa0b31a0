"""The page of a validation: every table, what was measured beside the law and the simulation, and how to get it again."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from xstage.hw_validate import validate as module
from xstage.hw_validate.validation import Again, Validation
from xstage.plots.html_page import Page, Picture, Table, render

import xstage as xs
from xstage.cli import main
from xstage.pages.validation import NUMBERS, WORST_PROGRAMS, validation_page

from ..hw_validate.made_up_hardware import MadeUpHardware


@pytest.fixture(scope="module")
def found() -> Validation:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "open_backend", lambda *asked: MadeUpHardware())
        return module.validate(programs=10)


def parts_of(page: Page, kind: type) -> list[Any]:
    return [part for section in page.sections for part in section.parts if isinstance(part, kind)]


def with_schedule(found: Validation) -> Validation:
    """As if its first program with stall were a schedule of a computing and a storing lane."""
    at = next(i for i, c in enumerate(found.comparisons) if c.stalled_share > 0.2)
    ops = found.comparisons[at].ops.copy()
    first = ops["kind"].eq("compute").to_numpy()
    ops["lane"], ops["role"] = np.where(first, 3, 5), np.where(first, "mma", "store")
    comparisons = list(found.comparisons)
    comparisons[at] = replace(comparisons[at], ops=ops)
    return replace(found, comparisons=comparisons, details={"op_costs": {"store": [70.25, 88.5], "lanes": (2, 24)}})


def test_everything_that_was_found_is_on_the_page(found: Validation) -> None:
    again = Again(
        "run 2", "agrees", {name: [2048.0, 1.0, 3.0] for _, _, name, *_ in NUMBERS}, 6.6, [], same_verdict=True
    )
    page = validation_page(replace(found, again=[again], not_measured=1).as_dict(), found)
    assert [section.heading for section in page.sections] == [
        "Simulated against measured", "By kind of program", "Below the knee", "Does it agree with itself?", "Calibration",
        "Programs with the largest errors", "The computer", "Other numbers",
    ]  # fmt: skip
    assert page.lead.startswith(
        "Verdict: agrees. The time to issue the stores of 10 programs that calibration never saw"
    )
    in_all, kinds, ranges, runs, numbers, worst, computer, _ = parts_of(page, Table)
    replay = found.as_dict()["replay"]
    assert ("issue time, median absolute error", f"{replay['median_abs_error_pct']:.1f} %") in in_all.rows
    assert [row[1] for row in kinds.rows] == [10] and len(ranges.rows) == 4
    assert runs.rows == [("run 2", 2048.0, 2048.0, 2.0, 2.0, "6.6", "agrees", "yes")]
    assert [row[0] for row in numbers.rows] == ["T_iss0", "t0", "w", "R", "Q", "knee"]
    assert [row[3] <= row[2] <= row[4] for row in numbers.rows] == [True] * 6
    errors = [abs(float(row[3])) for row in worst.rows]
    assert len(errors) == WORST_PROGRAMS and errors == sorted(errors, reverse=True)
    assert ("clock step ns", 0.25) in computer.rows and ("cores", "0") in computer.rows
    text = render(page)
    assert "1 more program could not be judged" in text and "The law misses" in text
    assert "made up &lt;b&gt;&amp;&lt;/b&gt;" in text


def test_what_was_measured_is_drawn(found: Validation) -> None:
    programs, isolated, trains = (part.figure for part in parts_of(validation_page(found.as_dict(), found), Picture))
    counts = {line.get_label(): len(line.get_xdata()) for line in programs.axes[0].lines}
    assert counts["with stall (5)"] == counts["almost none (5)"] == 5
    assert programs.axes[0].get_xlabel().startswith("measured")
    times = found.calibrated.times
    [points, *_] = isolated.axes[0].containers[0]
    assert np.allclose(points.get_xdata(), times.burst_bytes[times.isolated] / 1024)
    assert np.allclose(points.get_ydata(), np.median(times.issue_ns[:, times.isolated], axis=0))
    drawn = np.concatenate([bars[0].get_xdata() for bars in trains.axes[0].containers])
    assert sorted(drawn) == sorted(times.gap_ns[~times.isolated])


def test_a_schedule_is_drawn_lane_by_lane_simulated_above_measured(found: Validation) -> None:
    mended = with_schedule(found)
    _, figure, *_ = (part.figure for part in parts_of(validation_page(mended.as_dict(), mended), Picture))
    simulated, measured = figure.axes
    assert (
        simulated.get_title(loc="left").startswith("simulated: ") and measured.get_title(loc="left")[:9] == "measured:"
    )
    assert [label.get_text() for label in measured.get_yticklabels()] == ["mma 3", "store 5"]
    shown = next(c for c in mended.comparisons if c.ops["role"].nunique() > 1).ops
    stores = shown[shown["kind"] == "store"]
    ends = stores["measured_start_us"] + stores["measured_wait_us"] + stores["measured_issue_us"]
    assert max(bar.get_x() + bar.get_width() for bar in measured.patches) == pytest.approx(ends.max())


def test_what_only_one_backend_tells_is_on_the_page_by_its_name(found: Validation) -> None:
    page = validation_page(with_schedule(found).as_dict())
    *_, costs, others = parts_of(page, Table)
    assert (costs.columns, costs.rows) == (["op", "2 lanes", "24 lanes"], [["store", 70.25, 88.5]])
    assert costs.caption == "on a core that plays so many lanes, ns"
    names = {name for name, _ in others.rows}
    assert names > {"mode", "without_stall_within_noise"} and not names & {"noise_pct", "op_costs.store"}


def test_the_same_validation_gives_the_same_bytes_and_fetches_nothing(found: Validation, tmp_path: Path) -> None:
    written = [xs.report(found, tmp_path / name) for name in ("a.html", "b.html")]
    text = (tmp_path / "a.html").read_text()
    assert text == (tmp_path / "b.html").read_text()
    assert (written[0].figures, written[0].title) == (3, "How far is the simulator from made up <b>&</b>?")
    for loaded in ("src=", "@import", "url(http", "<link"):
        assert loaded not in text
    assert "called from Python" in text


def test_a_page_that_fails_leaves_no_file(found: Validation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("pathlib.Path.write_text", stop)
    with pytest.raises(KeyboardInterrupt):
        xs.report(found, tmp_path / "report.html")
    assert list(tmp_path.iterdir()) == []


def test_the_command_writes_a_page_that_says_how_to_get_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "open_backend", lambda *asked: MadeUpHardware())
    report = str(tmp_path / "report.html")
    assert main(["validate", "--programs", "4", "--seed", "3", "--report", report]) == 0
    text = Path(report).read_text()
    assert f"<pre>xstage validate --programs 4 --seed 3 --report {report}</pre>" in text
    assert re.search(r'<th scope="row">seed</th>\s*<td data-value="3">3</td>', text) and "time it took, s" in text


def test_an_answer_alone_has_the_same_tables_but_those_of_single_programs(found: Validation) -> None:
    answer = json.loads(json.dumps(found.as_dict()))
    alone, whole = parts_of(validation_page(answer), Table), parts_of(validation_page(answer, found), Table)
    assert [table.rows for table in alone] == [table.rows for table in whole if table.caption != "time in stores"]
    assert len(parts_of(validation_page(answer), Picture)) == 1


def test_a_calibration_alone_has_its_numbers_and_its_law(found: Validation) -> None:
    page = validation_page({"calibration": found.calibrated.as_dict()})
    assert [section.heading for section in page.sections] == ["Calibration", "The computer", "Other numbers"]
    assert page.title == "The stage of made up <b>&</b>" and page.lead.startswith("R is ")
    assert len(parts_of(page, Picture)) == 1


def test_isolated_bursts_alone_have_no_figure_of_trains(found: Validation) -> None:
    seen = replace(found.calibrated, times=found.calibrated.times.only_isolated())
    assert len(parts_of(validation_page(found.as_dict(), replace(found, calibrated=seen)), Picture)) == 2


def test_numbers_that_are_not_known_are_left_out(found: Validation) -> None:
    answer = found.as_dict()
    answer["replay"] |= {"without_stall_excess_pct": None, "drift_pct": None, "stalled_median_abs_error_pct": None}
    rows = dict(parts_of(validation_page(answer), Table)[0].rows)
    assert rows["bursts of the calibration, moved since"] == "not known"
    assert rows["the same, of the programs with stall"] is None and "T_iss0 is known to" not in rows
    assert (
        pd.isna(rows["the same, of the programs with stall"]) and "nan" not in render(validation_page(answer)).lower()
    )
