"""Figures of schedules: what is drawn is what the data say, and the same data give the same bytes."""

import itertools

import numpy as np
import pandas as pd
import pytest
from xstage.plots.save import save
from xstage.plots.schedule_figures import breakdown_figure, timeline_figure, tune_figure, waterfall_figure
from xstage.plots.style import house_style

TIMELINE = pd.DataFrame(
    [
        (policy, 10.0 * step, 100.0 - 10 * (step % 3), 50.0, makespan)
        for policy, makespan in (("expert_wave", 100.0), ("interleaved", 90.0))
        for step in range(10)
    ],
    columns=["policy", "time_us", "tensor_core_pct", "egress_pct", "makespan_us"],
)
BREAKDOWN = pd.DataFrame(
    [
        (policy, role, 4, what, cause, time)
        for policy in ("expert_wave", "interleaved")
        for role, what, cause, time in (
            ("mma", "busy", None, 80.0),
            ("mma", "wait", "inputs", 12.0),
            ("mma", "wait", "slot", 3.0),
            ("epilogue", "stall", None, 7.0),
            ("epilogue", "wait", "slot", 500.0),
            ("combine", "wait", "barrier", 900.0),
        )
    ],
    columns=["policy", "role", "lanes", "what", "cause", "mean_us"],
)
WATERFALL = pd.DataFrame(
    [("Q", 30.0, "Q without limit"), ("R", -5.0, "R without limit"), ("compute", 70.0, None), ("after", 5.0, None)],
    columns=["cause", "us", "removed_by"],
)
TUNE = pd.DataFrame({
    "policy": ["expert_wave", *["interleaved"] * 4],
    "lead_rows": [np.nan, np.nan, 0, 192, 384],
    "makespan_us": [120.0, 101.0, 150.0, 100.5, 100.0],
})  # fmt: skip

FIGURES = {
    "timeline": (lambda: timeline_figure(TIMELINE), TIMELINE),
    "breakdown": (lambda: breakdown_figure(BREAKDOWN), BREAKDOWN),
    "waterfall": (lambda: waterfall_figure(WATERFALL), WATERFALL),
    "tune": (lambda: tune_figure(TUNE, "interleaved", "lead_rows", 192, 120.0), TUNE),
    "best": (lambda: tune_figure(TUNE, "interleaved", None, None, 120.0), TUNE),
}


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_made_twice_is_the_same_to_the_byte(name, tmp_path):
    draw, data = FIGURES[name]
    once, twice = (save(draw(), data, tmp_path / turn, name) for turn in ("once", "twice"))
    for first, second in zip(once, twice, strict=True):
        assert first.read_bytes() == second.read_bytes(), first.name


@pytest.mark.parametrize("name", FIGURES)
def test_nothing_is_cut_off(name):
    figure = FIGURES[name][0]()
    with house_style():
        figure.draw_without_rendering()
        drawn = figure.get_tightbbox()
    assert drawn.x0 > -0.03 and drawn.x1 < figure.get_size_inches()[0] + 0.03


def test_a_timeline_has_a_panel_a_policy_on_one_time_axis():
    first, second = timeline_figure(TIMELINE).axes
    assert (first.get_title(loc="left"), second.get_title(loc="left")) == (
        "expert_wave: 100 µs, egress full 0 % of the time",
        "interleaved: 90 µs, egress full 0 % of the time",
    )
    assert first.get_xlim() == second.get_xlim()


def test_a_timeline_says_for_how_much_of_its_time_the_egress_is_full():
    """Of the ten steps of 10 us, interleaved ends after nine."""
    full = TIMELINE.assign(egress_pct=np.where(TIMELINE["time_us"] < 30, 95.0, 50.0))
    titles = [axes.get_title(loc="left") for axes in timeline_figure(full).axes]
    assert [title.rpartition("full ")[2] for title in titles] == ["30 % of the time", "33 % of the time"]


def test_the_breakdown_draws_every_stall_and_wait_of_lanes_that_compute_or_store():
    figure = breakdown_figure(BREAKDOWN)
    assert [axes.get_title(loc="left") for axes in figure.axes] == [
        "mma lanes wait 15.0 µs\n(they drive the Tensor Cores)",
        "epilogue lanes stall 7.0 µs\n(without their waits for a slot)",
    ]
    for axes, longest in zip(figure.axes, (12 + 3, 7), strict=True):
        assert [label.get_text() for label in axes.get_yticklabels()] == ["expert_wave", "interleaved"]
        assert max(bar.get_x() + bar.get_width() for bar in axes.patches) == longest
    [legend] = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["stall", "wait: inputs", "wait: slot"]
    hatches = [patch.get_hatch() for patch in legend.get_patches()]
    assert len(set(hatches)) == 3, "causes differ without their colours, too"


def test_lanes_that_compute_and_stall_stand_still_rather_than_wait():
    """`math` lanes store their tiles themselves. A stall of 0 is none."""
    stalled = BREAKDOWN.replace({"role": {"mma": "math"}, "what": {"busy": "stall"}})
    none = stalled.assign(mean_us=stalled["mean_us"].where(stalled["mean_us"] != 80, 0.0))
    titles = [breakdown_figure(data).axes[0].get_title(loc="left").partition("\n")[0] for data in (stalled, none)]
    assert titles == ["math lanes stand still 95.0 µs", "math lanes wait 15.0 µs"]


