"""Files appear whole or not at all, and a place that cannot hold one is a bad input."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from xstage.sim.errors import InputError
from xstage.sim.files import check_output, write_whole


def test_a_file_below_a_file_or_in_place_of_a_folder_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("kept")
    (tmp_path / "folder").mkdir()
    for target in (tmp_path / "file" / "answer.csv", tmp_path / "folder"):
        with pytest.raises(InputError, match=f"{target}: cannot be written: "), write_whole(target) as temporary:
            temporary.write_text("new")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["file", "folder"]
    assert (tmp_path / "file").read_text() == "kept"


def test_what_goes_wrong_while_writing_is_not_disguised(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="disk is full"), write_whole(tmp_path / "answer.csv"):
        raise OSError("the disk is full")
    assert not list(tmp_path.iterdir())


def test_a_symbolic_link_stays_and_what_it_leads_to_is_written_whole(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for name in ("there.csv", "new.csv"):
        (tmp_path / f"link to {name}").symlink_to(f"folder/{name}")
    (tmp_path / "folder" / "there.csv").write_text("old")
    for name in ("there.csv", "new.csv"):
        link = tmp_path / f"link to {name}"
        check_output(link, "--trace", (".csv",))
        with write_whole(link) as temporary:
            temporary.write_text("new")
        assert link.is_symlink() and (tmp_path / "folder" / name).read_text() == "new"
    assert len(list((tmp_path / "folder").iterdir())) == 2


def test_a_pipe_and_a_circle_of_links_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.html")
    (tmp_path / "circle.html").symlink_to("circle.html")
    for name, said in (("pipe.html", "is a pipe or a device"), ("circle.html", "cannot be written: Too many levels")):
        with pytest.raises(InputError, match=said):
            check_output(tmp_path / name, "--report", (".html",))


@pytest.mark.parametrize(
    "name, said",
    [
        ("a.pdf", "has no suffix that can be written (allowed: .html)"),
        ("folder.html", "is a folder"),
        ("file.txt/a.html", "cannot be written (allowed: not below"),
        (f"{'a' * 300}.html", "cannot be written: File name too long"),
    ],
)
def test_an_output_is_refused_before_work_begins(tmp_path: Path, name: str, said: str) -> None:
    (tmp_path / "folder.html").mkdir()
    (tmp_path / "file.txt").touch()
    with pytest.raises(InputError, match=re.escape(said)):
        check_output(tmp_path / name, "--report", (".html",))


@pytest.mark.parametrize("name", ["a.html", "{here}/a.html", "new/a.html", "{here}/new/deep/a.html", "../other/a.html"])
def test_a_missing_folder_is_made_below_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    target = Path(name.format(here=tmp_path / "here"))
    check_output(target, "--report", (".html",))
    assert not list((tmp_path / "here").iterdir())
    with write_whole(target) as temporary:
        temporary.write_text("new")
    assert target.read_text() == "new"


@pytest.mark.parametrize("name", ["../mistyped/a.html", "{top}/mistyped/a.html", "{top}/here/../mistyped/deep/a.html"])
def test_a_missing_folder_elsewhere_is_refused_as_mistyped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(InputError, match=f"--report = .*: has no folder: {tmp_path}/mistyped.* does not exist"):
        check_output(name.format(top=tmp_path), "--report", (".html",))
    assert not (tmp_path / "mistyped").exists()
