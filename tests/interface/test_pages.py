"""Pages of traces, sweeps, audits and needs: the right lanes, the answer to the question, tables that sort and print."""

from __future__ import annotations

import json
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from xstage.plots.html_page import Page, Picture, Section, Table, decimals, numeric_columns, render
from xstage.sim.errors import InputError

import xstage as xs
from xstage.cli import main
from xstage.pages.answers import answer_page
from xstage.pages.sweeps import smallest
from xstage.pages.traces import trace_page

OPS = pd.DataFrame(
    [
        (gpu, lane, role, 10.0 * op + 3 * gpu, 10.0 * op + 3 * gpu + 8)
        for gpu in range(2)
        for lane, role in enumerate(("mma", "store", "mma", "store"), start=4 * gpu)
        for op in range(5 + 5 * gpu if role == "store" else 12 - 9 * gpu)
    ],
    columns=["gpu", "lane", "role", "start_us", "end_us"],
).assign(sm=0, task=0, phase="gemm", expert=-1, m_block=0, n_block=0, op=0, kind="compute", bytes=0, stall_us=0.0,
         wait_us=0.0, cause=None)  # fmt: skip
"""GPU 0 has more ops and ends last, at 118 us; GPU 1 ends at 101 us."""


def figures_of(page: Page) -> list[Any]:
    return [part.figure for section in page.sections for part in section.parts if isinstance(part, Picture)]


@pytest.mark.parametrize(("later_us", "last"), [(0.0, 0), (50.0, 1)])
def test_a_trace_shows_lanes_of_the_gpu_that_ends_last_by_role(tmp_path: Path, later_us: float, last: int) -> None:
    ops = OPS.assign(end_us=np.where(OPS["gpu"] == 1, OPS["end_us"] + later_us, OPS["end_us"]))
    ops.to_parquet(tmp_path / "t.parquet")
    page, made = trace_page(tmp_path / "t.parquet")
    assert made == "run SCENARIO --trace"
    [figure] = figures_of(page)
    [axes] = figure.axes
    assert figure.get_supylabel() == f"lanes of GPU {last}"
    assert [label.get_text() for label in axes.get_yticklabels()] == ["mma", "mma", "store", "store"]
    assert max(bar.get_x() + bar.get_width() for bar in axes.patches) == pytest.approx(ops["end_us"].max())
    assert f"4 of 4 lanes of GPU {last}, which ends last" in render(page)


def test_columns_of_quantities_stand_right_and_sort_as_numbers() -> None:
    table = Table("", ("part", "use", "rate", "room", "rows", "note"), [
        ("a", "8.4 %", "800 GB/s", "512 KiB", 2, "2 of 3"),
        ("b", "12.1 %", "1,200 GB/s", "1 MiB", None, "x"),
        ("c", "-3 %", "", "", 10, "7"),
    ])  # fmt: skip
    assert numeric_columns(table) == [False, True, True, False, True, False]
    text = render(Page("", "", "", [Section("", [table])]))
    assert '<td data-value="8.4">8.4 %</td>' in text and '<td data-value="1200.0">1,200 GB/s</td>' in text
    assert '<td data-value="-3.0">' in text and '<td data-value="">' in text
    assert '<th scope="row">a</th>' in text and text.count('<th scope="col"') == 6
    assert '<td class="text">2 of 3</td>' in text and "numeric: true" in text


def test_a_page_has_one_main_part_headings_and_tables_that_keys_reach() -> None:
    parts: list[Any] = [Table("numbers", ("a",), [(1,)])]
    text = render(Page("title", "", "", [Section("Open", parts), Section("Folded", parts, folded=True)]))
    assert text.count("<main>") == text.count("</main>") == 1
    assert "<h2>Open</h2>" in text and "<summary><h2>Folded</h2></summary>" in text
    assert text.count('<div class="scroll" tabindex="0" role="region" aria-label="numbers">') == 2


def test_a_wide_figure_scrolls_on_a_narrow_screen_rather_than_shrink() -> None:
    text = render(Page("", "", "", [Section("Wide", [Picture(Figure(figsize=(8, 2)), "two panels")])]))
    assert 'style="max-width:10.00in;min-width:5.60in"' in text
    assert '<figure><div class="scroll" tabindex="0" role="region" aria-label="Wide"><svg' in text


def test_a_printed_page_keeps_its_columns_and_opens_what_is_folded() -> None:
    text = render(Page("", "", "", []))
    printed = text[text.index("@media print") : text.index("</style>")]
    assert "overflow: visible" in printed and "break-inside: avoid" in printed
    assert 'addEventListener("beforeprint"' in text


@pytest.mark.parametrize(
    ("stalls_us", "said"),
    [
        ([3.0, 1.5, 2.0], " The smallest stall, sum over lanes, 1.5 µs, is at burst 32 KiB."),
        ([0.0, 0.0, 2.0], ""),  # several points share it
        ([float("nan"), 1.5, 2.0], " The smallest stall, sum over lanes, 1.5 µs, is at burst 32 KiB."),
    ],
)
def test_a_sweep_says_where_its_own_metric_is_smallest(stalls_us: list[float], said: str) -> None:
    points = pd.DataFrame({"workload.burst_bytes": [16384, 32768, 65536], "stall_total_us": stalls_us,
                           "makespan_us": [1.0, 2.0, 3.0]})  # fmt: skip
    assert smallest(points, "stall_total_us", ["workload.burst_bytes"]) == said


