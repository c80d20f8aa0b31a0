"""The lecture notebook: stored without outputs, and every cell runs, in order, in one namespace."""

import ast
import contextlib
import io
import json
from pathlib import Path

import pytest
from matplotlib.figure import Figure

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


@pytest.mark.slow
def test_every_cell_runs_and_what_it_shows_is_a_figure_or_a_table(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names, printed = {"__name__": "__main__"}, io.StringIO()
    values = []
    for source in CODE:
        with contextlib.redirect_stdout(printed):
            values.append(shown(source, names))
    displayed = [value for value in values if value is not None]
    assert sum(isinstance(value, Figure) for value in displayed) >= 5
    assert all(isinstance(value, Figure) or "<pre" in value._repr_html_() for value in displayed)
    text = printed.getvalue()
    assert "knee: 33.1 KiB" in text and "reshape" in text
