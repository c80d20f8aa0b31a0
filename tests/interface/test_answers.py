"""Every command is a function whose answer is a table, or an object that draws and shows itself."""

import importlib
import inspect

import pandas as pd
import pytest
from matplotlib.figure import Figure
from xstage.hw_validate import validate as hardware
from xstage.sim.fit_times import Fit

import xstage as xs
from xstage.predictions.machine_fit import MachineFit
from xstage.predictions.published import Published

from ..hw_validate.made_up_hardware import MadeUpHardware

FUNCTIONS = [name for name in xs.__all__ if inspect.isfunction(getattr(xs, name))]
NO_ANSWER = {
    "build_program": "gives a Program and the Fabric that it runs on",
    "load_machine": "gives a machine",
    "load_scenario": "gives a scenario",
    "simulate": "runs a Program, and gives a Trace",
    "write_trace": "writes a file",
}
"""Functions that are no commands, and what they do."""
NOTHING_TO_DRAW = {
    "Diagnosis": "facts about this computer",
    "Estimate": "four numbers",
    "Report": "a page, which holds its figures",
    "RunEstimate": "four numbers",
}


def answer_of(name):
    """The class that a function's signature promises."""
    function = getattr(xs, name)
    promised = str(inspect.signature(function).return_annotation)
    if promised == "pd.DataFrame":
        return pd.DataFrame
    found = getattr(xs, promised, None) or getattr(importlib.import_module(function.__module__), promised, None)
    assert inspect.isclass(found), f"{name} gives a {promised}, which is no class that a user can reach"
    return found


@pytest.mark.parametrize("name", [name for name in FUNCTIONS if name not in NO_ANSWER])
def test_every_answer_shows_itself_in_a_notebook_and_draws(name):
    answer = answer_of(name)
    assert hasattr(answer, "_repr_html_")
    assert hasattr(answer, "plot") != (answer.__name__ in NOTHING_TO_DRAW)


def test_what_is_said_to_have_no_answer_or_nothing_to_draw_is_there():
    assert set(NO_ANSWER) <= set(FUNCTIONS)
    assert set(NOTHING_TO_DRAW) <= {answer_of(name).__name__ for name in FUNCTIONS if name not in NO_ANSWER}


def drawn(figure):
    """The text on a figure."""
    assert isinstance(figure, Figure)
    figure.canvas.draw()
    [axes] = figure.axes
    return [
        axes.get_title("left"),
        axes.get_xlabel(),
        axes.get_ylabel(),
        *(t.get_text() for t in axes.get_yticklabels()),
    ]


def test_an_audit_draws_the_knee_and_the_burst_that_was_asked_about():
    found = xs.audit("hgx-b200", 148, "48 KiB", "8 us")
    assert found.verdict == "stalls" and found.as_dict()["stall_us"] == found.stall_us
    figure = found.plot()
    assert drawn(figure)[:3] == ["48 KiB: stalls", "burst $B$, KiB a producer", "issue time $T_\\mathrm{iss}$, µs"]
    first, marked_first, steady, marked = figure.axes[0].lines[:4]
    assert marked.get_xydata()[0] == pytest.approx([48, found.t_iss_us], rel=1e-3)
    assert marked_first.get_xydata()[0][1] == pytest.approx(
        found.t_iss_us - found.stall_us + found.first_stall_us, rel=1e-2
    )
    assert (first.get_label(), steady.get_label()) == ("first burst", "in the long run")
    assert "1.125 us more computation" in found._repr_html_()


def test_one_sm_that_never_overruns_its_stage_is_drawn_too():
    assert drawn(xs.audit("hgx-b200", 1, "4 KiB").plot())[0] == "4 KiB: fits"


def test_a_difference_draws_the_largest_changes_first():
    found = xs.diff("hgx-h100", "hgx-h200")
    names = drawn(found.plot())[3:]
    known = found.frame.dropna(subset="relative_pct")
    largest = known["what"].iloc[known["relative_pct"].abs().argmax()]
    assert names[0] == largest and len(names) == min(20, len(known))
    assert drawn(xs.diff("hgx-h100", "hgx-h100").plot())[0] == "nothing differs"


def test_predictions_draw_the_rows_that_are_judged():
    rows = pd.DataFrame({
        "kind": ["megamoe", "attention", "attention"], "time_us": [100.0, 50.0, 70.0], "predicted_us": [110.0, 50.0, 70.0],
        "error_pct": [10.0, 0.0, 0.0], "judged": [True, True, False],
    })  # fmt: skip
    assert drawn(Published(rows).plot())[0] == "2 published times: median error 5.0 %"


def test_a_fit_draws_each_call_before_and_after():
    fit = Fit(numbers=(), measured_us=(100.0, 50.0), before_us=(150.0, 60.0), predicted_us=(101.0, 49.0), simulations=0)
    found = MachineFit("hgx-h100", ("one call", "another"), fit)
    figure = found.plot()
    assert drawn(figure)[3:] == ["one call", "another"]
    before, after = figure.axes[0].lines[:2]
    assert before.get_xdata() == pytest.approx([50, 20]) and after.get_xdata() == pytest.approx([1, -2])
    assert "one call" in found._repr_html_()


def test_a_calibration_and_a_validation_show_and_draw_themselves(monkeypatch):
    monkeypatch.setattr(hardware, "open_backend", lambda *asked: MadeUpHardware())
    done = xs.validate(programs=6)
    assert "drain_gbs" in done.calibrated._repr_html_()
    assert drawn(done.calibrated.plot())[0] == "An isolated burst"
    assert done.summary.verdict in done._repr_html_()
    assert drawn(done.plot())[1] == "measured, µs a program"


def test_estimates_and_reports_show_themselves(tmp_path):
    shown = xs.estimate_run(xs.load_scenario("isolated-burst"))._repr_html_()
    assert "about" in shown and "granules" in shown
    answer = '{"schema_version": 1, "xstage_version": "0", "reason": "none", "rows": [{"a": 1}]}'
    (tmp_path / "answer.json").write_text(answer, encoding="utf-8")
    page = xs.report(tmp_path / "answer.json", tmp_path / "page.html")
    assert f'href="{(tmp_path / "page.html").as_posix()}"' in page._repr_html_()