def test_bars_of_all_roles_have_one_scale_and_their_sums_behind_them():
    figure = breakdown_figure(BREAKDOWN)
    lanes, epilogue = figure.axes
    assert lanes.get_xlim() == epilogue.get_xlim() and lanes.get_xlim()[1] > 15
    sums = [[text.get_text() for text in axes.texts] for axes in (lanes, epilogue)]
    assert sums == [["15.0", "15.0"], ["7.0", "7.0"]]
    figure.draw_without_rendering()
    ends = [text.get_window_extent().x1 for axes in figure.axes for text in axes.texts]
    assert max(ends) <= lanes.get_window_extent().x1


def test_a_timeline_names_all_of_its_lines_and_what_was_simulated():
    figure = timeline_figure(TIMELINE, "a layer, on 8 GPUs")
    [legend] = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [
        "Tensor Core lanes that compute",
        "egress in use",
        "end",
    ]
    assert figure.get_suptitle() == "a layer, on 8 GPUs"


def test_the_bars_of_a_waterfall_end_at_the_makespan():
    [axes] = waterfall_figure(WATERFALL).axes
    *steps, total = [bar for bar in axes.patches if bar.get_width()]
    assert steps[-1].get_x() + steps[-1].get_width() == pytest.approx(100)
    assert total.get_width() == pytest.approx(100)


def test_what_a_limit_saves_alone_is_a_mark_beyond_its_bar():
    """R saves 6 us as a bar, and 40 alone: it hides behind Q, from whose end both are counted."""
    data = WATERFALL.assign(us=[30.0, 6.0, 60.0, 4.0], alone_us=[30.0, 40.0, np.nan, np.nan], name=["Q", "R", "a", "b"])
    [axes] = waterfall_figure(data).axes
    [marks] = [line.get_xdata() for line in axes.lines if line.get_marker() == "D"]
    np.testing.assert_allclose(marks, [30, 70, np.nan, np.nan])
    assert axes.get_title(loc="left") == "Where 100 µs go:\nR alone takes 40 of them"
    most_sending = data.assign(name=["Q", "sending", "a", "b"])
    assert "Q alone takes 30" in waterfall_figure(most_sending).axes[0].get_title(loc="left")


def test_the_curve_of_a_setting_has_its_points_and_its_knee():
    [axes] = tune_figure(TUNE, "interleaved", "lead_rows", 192, 120.0).axes
    np.testing.assert_array_equal(axes.lines[0].get_xydata(), [[0, 150], [192, 100.5], [384, 100]])
    assert [text.get_text() for text in axes.texts] == [r"$D_\mathrm{knee}$ = 192"]
    assert axes.get_ylim()[0] == 0
    assert axes.get_title(loc="left") == "interleaved: makespan over row lead D"
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["interleaved", "as written: expert_wave"]


def test_leads_that_ran_with_their_ring_are_not_mixed_with_the_written_one():
    """Which has no ring: it is a line, and no point of the curve."""
    written = pd.DataFrame({"policy": "interleaved", "lead_rows": [0], "makespan_us": [110.0], "room_bytes": [np.nan]})
    tried = pd.concat([written, TUNE.iloc[2:].assign(room_bytes=[2.0, 2.0, 3.0])], ignore_index=True)
    [axes] = tune_figure(tried, "interleaved", "lead_rows", 192, 110.0).axes
    np.testing.assert_array_equal(axes.lines[0].get_xydata(), [[0, 150], [192, 100.5], [384, 100]])


def test_leads_far_apart_have_a_logarithmic_axis_with_room_between_their_labels():
    leads = [0, 192, 384, 768, 960, 1152, 1536, 4800, 24576]
    tried = pd.DataFrame(
        {"policy": "interleaved", "lead_rows": leads, "makespan_us": [900 - lead / 100 for lead in leads]}
    )
    figure = tune_figure(tried, "interleaved", "lead_rows", 960, None)
    figure.canvas.draw()
    labels = [label.get_window_extent() for label in figure.axes[0].get_xticklabels()]
    assert figure.axes[0].get_xscale() == "symlog" and len(labels) > 4
    assert "logarithmic" in figure.axes[0].get_xlabel()
    assert all(left.x1 < right.x0 for left, right in itertools.pairwise(labels))


def test_a_setting_that_is_on_or_off_is_bars_and_no_curve():
    tried = pd.DataFrame({
        "policy": ["serial", "piggyback", "piggyback", "piggyback"],
        "rotation": [np.nan, np.nan, True, False],
        "makespan_us": [400.0, 340.0, 320.0, 350.0],
    })  # fmt: skip
    figure = tune_figure(tried, "piggyback", "rotation", None, 400.0)
    [axes] = figure.axes
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert labels == ["serial", "piggyback", "piggyback, with rotation", "piggyback, without rotation"]
    assert [bar.get_width() for bar in axes.patches] == [400, 340, 320, 350]
    assert [line.get_xdata()[0] for line in axes.lines] == [400]  # the scenario as it is written
    counted = tried.assign(rotation=[np.nan, np.nan, 1, 0])
    assert "rotation" in tune_figure(counted, "piggyback", "rotation", None, 400.0).axes[0].get_xlabel()


def test_the_makespan_stands_beside_a_policy_where_the_data_have_it():
    ends = BREAKDOWN["policy"].map({"expert_wave": 1291.1, "interleaved": 12.345})
    [axes, _] = breakdown_figure(BREAKDOWN.assign(makespan_us=ends)).axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["expert_wave: 1291 µs", "interleaved: 12.3 µs"]
