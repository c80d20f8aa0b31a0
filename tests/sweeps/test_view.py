"""A finished sweep can be looked at: as a picture, as HTML, and it says which axes made no difference."""

import itertools
import json

import pandas as pd
import pytest
from xstage.plots.study_figures import _differing, study_figure
from xstage.sim.errors import InputError
from xstage.sweeps.drawn import drawn, repeats_note
from xstage.sweeps.view import cautions

import xstage as xs
from xstage.cli import main

from .studies import FAST

SCENARIO = FAST["scenario"]


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """Three axes, two of which move together, and one point that fails."""
    study = FAST | {
        "question": "How long do <bursts> wait?",
        "axes": {
            "workload.producers": [1, 2, 149],
            "workload.burst": ["1 KiB", "2 KiB"],
            "workload.gap": ["0 us", "1 us"],
            "workload.mode": ["isolated", "synchronised"],
        },
        "overrides": {"workload.bursts": 2},
        "zip": [["workload.burst", "workload.gap"]],
    }
    return xs.sweep(study, tmp_path_factory.mktemp("view") / "out", workers=1)


def test_one_axis_is_a_line_with_all_its_points(tmp_path):
    one = xs.sweep(FAST | {"axes": {"workload.producers": [4, 1, 2]}}, tmp_path, workers=1)
    [axes] = one.plot().axes
    [line] = axes.lines
    ordered = one.frame.sort_values("workload.producers")
    assert line.get_xdata().tolist() == [1, 2, 4]
    assert line.get_ydata().tolist() == ordered["makespan_us"].tolist()
    assert axes.get_ylabel() == "makespan, µs"


def test_an_axis_of_names_is_bars(tmp_path):
    one = xs.sweep(FAST | {"axes": {"workload.mode": ["isolated", "synchronised"]}}, tmp_path, workers=1)
    [axes] = one.plot("ops").axes
    assert [bar.get_height() for bar in axes.patches] == one.frame["ops"].tolist()


def test_two_axes_are_a_heat_map_with_every_value_in_its_place(tmp_path):
    two = xs.sweep(FAST, tmp_path, workers=1)
    axes = two.plot("bytes_stored").axes[0]
    image = axes.images[0].get_array()
    assert image.shape == (3, 4)  # the longer axis across
    frame = two.frame.set_index(["workload.producers", "workload.burst_bytes"])
    for row, producers in enumerate((1, 2, 4)):
        for column, burst in enumerate((1024, 2048, 3072, 4096)):
            assert image[row, column] == frame.loc[(producers, burst), "bytes_stored"]
    assert axes.get_xlabel() == "burst"
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1 KiB", "2 KiB", "3 KiB", "4 KiB"]


def test_axes_that_move_together_are_one_and_a_third_makes_panels(swept):
    figure = swept.plot()
    panels = [axes for axes in figure.axes if axes.images]
    assert [axes.get_title(loc="left") for axes in panels] == ["mode: isolated", "mode: synchronised"]
    assert panels[0].get_ylabel() == "burst and gap"
    assert [label.get_text() for label in panels[0].get_yticklabels()] == ["1 KiB, 0 µs", "2 KiB, 1 µs"]
    assert panels[0].images[0].get_array().mask.tolist() == [[False, False, True]] * 2  # 149 producers failed
    fixed = swept.plot(at={"workload.burst_bytes": 1024})
    assert len([axes for axes in fixed.axes if axes.images]) == 1


@pytest.mark.parametrize(
    "options, said",
    [
        ({"metric": "makespan"}, "did you mean 'makespan_us'"),
        ({"metric": "error"}, "is no number of these points"),
        ({"at": {"workload.burst": 1024}}, "did you mean 'workload.burst_bytes'"),
        ({"at": {"workload.producers": 7}}, "is the value of no point (allowed: 1, 2, 149)"),
    ],
)
def test_what_cannot_be_drawn_is_refused(swept, options, said):
    with pytest.raises(InputError) as caught:
        swept.plot(**options)
    assert said in str(caught.value)


NETWORKS = [
    "gb200-nvl72",
    "kind=islands gpus_per_node=8 nic_rate=43 GB/s routing=(kind=zipf exponent=1)",
    "kind=islands gpus_per_node=8 nic_rate=86 GB/s routing=(kind=zipf exponent=1)",
]


@pytest.mark.parametrize("axes", [["net"], ["net", "tokens"]])
def test_values_that_are_mappings_are_named_by_what_differs(axes):
    data = pd.DataFrame([(net, tokens, 1.0 + tokens) for net in NETWORKS for tokens in (32, 64)[: len(axes)]],
                        columns=["net", "tokens", "makespan_us"])  # fmt: skip
    figure = study_figure(data, axes, "makespan_us", "q?")
    named = [label.get_text() for label in figure.axes[0].get_xticklabels()]
    assert named == ["gb200-nvl72", "islands\nnic_rate=43 GB/s", "islands\nnic_rate=86 GB/s"]
    figure.draw_without_rendering()  # which lays it out
    assert figure.axes[0].get_position().height > 0.5, "no more than half of the figure is labels"


