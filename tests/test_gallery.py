"""The gallery: what it says about all 84 calls is what the page that compares them with the paper says."""

import re
from pathlib import Path

DOCS = Path(__file__).resolve().parent.parent / "docs"


def test_the_mean_of_all_calls_is_the_one_that_is_explained():
    printed = (DOCS / "choosing.md").read_text(encoding="utf-8")
    paper, here, *_ = re.findall(r"^geometric mean +([\d.]+) +([\d.]+)", printed, re.MULTILINE)[0]
    gallery = " ".join((DOCS / "gallery.md").read_text(encoding="utf-8").split())
    assert f"the simulated geometric mean is {here}, that of the paper {paper};" in gallery