def answer_of(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main([*words, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_an_audit_has_its_curve_and_what_was_asked(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("audit", "--machine", "hgx-b200", "--producers=148", "--bytes", "48KiB", "--gap", "4us",
             "--set", "machine.interconnect.drain_rate=900GB/s")  # fmt: skip
    answer = answer_of(capsys, *asked)
    page = answer_page(answer)
    [figure] = figures_of(page)
    assert figure.axes[0].get_title(loc="left") == "48 KiB: stalls"
    marked = [line.get_ydata()[0] for line in figure.axes[0].lines if line.get_marker() == "o"]
    assert marked[1] == pytest.approx(answer["t_iss_us"], rel=0.01), "the changed machine is drawn"
    text = render(page)
    assert "SMs that store" in text and "49,152" in text and page.lead == answer["reason"]
    numbers = page.sections[-1].parts[0]
    assert isinstance(numbers, Table)
    sources = {row[0]: row[1:] for row in numbers.rows}
    assert (
        sources["interconnect.drain_rate"][0] == "900 GB/s" and "arXiv 2607.23264" in sources["stage.capacity_gpu"][-1]
    )
    assert sources["stage.issue_rate"][1:3] == ("43.1 GB/s to 62.9 GB/s", "assumed")
    assert "Assumed, not measured: t0 and issue_rate (T_iss0), drain_rate and duplex_efficiency (R)." in text
    assert len(figures_of(answer_page(answer | {"command": None}))) == 1, "the answer says all that is drawn"


def test_what_is_needed_has_its_curves_and_its_sentence() -> None:
    need = {"name": "drain_rate", "text": "drain rate (R)", "now": "717.0 GB/s", "value": "1014 GB/s", "factor": 1.41,
            "time_us": 96.4, "best_us": 96.3, "tried": [[1.0, 136.1], [1.41, 96.4], [2.0, 96.3]],
            "scaled": "drain rate (R)", "verdict": "is not enough"}  # fmt: skip
    room = need | {"text": "capacity of the stage (Q)", "scaled": "capacity of the stage (Q)", "verdict": "costs nothing",
                   "value": None, "factor": None}  # fmt: skip
    page = answer_page({"schema_version": 1, "scenario": "a", "machine": "b", "time_is": "sender_visible_us",
                        "time_us": 136.1, "loss_pct": 1.0, "needs": [need, room],
                        "sentence": "Drain rate would save."})  # fmt: skip
    [figure] = figures_of(page)
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["drain rate (R)", "capacity of the stage (Q)"]
    assert figure.axes[0].get_ylabel() == "sender-visible, µs"
    assert page.lead == "Drain rate would save."


ROLE = {"lanes": 1, "busy_mean_us": 1.0, "stall_mean_us": 0.0, "wait_mean_us": {}}
RUN = {"schema_version": 1, "scenario": "a", "machine": "b", "engine": "compiled", "makespan_us": 1.0, "spans": {},
       "roofs": [], "remote_visible_us": 0.0, "stall_total_us": 0.0, "bytes_stored": 0, "bytes_stored_to_others": 0,
       "occupancy_peak_bytes": 0, "ops": 0, "events": 0}  # fmt: skip


@pytest.mark.parametrize("roles", [{"mma": {"lanes": 1}}, {"mma": None}, [1]])
def test_an_answer_that_was_altered_is_refused(tmp_path: Path, roles: Any) -> None:
    (tmp_path / "a.json").write_text(json.dumps(RUN | {"roles": roles}))
    with pytest.raises(InputError, match="is no whole answer of --json"):
        xs.report(tmp_path / "a.json", tmp_path / "a.html")


def test_a_letter_that_the_font_lacks_is_no_warning(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps(RUN | {"roles": {"m\u0007a \u4e2d": ROLE}}))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert xs.report(tmp_path / "a.json", tmp_path / "a.html").figures == 1


def test_numbers_of_a_column_have_as_many_digits_as_in_a_terminal() -> None:
    table = Table("", ("us", "tiny", "large", "mixed", "rows", "none"), [
        (23.0, 1e-4, 2.5e6, 1.5, 3, 0.0),
        (17.3604, 2.0, 1.0, "2 GB/s", 10, 0.0),
    ])  # fmt: skip
    assert decimals(table) == [3, None, 0, None, 3, 3]
    text = render(Page("", "", "", [Section("", [table])]))
    shown = re.findall(r"<(?:td|th scope=.row.)[^>]*>([^<]*)</t", text)
    assert shown == ["23.000", "0.0001", "2,500,000", "1.5", "3", "0.000", "17.360", "2", "1", "2 GB/s", "10", "0.000"]


def test_a_large_number_takes_no_digits_from_small_ones_of_its_column() -> None:
    """A stall of 0.25 us is none that reads as 0, whatever another point of the sweep stalls."""
    assert decimals(Table("", ("stall", "bytes"), [(1.6e6, 1.6e6), (0.25, 1234.5), (0.0, 0.0)])) == [3, 0]


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        ((), "How long does one burst of 48 KiB a producer take? (xstage run, simpy engine)"),
        (("--set", "workload.burst=32KiB"),
         "How long does one burst of 48 KiB a producer take? As written; here with workload.burst = 32KiB. (xstage run,"),
    ],
)  # fmt: skip
def test_a_page_asks_what_its_scenario_asks(capsys: pytest.CaptureFixture[str], words: Any, asked: str) -> None:
    question = "How long does one burst of 48 KiB a producer take?"
    answer = answer_of(capsys, "run", "isolated-burst", "--engine", "simpy", "--set", "workload.producers=1",
                       "--set", f"question={question}", *words)  # fmt: skip
    answer["changed"] = [change for change in answer["changed"] if "producers" not in change]
    page = answer_page(answer)
    assert page.about.startswith(asked)
    totals = next(section for section in page.sections if section.heading == "Totals").parts[0]
    assert isinstance(totals, Table) and ("stored", "48 KiB" if not words else "32 KiB") in totals.rows
