"""Files appear whole or not at all, and a place that cannot hold one is a bad input."""

from __future__ import annotations

from pathlib import Path

import pytest
from xstage.sim.errors import InputError
from xstage.sim.files import write_whole


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
