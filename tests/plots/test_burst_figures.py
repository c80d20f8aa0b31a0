"""Figures of bursts: what is drawn is what the data say, and the same data give the same bytes."""

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from xstage.plots.burst_figures import knee_figure, occupancy_figure, recovery_figure
from xstage.plots.save import save
from xstage.sim.errors import InputError

KNEE = pd.DataFrame(
    [
        *(("law", size, 0.3 + 0.01 * size + 0.2 * max(0, size - 33)) for size in range(1, 65)),
        *(("compiled", size, 0.3 + 0.01 * size) for size in (8, 16, 32)),
        ("simpy", 16, 0.46),
    ],
    columns=["series", "burst_kib", "t_iss_us"],
)
RECOVERY = pd.DataFrame(
    [
        (series, mode, size, gap, max(0.8, size / 5 - gap))
        for series in ("law", "compiled")
        for mode in ("free_running", "synchronised")
        for size in (32, 48)
        for gap in range(13)
    ],
    columns=["series", "mode", "burst_kib", "gap_us", "t_iss_us"],
)
OCCUPANCY = pd.DataFrame(
    [
        (phase, phase.replace("_", "-"), time, 50.0 * (time % 3))
        for phase in ("issue_bound", "drain_limited")
        for time in range(31)
    ],
    columns=["phase", "title", "time_us", "held_pct"],
)

FIGURES = {
    "knee": (lambda: knee_figure(KNEE, 33.1, 33.0), KNEE),
    "recovery": (lambda: recovery_figure(RECOVERY, {32: 5.6, 48: 8.8}), RECOVERY),
    "occupancy": (lambda: occupancy_figure(OCCUPANCY), OCCUPANCY),
}


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_made_twice_is_the_same_to_the_byte(name, tmp_path):
    draw, data = FIGURES[name]
    formats = ("png", "svg", "pdf")
    once, twice = (save(draw(), data, tmp_path / turn, name, formats) for turn in ("once", "twice"))
    assert [path.name for path in once] == [f"{name}.{kind}" for kind in (*formats, "csv")]
    for first, second in zip(once, twice, strict=True):
        assert first.read_bytes() == second.read_bytes(), first.name


def test_the_settings_of_the_reader_do_not_change_a_figure(tmp_path):
    [plain] = save(knee_figure(KNEE, 33.1, 33.0), KNEE, tmp_path / "plain", "knee", ("png",))[:1]
    with mpl.rc_context({"font.size": 20, "lines.linewidth": 9, "savefig.dpi": 30}):
        [other] = save(knee_figure(KNEE, 33.1, 33.0), KNEE, tmp_path / "other", "knee", ("png",))[:1]
        assert mpl.rcParams["font.size"] == 20
    assert plain.read_bytes() == other.read_bytes()


@pytest.mark.parametrize("name", FIGURES)
def test_the_csv_beside_a_figure_holds_its_data(name, tmp_path):
    draw, data = FIGURES[name]
    *_, file = save(draw(), data, tmp_path, name)
    pd.testing.assert_frame_equal(pd.read_csv(file), data, check_dtype=False)


def test_a_format_that_cannot_be_written_is_refused_before_anything_is(tmp_path):
    with pytest.raises(InputError, match=r"formats = 'gif'.*allowed: png, svg, pdf"):
        save(knee_figure(KNEE, 33.1, 33.0), KNEE, tmp_path, "knee", ("png", "gif"))
    assert not list(tmp_path.iterdir())


def test_the_knee_figure_draws_every_point_of_both_engines():
    [axes] = knee_figure(KNEE, 33.1, 33.0).axes
    drawn = {line.get_label(): line.get_xydata() for line in axes.lines}
    for label, series in (("closed form", "law"), ("compiled engine", "compiled"), ("SimPy engine", "simpy")):
        np.testing.assert_array_equal(drawn[label], KNEE.loc[KNEE["series"] == series, ["burst_kib", "t_iss_us"]])
    assert [text.get_text() for text in axes.texts] == ["knee: simulated 33.1 KiB,\npublished 33 KiB"]


def test_the_recovery_figure_marks_the_gap_of_each_burst_size():
    [axes] = recovery_figure(RECOVERY, {32: 5.6, 48: 8.8}).axes
    assert [text.get_text() for text in axes.texts] == ["G* = 5.6 µs", "G* = 8.8 µs"]


def test_the_legend_of_the_recovery_figure_has_the_line_of_each_mode():
    legend = recovery_figure(RECOVERY, {32: 5.6, 48: 8.8}).axes[0].get_legend()
    looks = {line.get_label(): (line.get_linestyle(), line.get_marker()) for line in legend.legend_handles}
    assert looks["32 KiB, free-running"] == ("-", "o") and looks["32 KiB, started together"] == ("--", "^")
    assert legend.get_title().get_text() == "marks: simulated, lines: closed forms"


@pytest.mark.parametrize("name", FIGURES)
def test_every_axis_says_what_it_shows_and_no_label_lies_on_the_legend(name):
    draw, _ = FIGURES[name]
    figure = draw()
    figure.canvas.draw()
    assert figure.axes[-1].get_xlabel()
    assert figure.get_supylabel() or figure.axes[0].get_ylabel()
    for axes in figure.axes:
        if legend := axes.get_legend():
            box = legend.get_window_extent()
            assert not any(text.get_window_extent().overlaps(box) for text in axes.texts)
