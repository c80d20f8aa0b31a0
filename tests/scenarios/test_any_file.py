"""A name or a file may be a scenario, a study or a machine: it is known by what it is."""

import pytest
from xstage.scenarios.any_file import find_entry
from xstage.scenarios.catalogue import entries
from xstage.sim.errors import InputError

from xstage.cli import main


@pytest.mark.parametrize("name, kind", [("hgx-b200", "machine"), ("isolated-burst", "scenario"), ("lead-map", "study")])
def test_a_name_and_a_copy_of_its_file_are_of_one_kind(tmp_path, capsys, name, kind):
    assert find_entry(name).kind == kind
    assert main(["scenarios", "show", name]) == 0
    text = capsys.readouterr().out
    file = tmp_path / "mine.yaml"
    file.write_text(text)
    assert (find_entry(str(file)).name, find_entry(str(file)).kind) == ("mine", kind)
    assert main(["scenarios", "show", str(file)]) == 0
    assert capsys.readouterr().out == text


def test_every_entry_is_found_as_what_it_is_filed_under():
    for entry in entries():
        assert find_entry(str(entry.file)).kind == entry.kind


def test_what_is_neither_is_refused(tmp_path):
    with pytest.raises(InputError, match="did you mean 'hgx-b200'"):
        find_entry("hgx-b20")
    with pytest.raises(InputError, match="no such file"):
        find_entry("./nothing.yaml")
    file = tmp_path / "list.yaml"
    file.write_text("[1, 2]")
    with pytest.raises(InputError, match="must be a mapping"):
        find_entry(str(file))