def test_mappings_alone_need_no_kind_that_all_have():
    texts = _differing({at: text for at, text in enumerate(NETWORKS[1:])})
    assert list(texts.values()) == ["nic_rate=43 GB/s", "nic_rate=86 GB/s"]


def test_of_a_fourth_axis_the_best_point_is_drawn_whatever_the_column(tmp_path):
    """The stall is that of the point with the smallest makespan, not the smallest of any point."""
    axes = {
        "workload.producers": [100, 120, 148],
        "workload.burst": ["8 KiB", "40 KiB", "48 KiB"],
        "workload.bursts": [1, 2, 3],
        "workload.gap": ["0 us", "40 us"],
    }
    four = xs.sweep(FAST | {"axes": axes}, tmp_path, workers=1)
    figure = four.plot("stall_total_us")
    said = " ".join(text.get_text().replace("\n", " ") for text in figure.texts) + (figure.get_suptitle() or "")
    assert "of the point with the smallest makespan over gap" in said.replace("\n", " ")
    frame = four.frame
    ends = [name for name in axes if name != "workload.gap"]
    ends = [next(column for column in frame if column.startswith(name)) for name in ends]
    quickest = frame.loc[frame.groupby(ends)["makespan_us"].idxmin(), "stall_total_us"]
    least = frame.groupby(ends)["stall_total_us"].min()
    drawn = sorted(value for axes in figure.axes for image in axes.images for value in image.get_array().ravel())
    assert drawn == pytest.approx(sorted(quickest))
    assert sum(drawn) > least.sum()


REPEATED = {
    "question": "Which placement?", "name": "repeated",
    "scenario": {
        "question": "?", "machine": "hgx-b200", "granule": "4 KiB", "trace": "off",
        "workload": {"kind": "megamoe", "hidden": 512, "intermediate": 256, "experts": 16, "topk": 2, "tokens": 64,
                     "gpus": 4, "numbers": "bf16", "routing": {"kind": "zipf", "exponent": 1.0}},
    },
    "axes": {"repeat": {"path": "seed", "values": [0, 1, 2]}, "workload.policy": ["unfused", "alternating"]},
}  # fmt: skip


