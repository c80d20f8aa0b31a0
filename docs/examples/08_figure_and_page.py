"""A teaching figure, and an answer of the command line as one HTML page.

python docs/examples/08_figure_and_page.py
"""

import subprocess
import sys
from pathlib import Path

import xstage as xs

drawn = xs.figures("out/figures", ["knee", "topologies"], formats=["svg"])
for one in drawn.drawn:
    print(one.name, *(file.name for file in one.files))

words = [sys.executable, "-m", "xstage", "explain", "gemm-rs-llama-fused", "--set", "workload.m=2048", "--json"]
answer = subprocess.run(words, check=True, capture_output=True, text=True).stdout
Path("out/explained.json").write_text(answer, encoding="utf-8")
page = xs.report("out/explained.json", "out/explained.html")
print(f"{page.title}: {page.tables} tables, {page.figures} figure, in one file")
