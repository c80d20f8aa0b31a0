"""Figures of the teaching set: what is drawn is what the tables say, the same table gives the same bytes, and labels fit."""

import itertools

import numpy as np
import pandas as pd
import pytest
from xstage.plots.beside_figures import beside_figure
from xstage.plots.calibration_figures import isolated_figure, trains_figure
from xstage.plots.difference_figures import changes_figure
from xstage.plots.lane_figures import lanes_figure
from xstage.plots.layer_figures import layer_figure
from xstage.plots.needs_figures import needs_figure
from xstage.plots.phase_figures import phase_figure
from xstage.plots.reach_figures import measured_figure, pair_rates_figure
from xstage.plots.run_figures import law_figure, makespans_figure, roles_figure
from xstage.plots.save import save
from xstage.plots.shape_figures import attention_figure, best_policy_figure, calls_figure
from xstage.plots.study_figures import study_figure
from xstage.plots.style import house_style
from xstage.sim.calibrate import BurstTimes, fit

PAPER = {"geometric_mean": 1.18, "minimum": 0.94, "maximum": 1.62}
PHASES = pd.DataFrame(
    [
        *(("law", v, 1.4 * v, None) for v in np.linspace(0.1, 9, 20)),
        ("knee", 4.8, 0.0, None),
        *(
            ("compiled", v, g, "recovered" if g > 1.4 * v else "drain_limited")
            for v in (2.0, 5.0, 8.0)
            for g in (0.0, 6.0, 12.0)
        ),
    ],
    columns=["series", "volume_mib", "gap_us", "phase"],
)
LANES = pd.DataFrame(
    [
        (policy, end, row, phase, start, start + 8.0)
        for policy, end in (("expert_wave", 50.0), ("interleaved", 40.0))
        for row in range(4)
        for phase, start in (("l1", 1.0), ("l2", 10.0 + row))
    ],
    columns=["policy", "makespan_us", "row", "phase", "start_us", "end_us"],
)
CALLS = pd.DataFrame(
    [
        (model, numbers, tokens, routing, 1.0 + 0.01 * (i + tokens / 4096))
        for i, model in enumerate(("dsv4-flash", "qwen3.5", "mimo-v2.5", "glm-5.2"))
        for numbers in ("w4a8", "w8a8")
        for tokens in (2048, 4096, 8192)
        for routing in ("balanced", "skewed")
    ],
    columns=["model", "numbers", "tokens", "routing", "speedup"],
)
ATTENTION = pd.DataFrame(
    [
        *(
            ("simulated", p, t, 1.0 + 2048 / t)
            for p in ("compute_only", "serial", "piggyback")
            for t in (4096, 8192, 16384)
        ),
        ("measured", "serial", 8192, 1.0),
        ("measured", "piggyback", 8192, 1.43),
    ],
    columns=["series", "policy", "tokens", "speedup"],
)
BEST = pd.DataFrame(
    [
        (m, k, policy, speedup + m / 1e5)
        for m in (512, 1024, 2048)
        for k in (4096, 8192)
        for policy, speedup in (("serial", 1.0), ("fused", 0.8), ("reshaped", 1.5))
    ],
    columns=["m", "k", "policy", "speedup"],
)
PAIRS = pd.DataFrame(
    [
        (machine, a, b, 40.0 if machine == "even" or a // 2 == b // 2 else 10.0)
        for machine in ("even", "uneven")
        for a in range(4)
        for b in range(4)
        if a != b
    ],
    columns=["machine", "source", "destination", "gbs"],
)
MEASURED = pd.DataFrame(
    [(kind, t, t * f, 100 * (f - 1), 10) for kind in ("megamoe", "attention") for t, f in ((100.0, 1.1), (900.0, 0.8))],
    columns=["kind", "time_us", "predicted_us", "error_pct", "one_row_in"],
)
BESIDE = pd.DataFrame({"what": ["store", "gap"], "measured_issue_us": [1.0, 2.0], "simulated_issue_us": [1.1, 1.9]})
SWEPT = pd.DataFrame(
    [
        (rate, room, 4 * room, gap, 100.0 / rate + gap)
        for rate in (1, 2)
        for room in (15 * 1024, 60 * 1024)
        for gap in (1, 2, 4)
    ],
    columns=["drain_rate_gbs", "capacity_sm_bytes", "capacity_gpu_bytes", "workload.gap_us", "makespan_us"],
)
SWEPT_AXES, TOGETHER = (
    ["drain_rate_gbs", "capacity_sm_bytes", "workload.gap_us"], {"capacity_sm_bytes": ["capacity_gpu_bytes"]},
)  # fmt: skip
ROLES = pd.DataFrame(
    {
        "role": ["mma", "store"],
        "busy": [80.0, 20.0],
        "stall": [0.0, 30.0],
        "wait: slot": [10.0, None],
        "not running": [10.0, 50.0],
    }
)
LAW = {
    "t0_ns": 1.0, "issue_gbs": 160.0, "drain_gbs": 40.0, "capacity_bytes": 13000.0, "knee_bytes": 17500.0, "producers": 1,
    "intervals": {"knee_bytes": [16000.0, 19000.0]},
}  # fmt: skip
ALONE = 1024.0 * np.array([*range(2, 18, 2), *range(24, 88, 8)])
IN_TRAINS = 1024.0 * np.repeat([16.0, 32.0], 4)
ISSUED_NS = np.concatenate(
    [
        np.maximum(8 + ALONE / 160, (ALONE - 13_000) / 40),
        np.maximum(110.0, IN_TRAINS / 40 - np.tile([50, 200, 400, 800], 2)),
    ]
)
BURSTS = BurstTimes(1, np.concatenate([ALONE, IN_TRAINS]), np.array([np.inf] * len(ALONE) + [50.0, 200, 400, 800] * 2),
                    ISSUED_NS * np.linspace(0.98, 1.02, 5)[:, None])  # fmt: skip
FITTED = fit(BURSTS, draws=20)
CONTROL = pd.DataFrame(
    {"burst_bytes": ALONE, "completed_ns": 60 + ISSUED_NS[: len(ALONE)], "control_ns": 8 + ALONE / 160}
)

FIGURES = {
    "phases": (lambda: phase_figure(PHASES), PHASES),
    "lanes": (lambda: lanes_figure(LANES), LANES),
    "calls": (lambda: calls_figure(CALLS, PAPER), CALLS),
    "attention": (lambda: attention_figure(ATTENTION), ATTENTION),
    "best": (lambda: best_policy_figure(BEST), BEST),
    "pairs": (lambda: pair_rates_figure(PAIRS), PAIRS),
    "measured": (lambda: measured_figure(MEASURED), MEASURED),
    "beside": (lambda: beside_figure(BESIDE, within_pct=10), BESIDE),
    "sweep": (lambda: study_figure(SWEPT, SWEPT_AXES, "makespan_us", "", TOGETHER), SWEPT),
    "roles": (lambda: roles_figure(ROLES, 100.0), ROLES),
    "makespans": (lambda: makespans_figure(pd.DataFrame({"policy": ["a", "b"], "makespan_us": [2.0, 1.0]})), ROLES),
    "law": (lambda: law_figure(LAW), ROLES),
    "isolated": (lambda: isolated_figure(BURSTS, FITTED, CONTROL), CONTROL),
    "trains": (lambda: trains_figure(BURSTS, FITTED), CONTROL),
}


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_made_twice_is_the_same_to_the_byte(name, tmp_path):
    draw, data = FIGURES[name]
    once, twice = (save(draw(), data, tmp_path / turn, name, ("svg",)) for turn in ("once", "twice"))
    for first, second in zip(once, twice, strict=True):
        assert first.read_bytes() == second.read_bytes(), first.name


@pytest.mark.parametrize("name", FIGURES)
def test_a_file_does_not_depend_on_the_others_that_are_written(name, tmp_path):
    draw, data = FIGURES[name]
    save(draw(), data, tmp_path / "alone", name, ("png",))
    save(draw(), data, tmp_path / "after", name, ("svg", "png"))
    assert (tmp_path / "alone" / f"{name}.png").read_bytes() == (tmp_path / "after" / f"{name}.png").read_bytes()


@pytest.mark.parametrize("name", FIGURES)
def test_nothing_is_cut_off_and_axes_say_what_they_show(name):
    figure = FIGURES[name][0]()
    with house_style():
        figure.draw_without_rendering()
        drawn = figure.get_tightbbox()
    wide, high = figure.get_size_inches()
    assert drawn.x0 > -0.03 and drawn.y0 > -0.03 and drawn.x1 < wide + 0.03 and drawn.y1 < high + 0.03, drawn
    assert figure.get_supxlabel() or any(axes.get_xlabel() or name == "calls" for axes in figure.axes)


def test_the_phase_diagram_marks_each_simulated_train_by_its_phase():
    [axes] = phase_figure(PHASES).axes
    drawn = {line.get_label(): line.get_xydata() for line in axes.lines}
    for phase, label in (("recovered", "recovered"), ("drain_limited", "drain-limited")):
        np.testing.assert_array_equal(drawn[label], PHASES.loc[PHASES["phase"] == phase, ["volume_mib", "gap_us"]])


def test_lanes_have_a_bar_a_task_from_its_start_to_its_end():
    panels = lanes_figure(LANES).axes
    for axes, policy in zip(panels, ("expert_wave", "interleaved"), strict=True):
        mine = LANES[LANES["policy"] == policy]
        bars = {(round(bar.get_x(), 6), round(bar.get_x() + bar.get_width(), 6)) for bar in axes.patches}
        assert bars == {(row.start_us, row.end_us) for row in mine.itertuples()}


def test_lanes_say_for_how_much_of_the_time_they_do_what_is_drawn():
    """Each row has two bars of 8 us, of 50 and of 40 us."""
    titles = [axes.get_title(loc="left") for axes in lanes_figure(LANES, doing="computing").axes]
    assert titles == ["expert_wave: 50 µs, computing 32 % of it", "interleaved: 40 µs, computing 40 % of it"]
    assert lanes_figure(LANES).axes[0].get_title(loc="left") == "expert_wave: 50 µs"


def test_lanes_say_what_their_phases_are_and_where_the_end_is():
    [legend] = lanes_figure(LANES).legends
    said = [text.get_text() for text in legend.get_texts()]
    assert said == ["L1: first GEMM of an expert", "L2: its second GEMM", "end"]


def test_what_differs_in_colour_differs_without_it_too():
    bars = lanes_figure(LANES).axes[0].patches
    assert (
        len({(bar.get_facecolor(), bar.get_height()) for bar in bars}) == len({bar.get_height() for bar in bars}) == 2
    )
    marks = [line for line in calls_figure(CALLS, PAPER).axes[0].lines if line.get_linestyle() == "None"]
    assert len({(mark.get_color(), mark.get_markersize()) for mark in marks}) == 2
    assert len({mark.get_markersize() for mark in marks}) == 2


def test_lanes_are_named_by_their_roles_where_the_data_have_them():
    roles = LANES["row"].map({0: "mma", 1: "mma", 2: "epilogue", 3: "store"})
    axes = lanes_figure(LANES.assign(role=roles)).axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["mma", "mma", "epilogue", "store"]


def test_nine_kernels_of_a_block_look_like_nine():
    kernels = pd.DataFrame({"policy": "serial", "kernel": [f"k{i}" for i in range(9)], "start_us": np.arange(9.0),
                            "time_us": 1.0, "exposed_us": 0.0})  # fmt: skip
    bars = [bar for bar in layer_figure(kernels).axes[0].patches if bar.get_facecolor()[3] and bar.get_width()]
    assert len({(bar.get_facecolor(), bar.get_hatch()) for bar in bars}) == 9


def test_many_columns_and_panels_stay_within_a_page():
    swept = pd.DataFrame(
        [
            (rate, burst, gap, rate * burst + gap)
            for rate in range(400, 3300, 100)
            for burst in range(5)
            for gap in range(3)
        ],
        columns=["drain_rate_gbs", "burst_kib", "gap_us", "makespan_us"],
    )
    figure = study_figure(
        swept, ["drain_rate_gbs", "burst_kib", "gap_us"], "makespan_us", "A question that is long " * 8
    )
    wide, _ = figure.get_size_inches()
    with house_style():
        figure.draw_without_rendering()
        drawn = figure.get_tightbbox()
        labels = [text.get_window_extent() for text in figure.axes[2].get_xticklabels() if text.get_text()]
    assert wide <= 8.5 and drawn.x0 > -0.03 and drawn.x1 < wide + 0.03
    assert len(labels) > 5 and all(left.x1 < right.x0 for left, right in itertools.pairwise(labels))


def test_mappings_in_titles_of_panels_are_words():
    policies = ["serial", "name=piggyback rotation=True"]
    swept = pd.DataFrame([(a, b, policy, 1.0 + a + b) for a in range(4) for b in range(3) for policy in policies],
                         columns=["a", "b", "policy", "makespan_us"])  # fmt: skip
    panels = [axes for axes in study_figure(swept, ["a", "b", "policy"], "makespan_us", "").axes if axes.images]
    assert panels[1].get_title(loc="left") == "policy:\npiggyback, with rotation"


def test_what_is_needed_is_told_as_a_factor_on_an_axis_with_steps():
    data = pd.DataFrame({"limit": "capacity (Q)", "factor": [1.0, 1.2, 1.4, 2.0], "makespan_us": [9.0, 8, 7, 7],
                         "needed_factor": 1.4, "best_us": 7.0})  # fmt: skip
    [axes] = needs_figure(data).axes
    assert "enough: 1.4×" in [text.get_text() for text in axes.texts]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1", "1.25", "1.5", "1.75", "2"]


def test_changes_that_are_not_drawn_are_counted_with_the_others():
    data = pd.DataFrame({"what": [f"number {i}" for i in range(30)], "relative_pct": np.arange(1.0, 31)})
    assert (
        changes_figure(data, "a.json", "b.json").axes[0].get_title(loc="left")
        == "b.json:\nthe 20 largest of 30 changes"
    )


def test_calls_say_in_how_many_of_them_interleaving_is_faster():
    some = CALLS.assign(speedup=np.where(CALLS["model"] == "qwen3.5", 0.97, CALLS["speedup"]))
    said = f"Interleaved MegaMoE is faster in {len(some) - 12} of {len(some)} calls,\nbalanced and skewed"
    assert calls_figure(some, PAPER).axes[0].get_title(loc="left") == said


def test_every_call_is_a_mark_at_its_speedup():
    [axes] = calls_figure(CALLS, PAPER).axes
    marks = np.concatenate([line.get_ydata() for line in axes.lines if line.get_linestyle() == "None"])
    np.testing.assert_allclose(np.sort(marks), np.sort(CALLS["speedup"]))


def test_calls_tell_that_half_of_those_of_the_paper_are_skewed():
    [axes] = calls_figure(CALLS, PAPER).axes
    own, paper = axes.texts[0].get_text().splitlines()
    assert own == f"geometric mean {np.exp(np.log(CALLS['speedup']).mean()):.3f}"
    assert paper.startswith(f"the paper's 84 calls, half of them skewed: {PAPER['geometric_mean']:g}")


def test_the_map_names_the_fastest_policy_of_each_size():
    axes = best_policy_figure(BEST).axes[0]
    assert {text.get_text().split("\n")[0] for text in axes.texts} == {"reshaped"}
    assert len(axes.texts) == 6


def test_pairs_of_each_machine_have_all_colours():
    slow = PAIRS.assign(gbs=np.where(PAIRS["machine"] == "uneven", PAIRS["gbs"] / 2, PAIRS["gbs"]))
    even, uneven = [
        axes for axes in pair_rates_figure(slow).axes if len(axes.get_images()) and axes.get_title(loc="left")
    ]
    assert [axes.get_title(loc="left") for axes in (even, uneven)] == ["even: 40", "uneven: 5 to 20"]
    assert even.images[0].get_clim() == (0, 40) and uneven.images[0].get_clim() == (0, 20)
    grid = uneven.images[0].get_array()
    assert (grid[0, 1], grid[0, 2]) == (20.0, 5.0)


def test_a_sweep_names_axes_that_move_together_and_writes_sizes_with_units():
    panels = [axes for axes in study_figure(SWEPT, SWEPT_AXES, "makespan_us", "", TOGETHER).axes if axes.images]
    assert [label.get_text() for label in panels[0].get_xticklabels()] == ["1", "2", "4"]
    assert panels[0].get_xlabel() == "gap, µs" and len(panels) == 2
    room = SWEPT[SWEPT["drain_rate_gbs"] == 1]
    plain = study_figure(room, SWEPT_AXES[1:], "makespan_us", "", TOGETHER).axes[0]
    assert plain.get_ylabel() == "capacity sm and capacity gpu"
    assert [label.get_text() for label in plain.get_yticklabels()] == ["15 KiB, 60 KiB", "60 KiB, 240 KiB"]
    line = study_figure(room[room["workload.gap_us"] == 1], ["capacity_sm_bytes"], "makespan_us", "").axes[0]
    assert (line.get_xlabel(), line.get_xticklabels()[0].get_text()) == ("capacity sm", "15 KiB")


def test_the_law_bends_at_the_knee():
    [axes] = law_figure(LAW).axes
    law = next(line for line in axes.lines if line.get_label() == "law").get_xydata()
    slopes = np.diff(law[:, 1]) / np.diff(law[:, 0])
    bend = law[np.argmax(np.diff(slopes)) + 1, 0] * 1024
    assert bend == pytest.approx((LAW["capacity_bytes"] + 40.0) / (1 - 40 / 160), rel=0.02)


@pytest.mark.parametrize(
    ("one_row_in", "said"), [(10, "4 published times, one row in 10:\n"), (1, "4 published times: ")]
)
def test_predictions_beside_measurements_say_how_many_of_them_are_drawn(one_row_in, said):
    [axes] = measured_figure(MEASURED.assign(one_row_in=one_row_in)).axes
    assert axes.get_title(loc="left") == said + "median error 15.0 %"


def test_the_band_is_within_20_percent_of_what_was_measured():
    [axes] = measured_figure(MEASURED).axes
    corners = axes.collections[0].get_paths()[0].vertices
    inner = corners[corners[:, 0] > 0]
    assert {round(float(y / x), 6) for x, y in inner} == {0.8, 1.2}
