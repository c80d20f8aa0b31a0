"""What a topology became, and changes that change nothing: the commands say so."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import xstage as xs
from xstage.cli import main

SMALL = ["run", "islands-all-to-all", "--set", "workload.producers=1", "--engine", "simpy"]


def answer(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[dict[str, Any], str]:
    """The answer of a command that succeeds, and what it said on standard error."""
    assert main([*words, "--json"]) == 0
    captured = capsys.readouterr()
    return json.loads(captured.out), captured.err


def test_explain_prints_what_the_topology_became(capsys: pytest.CaptureFixture[str]) -> None:
    found, _ = answer(capsys, *SMALL, "--explain")
    topology = found["explain"]["topology"]
    assert (topology["kind"], topology["gpus"], topology["links"]) == ("islands", 16, 32)
    assert topology["route_ports"] == [2, 4]
    assert topology["all_to_all_gbs"] == pytest.approx(43 * 15 / 8, rel=0.001)
    assert topology["links_on_no_route"] == []


def test_links_on_no_route_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    found, _ = answer(capsys, *SMALL, "--set", "workload.gpus=8", "--explain")
    assert len(found["explain"]["topology"]["links_on_no_route"]) == 16
    assert main([*SMALL, "--set", "workload.gpus=8", "--explain"]) == 0
    assert "on no route" in capsys.readouterr().out


def test_a_rate_that_cannot_matter_is_warned_about(capsys: pytest.CaptureFixture[str]) -> None:
    within = (*SMALL, "--set", "workload.gpus=8", "--set", "machine.interconnect.nic_rate=1 GB/s")
    found, said = answer(capsys, *within)
    [warning] = found["warnings"]
    assert warning.startswith("machine.interconnect.nic_rate = 1 GB/s changes nothing")
    assert warning in said


@pytest.mark.parametrize(
    "change",
    [
        "machine.interconnect.nic_rate=1 GB/s",
        "disturb.late_gpu={gpu: 3, by: 1 us}",
        "disturb.degraded_link={gpu: 3, factor: 0.5}",
    ],
)
def test_a_change_that_matters_is_not(capsys: pytest.CaptureFixture[str], change: str) -> None:
    _, said = answer(capsys, *SMALL, "--set", change)
    assert "changes nothing" not in said


def test_a_slow_gpu_that_computes_nothing_is_warned_about(capsys: pytest.CaptureFixture[str]) -> None:
    found, _ = answer(capsys, *SMALL, "--set", "disturb.slow_gpu={gpu: 3, factor: 2}")
    assert "disturb.slow_gpu" in found["warnings"][0]


def test_changes_that_need_each_other_are_not_idle(capsys: pytest.CaptureFixture[str]) -> None:
    """Without one of them the machine is none: it has an effect."""
    found, _ = answer(
        capsys, "run", "isolated-burst", "--engine", "simpy", "--set", "workload.producers=2",
        "--set", "machine.interconnect.kind=multi_plane_switch", "--set", "machine.interconnect.planes=2",
    )  # fmt: skip
    assert "warnings" not in found


def test_a_topology_is_drawn_with_its_links_beside_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "islands.svg"
    found, _ = answer(capsys, "scenarios", "show", "islands-all-to-all", "--plot", str(file))
    assert found["files"] == [str(file), str(file.with_suffix(".csv"))]
    assert found["topology"]["gpus"] == 16
    assert file.read_text().lstrip().startswith("<?xml")
    assert file.with_suffix(".csv").read_text().splitlines()[0] == "source,target,rate_gbs,latency_us"


def test_a_file_of_ones_own_is_drawn_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text("base: mi300x\n")
    found, _ = answer(capsys, "scenarios", "show", str(mine), "--plot", str(tmp_path / "mine.png"))
    assert found["topology"]["kind"] == "direct"


def test_a_topology_in_python_is_the_same() -> None:
    found = xs.topology("dgx1-v100")
    assert found.facts["all_to_all_gbs"] == pytest.approx(46.67, rel=0.01)
    assert len(found.links()) == 32
    assert repr(found) == "<Topology of dgx1-v100: custom, 8 GPUs>"
    assert "All-to-All" in found._repr_html_()
    assert found.plot().axes[0].get_title(loc="left") == "dgx1-v100: custom, 8 GPUs"


def test_what_cannot_be_drawn_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scenarios", "show", "hgx-b200", "--plot", str(tmp_path / "a.gif")]) == 2
    assert ".png" in capsys.readouterr().err


@pytest.mark.parametrize("name, loaded", [("hgx-b200", False), ("mi300x", False), ("dgx1-v100", True)])
def test_networkx_is_loaded_where_a_graph_is_needed(name: str, loaded: bool) -> None:
    code = f"import sys, xstage; xstage.load_machine({name!r}).fabric(); print('networkx' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stdout.strip() == str(loaded), result.stderr
