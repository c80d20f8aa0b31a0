"""Pictures of topologies: everything that is joined is drawn, and the same topology gives the same bytes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from xstage.plots.save import save
from xstage.plots.topology_figures import positions, topology_figure
from xstage.scenarios.machine_files import load_machine

from xstage.answers.topology import links_table


@pytest.mark.parametrize("name", ["hgx-b200", "mi300x", "dgx1-v100", "hgx-h100-rails", "gb200-nvl72"])
def test_every_gpu_and_switch_has_a_place_of_its_own(name: str) -> None:
    machine = load_machine(name)
    links = links_table(machine)
    at = positions(links, machine.gpus)
    assert set(at) == {str(node) for node in [*links["source"], *links["target"]]}
    places = np.array(list(at.values()))
    apart = np.linalg.norm(places[:, None] - places[None], axis=2) + np.eye(len(places))
    assert apart.min() > 0.05


def test_planes_are_drawn_apart() -> None:
    kind = {"interconnect.kind": "multi_plane_switch", "interconnect.planes": 4}
    machine = load_machine("hgx-h100", kind)
    at = positions(links_table(machine), 8)
    assert len({at[f"plane {plane}"] for plane in range(4)}) == 4


def test_a_link_is_as_wide_as_it_is_fast() -> None:
    figure = topology_figure(links_table(load_machine("dgx1-v100")), 8, 8, "title")
    widths = {line.get_linewidth() for line in figure.axes[0].lines if line.get_marker() == "None"}
    assert len(widths) == 2
    labels = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert labels == ["GPU", "40 GB/s", "20 GB/s"]


def test_links_of_a_large_node_are_thin_so_that_they_stay_apart() -> None:
    figure = topology_figure(links_table(load_machine("gb200-nvl72")), 72, 72, "title")
    assert max(line.get_linewidth() for line in figure.axes[0].lines if line.get_marker() == "None") < 0.6


def test_gpus_that_take_no_part_are_marked() -> None:
    figure = topology_figure(links_table(load_machine("hgx-b200")), 8, 4, "title")
    labels = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert labels == ["GPU", "GPU, not used", "switch", "717 GB/s"]


def test_the_same_topology_gives_the_same_bytes(tmp_path: Path) -> None:
    links = links_table(load_machine("hgx-h100-rails"))
    for folder in ("a", "b"):
        save(topology_figure(links, 16, 16, "title"), links, tmp_path / folder, "islands", ["png", "svg"])
    for kind in ("png", "svg", "csv"):
        assert (tmp_path / "a" / f"islands.{kind}").read_bytes() == (tmp_path / "b" / f"islands.{kind}").read_bytes()
