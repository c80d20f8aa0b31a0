"""A figure that cannot be written is refused before the work whose result it would show."""

import pytest

from xstage.cli import main

COMMANDS = {
    "xstage.sweeps.run.sweep": ["sweep", "node-size", "-o", "out"],
    "xstage.answers.layer.layer": ["layer", "flux-1"],
    "xstage.answers.topology.topology": ["scenarios", "show", "hgx-b200"],
}


@pytest.fixture
def places(tmp_path, monkeypatch):
    """A working folder beside one that has folders where files would go."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    for name in ("folder.png", "table.csv"):
        (tmp_path / name).mkdir()
    return tmp_path


@pytest.mark.parametrize("work", COMMANDS)
@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("a.gif", "has no suffix that can be written (allowed: .png, .svg, .pdf)"),
        ("a", "has no suffix that can be written (allowed: .png, .svg, .pdf)"),
        ("missing/a.png", "has no folder: "),
        ("folder.png", "is a folder (allowed: the name of a file)"),
        ("table.svg", "is a folder (allowed: the name of a file)"),
    ],
)
def test_a_place_where_no_figure_can_be_made_is_refused_before_the_work(work, file, said, places, monkeypatch, capsys):
    def begun(*args, **kwargs):
        raise AssertionError("the work has begun")

    monkeypatch.setattr(work, begun)
    assert main([*COMMANDS[work], "--plot", str(places / file)]) == 2
    error = capsys.readouterr().err
    assert said in error and error.startswith(f"xstage: --plot = '{places / file.split('.')[0]}")
    assert not list((places / "here").iterdir())
