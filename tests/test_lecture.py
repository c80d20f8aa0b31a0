"""The lecture notebook: stored without outputs, and every cell runs, in order, in one namespace."""

import ast
import contextlib
import io
import json
import re
from pathlib import Path

import pytest
from matplotlib.figure import Figure

import xstage as xs

NOTEBOOK = Path(__file__).resolve().parent.parent / "docs" / "lecture.ipynb"
CELLS = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
CODE = ["".join(cell["source"]) for cell in CELLS if cell["cell_type"] == "code"]


def test_it_is_stored_without_outputs_so_that_a_change_shows_as_one():
    for cell in CELLS:
        if cell["cell_type"] == "code":
            assert (cell["outputs"], cell["execution_count"]) == ([], None)
    assert len({cell["id"] for cell in CELLS}) == len(CELLS)


def shown(source, names):
    """Runs a cell as a notebook does: the value of its last line, if that is an expression."""
    body = ast.parse(source).body
    last = body.pop() if body and isinstance(body[-1], ast.Expr) else None
    exec(compile(ast.Module(body, []), "lecture.ipynb", "exec"), names)
    return eval(compile(ast.Expression(last.value), "lecture.ipynb", "eval"), names) if last else None


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """What the cells display, and the lines that they print."""
    names, printed = {"__name__": "__main__"}, io.StringIO()
    with contextlib.chdir(tmp_path_factory.mktemp("lecture")), contextlib.redirect_stdout(printed):
        values = [shown(source, names) for source in CODE]
    return [value for value in values if value is not None], printed.getvalue().splitlines()


@pytest.mark.slow
def test_every_cell_runs_and_what_it_shows_is_a_figure_or_a_table(ran):
    displayed, lines = ran
    assert sum(isinstance(value, Figure) for value in displayed) >= 5
    assert all(isinstance(value, Figure) or "<pre" in value._repr_html_() for value in displayed)
    assert "knee: 33.1 KiB an SM" in lines and any(line.startswith("reshape - ") for line in lines)


@pytest.mark.slow
def test_at_half_the_drain_rate_the_stall_disappears_beyond_the_gap_of_the_closed_form(ran):
    _, lines = ran
    [recovery] = [float(found) for line in lines for found in re.findall(r"exercise 1: G\* = ([\d.]+) us", line)]
    stalls = {
        int(gap): float(us) for line in lines for gap, us in re.findall(r"gap (\d+) us: .* stalls ([\d.]+)", line)
    }
    assert min(stalls) < recovery < max(stalls)
    assert all((stall > 0) == (gap < recovery) for gap, stall in stalls.items())


@pytest.mark.slow
def test_a_burst_of_64_kib_fits_only_if_both_the_gpu_and_each_sm_have_more_room(ran):
    _, lines = ran
    stalls = {which: float(us) for line in lines for which, us in re.findall(r"^(.+) larger: .* ([\d.]+) us$", line)}
    assert stalls.pop("both rooms") == 0
    assert set(stalls) == {"nothing", "the GPU's room", "an SM's room"} and min(stalls.values()) > 5


@pytest.mark.slow
def test_the_other_ranks_of_an_allreduce_wait_for_the_late_one_and_none_of_attention_does(ran):
    _, lines = ran
    reduced, reduced_late, attention, attention_late = (
        ast.literal_eval(line.partition("waits ")[2]) for line in lines if "waits [" in line
    )
    more = [late - before for before, late in zip(reduced, reduced_late, strict=True)]
    assert more.pop(3) <= 0
    assert more == pytest.approx([20] * 7, abs=0.2)
    assert attention == attention_late == [0] * 8
    spans = [float(us) for line in lines for us in re.findall(r"makespan ([\d.]+) us, waits", line)]
    assert spans[3] - spans[2] == pytest.approx(19, abs=0.5)


def test_the_rooms_of_the_first_section_are_those_of_the_machine():
    [section] = ["".join(cell["source"]) for cell in CELLS if "Q(K) = min(" in "".join(cell["source"])]
    stage = xs.load_machine("hgx-b200").x_stage()
    rooms = stage.capacity_per_producer_bytes / 2**10, stage.capacity_total_bytes / 2**20
    assert "Q(K) = min(K x {:g} KiB, {:g} MiB)".format(*rooms) in section