def test_seeds_are_repetitions_of_a_point(tmp_path):
    """Neither an axis of the picture, nor where something is smallest."""
    found = xs.sweep(REPEATED, tmp_path / "out", workers=1)
    [axes] = [axes for axes in found.plot().axes if axes.patches]
    by_policy = found.frame.groupby("workload.policy", sort=False)["makespan_us"]
    assert by_policy.std().min() > 0
    assert [bar.get_height() for bar in axes.patches] == pytest.approx(by_policy.mean().tolist())
    (lines,) = axes.collections[0].get_segments()[:1]
    assert lines[1][1] - lines[0][1] == pytest.approx(2 * by_policy.std().iloc[0])
    xs.report(tmp_path / "out", tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    best = by_policy.mean().idxmin()
    said = f"(mean of 3 seeds, with a standard deviation of {by_policy.std()[best]:.3g}), is at policy {best}."
    assert said in text and "mean of 3 seeds." in text
    assert "Means over seeds" in text and "at seed" not in text and "at repeat" not in text


def test_a_sweep_of_seeds_alone_has_a_mean(tmp_path):
    study = REPEATED | {"axes": {"seed": [0, 1, 2]}}
    found = xs.sweep(study, tmp_path / "out", workers=1)
    assert found.plot().axes[0].get_xlabel() == "seed"
    xs.report(tmp_path / "out", tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert f"{float(f'{found.frame.makespan_us.mean():.4g}'):.6g} µs in the mean of 3 seeds, with a standard" in text
    assert "The smallest" not in text


def test_a_notebook_shows_the_question_the_counts_and_the_errors(swept):
    html = swept._repr_html_()
    assert "How long do &lt;bursts&gt; wait?" in html
    assert "12 points: 8 done, 4 failed" in html
    assert "workload.burst_bytes" in html and "makespan_us" in html and "at most 148" in html
    assert "timing." not in html


def test_an_axis_that_made_no_difference_is_named(tmp_path, capsys):
    wide = "machine.stage.capacity_gpu"  # four producers never fill either
    axes = {"room": {"path": wide, "values": ["2 MiB", "4 MiB"]}, "workload.burst": ["1 KiB", "2 KiB"], "seed": [1, 2]}
    found = xs.sweep(FAST | {"axes": axes}, tmp_path / "out", workers=1)
    [said] = found.idle_axes()
    assert said.startswith("room_bytes changed nothing at any point")
    file = tmp_path / "study.yaml"
    file.write_text(json.dumps(FAST | {"axes": axes}))
    assert main(["sweep", str(file), "-o", str(tmp_path / "out"), "--json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["warnings"] == [said]
    assert f"warning: {said}" in captured.err


def test_axes_that_matter_are_not_named(swept):
    assert swept.idle_axes() == []


def test_the_command_draws_too(tmp_path, capsys):
    file = tmp_path / "study.yaml"
    file.write_text(json.dumps(FAST))
    words = ["sweep", str(file), "-o", str(tmp_path / "out"), "--workers", "1", "--json"]
    assert main([*words, "--plot", str(tmp_path / "a.gif")]) == 2
    capsys.readouterr()
    assert main([*words, "--plot", str(tmp_path / "a.svg"), "--metric", "ops"]) == 0
    assert json.loads(capsys.readouterr().out)["files"] == [str(tmp_path / "a.svg"), str(tmp_path / "a.csv")]
    assert (tmp_path / "a.csv").read_text().splitlines()[0].startswith("point,workload.producers,workload.burst_bytes")


def test_rows_say_how_evenly_gpus_are_loaded(tmp_path):
    """All of 4 GPUs send equally much in one study, GPU 0 alone in the other."""
    workload = SCENARIO["workload"] | {"gpus": 4, "destination": "all"}
    study = FAST | {"scenario": SCENARIO | {"workload": workload}, "axes": {"workload.senders": ["one", "all"]}}
    frame = xs.sweep(study, tmp_path, workers=1).frame
    assert frame["loads.sent_max_over_mean"].isna().tolist() == [
        True,
        False,
    ]  # one GPU that acts has nobody to differ from
    assert frame["loads.sent_max_over_mean"][1] == 1.0


def test_a_warning_is_counted_by_itself_where_points_have_several():
    frame = pd.DataFrame({"cautions": ["one; with more", "one; with more\nanother", None, "another"]})
    assert cautions(frame) == ["one; with more (2 of 4 points)", "another (2 of 4 points)"]
    assert cautions(pd.DataFrame({"point": [0]})) == []


def test_more_panels_than_fit_are_the_best_of_their_axis(tmp_path):
    """13 values of each of three axes: the last is no panel a value."""
    data = pd.DataFrame(
        [(a, b, c, a + b + c % 3) for a in range(13) for b in range(13) for c in range(13)],
        columns=["a", "b", "c", "m"],
    )
    found = drawn(data, [["a"], ["b"], ["c"]], "m", "m", [])
    assert (found.groups, found.note) == ([["a"], ["b"]], "the smallest over c")
    assert (found.data["m"] == found.data["a"] + found.data["b"]).all()


def test_a_place_that_cannot_be_judged_is_told_and_without_any_judge_the_smallest_is_drawn():
    """`m` has a value everywhere; `j`, which the study is about, at no place of a = 0 and b = c = 1, or nowhere at all."""
    data = pd.DataFrame(list(itertools.product(range(2), repeat=4)), columns=["a", "b", "c", "e"])
    data = data.assign(m=data["a"] + data["e"] + 1.0, j=-1.0 * data["e"])
    axes = [["a"], ["b"], ["c"], ["e"]]
    hidden = (data["a"] == 0) & (data["b"] == 1) & (data["c"] == 1)
    some = drawn(data.assign(j=data["j"].mask(hidden)), axes, "m", "j", [])
    assert some.note == "of the point with the smallest j over e, without 1 place where no point has that"
    assert len(some.data) == 7 and (some.data["e"] == 1).all()
    none = drawn(data.assign(j=float("nan")), axes, "m", "j", [])
    assert (len(none.data), none.note) == (8, "the smallest over e")
    assert (none.data["e"] == 0).all()


def test_where_a_seed_failed_the_mean_is_said_to_be_of_fewer():
    data = pd.DataFrame({"a": [0, 0, 0, 1, 1, 1], "seed": [1, 2, 3] * 2, "m": [1.0, 2.0, 3.0, 4.0, None, 8.0]})
    found = drawn(data, [["a"], ["seed"]], "m", "m", ["seed"])
    assert found.note == "mean of 2 to 3 seeds"
    assert found.data["m"].tolist() == [2.0, 6.0]
    assert repeats_note(found.data.iloc[:1]) == "mean of 3 seeds"


def test_a_sweep_is_printed_though_its_picture_cannot_be_drawn(tmp_path, capsys):
    file = tmp_path / "study.yaml"
    file.write_text(json.dumps(FAST))
    words = ["sweep", str(file), "-o", str(tmp_path / "out"), "--workers", "1", "--plot", str(tmp_path / "a.png")]
    assert main([*words, "--metric", "roles.mma.stall_mean_us"]) == 2
    said = capsys.readouterr()
    assert "12" in said.out and "points.parquet" in said.out
    assert "is no number of these points" in said.err


def test_a_picture_says_what_is_fixed_and_the_machine(swept, tmp_path):
    fixed = swept.plot(at={"workload.burst_bytes": 1024, "workload.mode": "isolated"})
    assert fixed.get_suptitle() == "burst 1 KiB, mode isolated, on hgx-b200"
    several = xs.sweep(FAST | {"axes": {"machine": ["hgx-b200", "hgx-h100"]}}, tmp_path, workers=1).plot()
    assert several.get_suptitle() == ""


def test_where_every_point_failed_there_is_no_picture(swept):
    with pytest.raises(InputError, match="metric = 'makespan_us': has no value at any of these points"):
        swept.plot(at={"workload.producers": 149})
