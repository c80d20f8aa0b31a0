"""docs/reference.md is what docs/reference.py makes of the program as it is."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

import xstage as xs

DOCS = Path(__file__).resolve().parent.parent / "docs"


@pytest.mark.slow
def test_the_reference_is_up_to_date():
    checked = subprocess.run([sys.executable, DOCS / "reference.py", "--check"], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr


def test_the_reference_has_every_public_name_and_a_text_for_each():
    text = (DOCS / "reference.md").read_text(encoding="utf-8")
    parts = {part.split("`")[0]: part.split("\n## ")[0] for part in text.split("### `xs.")[1:]}
    assert {"run", "compare", "figures", "report", "beside"} <= set(parts) <= set(xs.__all__)
    for name, part in parts.items():
        assert len(part.split("```")[-1].strip()) > 20, name


def test_a_default_of_a_signature_is_python_and_one_of_an_option_is_what_is_typed():
    spec = importlib.util.spec_from_file_location("docs_reference", DOCS / "reference.py")
    reference = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(reference)
    assert "gap: str = '0 us'" in reference._signature("audit", xs.audit)
    assert "| `--backend` TEXT |" in (text := reference.page()) and "| `cpu` |" in text
