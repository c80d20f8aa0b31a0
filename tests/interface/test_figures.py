"""`xstage figures`: every figure beside its table, the same bytes again, from the table alone too."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from matplotlib.image import imread
from matplotlib.text import Text
from pyarrow import parquet
from xstage.sim.errors import InputError

import xstage as xs
from xstage.cli import main
from xstage.gallery import figures
from xstage.gallery.drawings import DRAWINGS
from xstage.gallery.figures import chosen
from xstage.gallery.reach_tables import published_table, topology_table
from xstage.gallery.schedule_tables import knee_rows, lead_table
from xstage.gallery.shape_tables import calls_table

QUICK = ["knee"]
STORED = Path(__file__).parents[2] / "docs" / "figures"


def write_points(points, folder):
    """A table as a sweep writes it."""
    table = pa.Table.from_pandas(points)
    about = json.dumps({"question": "?", "study": "mine", "axes": [], "metric": "makespan_us", "model_digest": "0"})
    parquet.write_table(table.replace_schema_metadata({"xstage": about}), folder / "points.parquet")


def digests(folder):
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(folder.iterdir())}


def test_the_command_writes_each_figure_and_its_table(tmp_path, capsys):
    words = ["figures", "-o", str(tmp_path), "--only", ",".join(QUICK), "--format", "svg", "--json"]
    assert main(words) == 0
    answer = json.loads(capsys.readouterr().out)
    assert [figure["name"] for figure in answer["figures"]] == QUICK
    assert sorted(file.name for file in tmp_path.iterdir()) == sorted(
        f"{name}.{kind}" for name in QUICK for kind in ("csv", "svg")
    )


def test_figures_are_the_same_to_the_byte_when_made_again_and_when_redrawn(tmp_path):
    for folder in ("once", "twice"):
        xs.figures(tmp_path / folder, QUICK, formats=["png", "svg", "pdf"])
    once = digests(tmp_path / "once")
    assert len(once) == 4 * len(QUICK)
    assert digests(tmp_path / "twice") == once
    for file in (tmp_path / "twice").glob("*.[ps]*[gf]"):
        file.unlink()
    xs.figures(tmp_path / "twice", QUICK, formats=["png", "svg", "pdf"], redraw=True)
    assert digests(tmp_path / "twice") == once


def test_an_edited_table_is_what_redraw_draws(tmp_path):
    xs.figures(tmp_path, ["topologies"], formats=["svg"])
    before = (tmp_path / "topologies.svg").read_bytes()
    table = pd.read_csv(tmp_path / "topologies.csv")
    table.loc[0, "gbs"] = 1.0
    table.to_csv(tmp_path / "topologies.csv", index=False)
    done = xs.figures(tmp_path, ["topologies"], formats=["svg"], redraw=True)
    assert (tmp_path / "topologies.svg").read_bytes() != before
    assert done.plot("topologies").axes[0].images[0].get_array()[0, 1] == 1.0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"only": ["kne"]}, "is no figure"),
        ({"only": []}, "names no figure"),
        ({"formats": ["gif"]}, "is no format of a figure"),
        ({"only": ["knee"], "redraw": True}, "cannot be read"),
        ({"only": ["calls"], "calls": "nowhere"}, "has no points.parquet"),
        ({"only": ["published"], "published": "nowhere.json"}, "cannot be read"),
        ({"only": ["knee"], "calls": "nowhere"}, "has no effect: the table of figure calls is not made"),
        ({"redraw": True, "published": "nowhere.json"}, "has no effect: the table of figure published is not made"),
    ],
)
def test_what_cannot_be_drawn_is_refused(tmp_path, options, said):
    with pytest.raises(InputError, match=said):
        xs.figures(tmp_path, **options)
    assert not list(tmp_path.glob("*.svg"))


def test_a_file_that_is_no_answer_of_published_is_refused(tmp_path):
    (tmp_path / "run.json").write_text('{"schema_version": 1, "rows": [{"kind": "megamoe"}]}')
    with pytest.raises(InputError, match=r"is no answer of `xstage published --json`"):
        published_table(tmp_path / "run.json")


def test_a_folder_of_another_sweep_is_refused(tmp_path):
    write_points(pd.DataFrame({"point": [0], "makespan_us": [1.0]}), tmp_path)
    with pytest.raises(InputError, match=r"is no table of MegaMoE calls: it lacks a column"):
        calls_table(tmp_path)


def test_calls_of_a_sweep_folder_have_the_speedup_of_the_two_orders(tmp_path):
    points = pd.DataFrame({
        "workload.model": "dsv4-flash", "workload.numbers": "w8a8", "workload.tokens": 2048, "workload.ranks": "all",
        "workload.policy": ["expert_wave", "interleaved"], "makespan_us": [120.0, 100.0], "stall_total_us": [296.0, 0.0],
        "roles.mma.lanes": 74, "error": None,
    })  # fmt: skip
    write_points(points, tmp_path)
    [call] = calls_table(tmp_path).to_dict("records")
    assert (call["routing"], call["speedup"], call["stall_wave_us_per_sm"]) == ("skewed", pytest.approx(1.2), 2.0)
    [calls] = chosen(["calls"])
    said = [text.get_text() for text in calls.draw(calls_table(tmp_path)).findobj(Text)]
    assert "megamoe, on 8 GPUs of hgx-b200" in said, "which types of numbers, the legend says"


def test_the_knee_of_the_lead_figure_is_that_of_all_leads():
    assert knee_rows(lead_table()) == 1152


def test_pairs_of_a_switch_share_the_egress_evenly_and_islands_are_slower_outside():
    table = topology_table(("hgx-h100", "hgx-h100-rails"))
    even = table[table["machine"] == "hgx-h100"]["gbs"]
    facts = xs.topology("hgx-h100").facts
    assert even.nunique() == 1 and even.iloc[0] * 7 == pytest.approx(facts["all_to_all_gbs"])
    rails = table[table["machine"] == "hgx-h100-rails"]
    inside = rails["source"] // 8 == rails["destination"] // 8
    assert rails[inside]["gbs"].min() > rails[~inside]["gbs"].max()


@pytest.mark.slow
def test_every_figure_of_the_set_is_drawn_from_its_table(tmp_path):
    done = xs.figures(tmp_path, formats=["svg", "png"], workers=2)
    assert [one.name for one in done.drawn] == [drawing.name for drawing in DRAWINGS]
    first = digests(tmp_path)
    xs.figures(tmp_path, formats=["svg", "png"], redraw=True)
    assert digests(tmp_path) == first
    stale = [
        file.name
        for file in sorted(STORED.glob("*.png"))
        if not np.array_equal(imread(file), imread(tmp_path / file.name))
    ]
    assert not stale, "copy them anew to docs/figures from what `xstage figures --format png -o out/figures` draws"


def test_a_folder_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="cannot be made: File exists"):
        xs.figures(tmp_path / "file", ["topologies"])


def test_the_engine_is_compiled_for_figures_that_simulate_alone(tmp_path, monkeypatch):
    compiled = []
    monkeypatch.setattr(figures, "compile_engine", lambda: compiled.append(True))
    xs.figures(tmp_path, ["topologies"], formats=["png"])
    assert not compiled
    xs.figures(tmp_path, ["recovery"], formats=["png"])
    assert compiled
