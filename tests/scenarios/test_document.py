"""Facts about YAML files: every value knows its line, and what is no plain YAML is refused with one."""

import pytest
from xstage.scenarios.document import Document, parse, read, split_path
from xstage.sim.errors import InputError


def test_values_remember_their_lines():
    document = parse("a: 1\nb:\n  c: [x, y]\n  d: 0.76 us\n", "file.yaml")
    assert document.data == {"a": 1, "b": {"c": ["x", "y"], "d": "0.76 us"}}
    assert [document.place(path).line for path in [("a",), ("b",), ("b", "d")]] == [1, 2, 4]
    assert document.place(("b", "c", 1)).line == 3


def test_a_value_that_is_not_there_has_the_line_of_what_is_around_it():
    assert parse("a: 1\nb:\n  c: 2\n", "file.yaml").place(("b", "missing", "deeper")).line == 2


def test_put_and_part_keep_the_places():
    document = parse("a: {b: 1}\n", "one.yaml").put(("a", "c"), parse("\n\n5\n", "two.yaml"))
    assert document.data == {"a": {"b": 1, "c": 5}}
    assert (document.place(("a", "c")).file, document.place(("a", "c")).line) == ("two.yaml", 3)
    assert document.place(("a", "b")).file == "one.yaml"
    assert document.part("a").place(("c",)).file == "two.yaml"


def test_put_leaves_the_original_alone():
    document = parse("a: {b: 1}\n", "one.yaml")
    document.put(("a", "b"), Document(2))
    assert document.data == {"a": {"b": 1}}


def test_put_cannot_go_through_a_value():
    with pytest.raises(InputError, match=r"a\.b is not a mapping"):
        parse("a: {b: 1}\n", "one.yaml").put(("a", "b", "c"), Document(2))


def test_aliases_stand_for_what_they_name():
    assert parse("a: &x {b: 1}\nc: *x\n", "file.yaml").data == {"a": {"b": 1}, "c": {"b": 1}}


@pytest.mark.parametrize(
    "text, line, said",
    [
        ("a: 1\na: 2\n", 2, "a: is given twice, first on line 1"),
        ("a:\n  b: 1\n  b: 2\n", 3, "a.b: is given twice, first on line 2"),
        ("a: 1\nb: [1\nc: 2\n", 3, "is not YAML"),
        ("a: 1\n\tb: 2\n", 2, "is not YAML"),
        ("a: 1\n---\nb: 2\n", 2, "is not YAML"),
        ("a: 1\nb: \x01\n", 2, "is not YAML"),
        ("a: 1\n2: b\n", 2, "2: is not a key"),
        ("a: 1\noff: b\n", 2, "off: is not a key"),
        ("[a, b]: 1\n", 1, "is not a key"),
        ("a: &x [1, *x]\n", 1, "contains itself"),
        ("a: !!python/object/apply:os.getcwd []\n", 1, "a: is not plain data"),
        ("a: !!python/name:os.system x\n", 1, "a: is not plain data"),
        ("a: 1\nb: 2024-02-30\n", 2, "b: is not plain data"),
    ],
)
def test_what_is_no_plain_yaml_is_refused_with_its_line(text, line, said):
    with pytest.raises(InputError) as caught:
        parse(text, "file.yaml")
    assert (caught.value.file, caught.value.line) == ("file.yaml", line)
    assert said in str(caught.value)


def test_files_that_cannot_be_read_are_refused(tmp_path):
    empty, binary = tmp_path / "empty.yaml", tmp_path / "binary.yaml"
    empty.write_text("# only a comment\n", encoding="utf-8")
    binary.write_bytes(b"a: \xff\xfe")
    for file, said in [
        (empty, "is empty"),
        (binary, "is not UTF-8 text"),
        (tmp_path, "is a folder, not a file"),
        (tmp_path / "missing.yaml", "no such file"),
    ]:
        with pytest.raises(InputError, match=said) as caught:
            read(file)
        assert caught.value.file == str(file)


def test_files_are_named_from_the_working_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"^sub/missing\.yaml: no such file$"):
        read(tmp_path / "sub" / "missing.yaml")


def test_paths_are_keys_joined_by_dots():
    assert split_path("workload.burst", "--set") == ("workload", "burst")
    for text in ("", ".", "a.", "a..b", " a", "a. b"):
        with pytest.raises(InputError, match="is no path"):
            split_path(text, "--set")


@pytest.mark.parametrize("text", ["a: !!int abc", "a: !!float x", "a: !!bool maybe", "a: " + "9" * 5000])
def test_a_value_that_is_not_what_its_tag_says_is_refused_with_its_line(text: str) -> None:
    with pytest.raises(InputError, match=r"file\.yaml:2: a = .*is no (int|float|bool)"):
        parse("# first line\n" + text, "file.yaml")


def test_aliases_of_aliases_and_endless_nesting_are_refused_at_once() -> None:
    bomb = "a0: &a0 [x]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 10))
    with pytest.raises(InputError, match="over 100000 values"):
        parse(bomb, "file.yaml")
    with pytest.raises(InputError, match="nested"):
        parse("a: " + "[" * 3000 + "]" * 3000, "file.yaml")
