"""The checker of the documentation: what it runs, what it compares, what it lets pass."""

import importlib.util
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def load_checker():
    spec = importlib.util.spec_from_file_location("docs_check", ROOT / "docs" / "check.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


check = load_checker()


@pytest.fixture
def project(tmp_path):
    """A project folder with one page; `project(text)` writes the page and returns its path."""

    def write(text):
        page = tmp_path / "README.md"
        page.write_text(textwrap.dedent(text).lstrip("\n"))
        return page

    return write


def outcome_of(page, **options):
    return check.check_page(page, page.parent, **options)


def test_shown_output_is_compared_to_the_letter(project):
    page = project("""
        ```console
        $ echo one; echo two
        one
        two

        $ echo three
        four
        ```
    """)
    outcome = outcome_of(page)
    assert outcome.commands == 2
    [failure] = outcome.failures
    assert failure.startswith("README.md:6: prints something else: echo three")
    assert "-four" in failure and "+three" in failure


def test_a_command_without_shown_output_only_has_to_succeed(project):
    page = project("""
        ```bash
        $ echo anything
        $ exit 3
        ```
    """)
    [failure] = outcome_of(page).failures
    assert failure.startswith("README.md:3: exit code 3: exit 3")


def test_a_failing_command_in_a_pipe_is_a_failure(project):
    page = project("""
        ```console
        $ false | cat
        ```
    """)
    assert outcome_of(page).failures[0].startswith("README.md:2: exit code 1")


def test_a_failure_shows_what_the_command_printed(project):
    page = project("""
        ```console
        $ echo "no machine 'h10'" >&2; exit 2
        ```
    """)
    assert "    no machine 'h10'" in outcome_of(page).failures[0]


def test_standard_error_is_no_output_unless_an_exit_code_is_stated(project):
    quiet = "```console\n$ echo progress >&2; echo done\ndone\n```\n"
    loud = "<!-- exit 2 -->\n```console\n$ echo bad >&2; exit 2\nbad\n```\n"
    assert outcome_of(project(quiet + loud)).failures == []


def test_a_stated_exit_code_must_come(project):
    page = project("""
        <!-- exit 2 -->
        ```console
        $ true
        ```
    """)
    assert outcome_of(page).failures[0].startswith("README.md:3: exit code 0, expected 2: true")


def test_no_check_blocks_are_skipped_and_listed_with_their_reason(project):
    page = project("""
        <!-- no-check: needs a GPU -->
        ```console
        $ false
        ```
    """)
    outcome = outcome_of(page)
    assert (outcome.commands, outcome.failures) == (0, [])
    assert outcome.skipped == ["README.md:2: not checked: needs a GPU"]


@pytest.mark.parametrize(
    "directive", ["no-check", "no-check:", "no-check because", "output may vary", "exit two", "file: /etc/x"]
)
def test_a_misspelt_directive_is_refused(project, directive):
    page = project(f"<!-- {directive} -->\n```console\n$ true\n```\n")
    [failure] = outcome_of(page).failures
    assert failure.startswith("README.md:1: ") and "allowed: " in failure


def test_output_that_varies_is_not_compared(project):
    page = project("""
        <!-- output varies -->
        ```console
        $ echo 3.2 s
        2.9 s
        ```

        <!-- output varies -->
        ```python
        >>> 6 * 7
        41
        ```
    """)
    assert outcome_of(page).failures == []


def test_a_measurement_that_is_refused_is_listed_as_skipped(project):
    measures = "<!-- measures -->\n```console\n$ {}\n2.9 s\n```\n"
    refused = outcome_of(project(measures.format("echo too busy >&2; exit 1")))
    assert refused.failures == [] and refused.skipped == ["README.md:3: not checked: too busy"]
    done = outcome_of(project(measures.format("echo 3.2 s")))
    assert (done.failures, done.skipped) == ([], [])


@pytest.mark.parametrize("failing", ["exit 2", "echo 'Traceback (most recent call last):' >&2; exit 1", "exit 1"])
def test_a_measurement_that_fails_without_a_reason_is_a_failure(project, failing):
    outcome = outcome_of(project(f"<!-- measures -->\n```console\n$ {failing}\n```\n"))
    assert len(outcome.failures) == 1 and outcome.skipped == []


def test_a_command_may_span_lines(project):
    page = project("""
        ```console
        $ echo one \\
        >   two
        one two
        ```
    """)
    assert outcome_of(page).failures == []


def test_a_shell_block_without_a_command_is_a_failure(project):
    page = project("""
        ```bash
        make a wish
        ```
    """)
    assert outcome_of(page).failures[0].startswith("README.md:1: no line of this block begins with '$ '")


def test_blocks_in_other_languages_are_left_alone(project):
    page = project("""
        ```yaml
        $ false
        ```

        ````markdown
        ```console
        $ false
        ```
        ````
    """)
    outcome = outcome_of(page)
    assert (outcome.commands, outcome.skipped, outcome.failures) == (0, [], [])


def test_a_block_in_a_list_is_checked_without_its_indent(project):
    page = project("""
        1. First:

           ```console
           $ echo one
           one
           ```
    """)
    outcome = outcome_of(page)
    assert (outcome.commands, outcome.failures) == (1, [])


def test_a_block_that_is_never_closed_is_a_failure(project):
    assert outcome_of(project("text\n```console\n$ true\n")).failures == ["README.md:2: this block is never closed"]


def test_examples_of_a_page_share_their_names(project):
    page = project("""
        ```python
        rate = 450
        ```

        ```python
        >>> rate * 2
        900
        >>> rate
        451
        >>> rate / 0
        ```
    """)
    outcome = outcome_of(page)
    assert outcome.examples == 4
    assert [failure.split("\n")[0] for failure in outcome.failures] == [
        "README.md:8: prints something else: rate",
        "README.md:10: ZeroDivisionError: division by zero",
    ]


def test_a_failing_script_names_the_line_of_the_page(project):
    page = project("""
        Text.

        ```python
        import math
        math.sqrt(-1)
        ```

        ```python
        def broken(
        ```
    """)
    first, second = outcome_of(page).failures
    assert first.startswith("README.md:5: ValueError: ")
    assert second.startswith("README.md:9: SyntaxError: ")


def test_a_file_block_is_there_for_the_commands_below_it(project):
    page = project("""
        <!-- file: studies/mine.yaml -->
        ```yaml
        machine: hgx-h100
        ```

        ```console
        $ cat studies/mine.yaml
        machine: hgx-h100
        ```
    """)
    assert outcome_of(page).failures == []
    assert not (page.parent / "studies").exists()


def test_commands_run_in_a_copy_so_the_project_stays_clean(project):
    page = project("""
        ```console
        $ cat README.md > copy.md; rm README.md
        ```
    """)
    assert outcome_of(page).failures == []
    assert [path.name for path in page.parent.iterdir()] == ["README.md"]


def test_commands_find_the_python_that_runs_the_checker(project):
    page = project("""
        <!-- output varies -->
        ```console
        $ python -c "import sys; print(sys.prefix)"
        here
        ```
    """)
    outcome = outcome_of(page, update=True)
    assert outcome.failures == []
    assert sys.prefix in page.read_text()


def test_a_command_that_hangs_is_stopped(project):
    page = project("""
        ```console
        $ sleep 60 | cat
        ```
    """)
    assert outcome_of(page, timeout_s=0.2).failures[0].startswith("README.md:2: ran over 0.2 s")


def test_update_rewrites_shown_output_and_nothing_else(project):
    page = project("""
        Before.

          ```console
          $ echo a; echo b
          old

          $ echo unshown
          ```
        <!-- no-check: no -->
        ```console
        $ echo c
        old
        ```
        After.
    """)
    before = page.read_text()
    outcome = outcome_of(page, update=True)
    assert outcome.failures == []
    assert page.read_text() == before.replace("  old\n\n", "  a\n  b\n\n")
    assert outcome_of(page).failures == []


def test_update_does_not_hide_a_command_that_fails(project):
    page = project("""
        ```console
        $ echo new; exit 1
        old
        ```
    """)
    before = page.read_text()
    assert len(outcome_of(page, update=True).failures) == 1
    assert page.read_text() == before


def test_the_command_line_checks_readme_and_all_of_docs(project, capsys):
    page = project("""
        ```console
        $ echo readme
        ```
    """)
    deep = page.parent / "docs" / "how-to"
    deep.mkdir(parents=True)
    (deep / "sweep.md").write_text("```console\n$ exit 1\n```\n")
    assert check.main([], root=page.parent) == 1
    printed = capsys.readouterr().out
    assert "docs/how-to/sweep.md:2: exit code 1" in printed
    assert "docs: 2 pages, 2 commands, 0 Python examples; 0 blocks not checked, 1 failures" in printed
    assert check.main([str(page)], root=page.parent) == 0


def test_pages_are_checked_side_by_side(tmp_path):
    """Each is told of in order, whichever ends first."""
    slow, quick = tmp_path / "slow.md", tmp_path / "quick.md"
    slow.write_text("```bash\n$ sleep 0.5; false\n```\n")
    quick.write_text("```python\n>>> 1 + 1\n3\n```\n")
    words = [sys.executable, ROOT / "docs" / "check.py", "--jobs", "2", slow, quick]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stdout.index("exit code 1: sleep") < done.stdout.index("prints something else: 1 + 1")
    assert done.stdout.endswith("docs: 2 pages, 1 commands, 1 Python examples; 0 blocks not checked, 2 failures\n")
