"""A STORE that a network interface reads from memory: no room in a stage, no port of the GPUs' own."""

from __future__ import annotations

from typing import Any

import pytest
from xstage.sim import program as p
from xstage.sim.activity import timeline
from xstage.sim.errors import ProgramError
from xstage.sim.execute import simulate
from xstage.sim.program import Program
from xstage.sim.program_builder import ProgramBuilder, Seat
from xstage.sim.topology import StageParameters, direct, switch

STAGE = StageParameters(64, 128, 256, latency_ps=7)
"""Two granules an SM, four a GPU."""

both_engines = pytest.mark.parametrize("engine", ["simpy", "compiled"])


def beside_stores(**crossing: Any) -> Program:
    """SM 0 stores 64 KiB to GPU 1; a lane of its own sends 256 bytes to GPU 2."""
    builder = ProgramBuilder(n_gpus=3)
    for sm, (gpu, size, more) in enumerate([(1, 65536, {}), (2, 256, crossing)]):
        store = {"kind": p.STORE, "target": builder.destination({gpu: size}), "bytes": size, **more}
        task = builder.tasks(builder.op_list([store]), 1)
        builder.groups(0, builder.plan(repeat=[builder.queue([task])]), [Seat(("store", "copy engine")[sm], sm=sm)])
    return builder.build()


def ends_ps(program: Program, fabric: Any, engine: str) -> tuple[int, int]:
    """When the last bytes of both stores are visible."""
    records = simulate(program, fabric, engine=engine, trace="full").outcome.granule_records
    first, second = (int(records["visible_ps"][records["destination"] == gpu].max()) for gpu in (1, 2))
    return first, second


@both_engines
def test_it_passes_its_links_alone_while_the_egress_is_full(engine: str) -> None:
    """Links of 1 B/ps, an egress of 2 B/ps: 256 bytes take 256 ps and the latency, whatever the SMs store."""
    fabric = direct(3, 10**9, STAGE)
    stores, crossing = ends_ps(beside_stores(flags=p.FROM_MEMORY), fabric, engine)
    assert (stores, crossing) == (65536 + 7, 256 + 7)
    assert ends_ps(beside_stores(), fabric, engine)[1] > 256 + 7


@both_engines
def test_a_route_without_links_is_passed_whole(engine: str) -> None:
    fabric = switch(3, 10**9, STAGE)
    assert ends_ps(beside_stores(flags=p.FROM_MEMORY), fabric, engine)[1] > 256 + 7


@both_engines
def test_it_holds_no_room_and_uses_no_port_of_a_gpu(engine: str) -> None:
    trace = simulate(beside_stores(flags=p.FROM_MEMORY), direct(3, 10**9, STAGE), engine=engine, trace="full")
    ports = dict(zip(trace.fabric.port_names, trace.outcome.ports["bytes"], strict=True))
    assert (ports["egress 0"], ports["ingress 2"], ports["link 0>2"]) == (65536, 0, 256)
    assert trace.occupancy_steps(0)[1].max() == trace.outcome.peak_gpu_bytes[0] == 128
    assert trace.outcome.lanes["stall_ps"][1] == 0


def test_its_first_port_is_a_link_where_its_route_has_one() -> None:
    for fabric, first in ((direct(3, 10**9, STAGE), "link 0>2"), (switch(3, 10**9, STAGE), "egress 0")):
        trace = simulate(beside_stores(flags=p.FROM_MEMORY), fabric, trace="full")
        records = trace.outcome.granule_records
        ports = trace.first_ports(records)
        assert {fabric.port_names[port] for port in ports[records["destination"] == 2]} == {first}
        assert {fabric.port_names[port] for port in ports[records["destination"] == 1]} == {"egress 0"}


def test_what_has_no_egress_uses_none_over_time() -> None:
    """All of it is drained after 256 ps, the stores of SM 0 after 65,536: the egress is half in use until the end."""
    trace = simulate(beside_stores(flags=p.FROM_MEMORY), direct(3, 10**9, STAGE), trace="full")
    assert timeline(trace, bins=4)["egress_pct"].tolist() == pytest.approx([50] * 4, abs=0.1)


@pytest.mark.parametrize(
    "op, refused",
    [
        ({"kind": p.COMPUTE, "duration_ps": 1}, "FROM_MEMORY is a flag of a STORE"),
        ({"kind": p.STORE, "bytes": 64}, "a multicast cannot go FROM_MEMORY"),
    ],
)
def test_what_nothing_reads_from_memory_is_refused(op: dict[str, int], refused: str) -> None:
    builder = ProgramBuilder(n_gpus=2)
    target = builder.destination({1: 64}, replicate=True)
    builder.op_list([{"target": target if op["kind"] == p.STORE else 0, **op, "flags": p.FROM_MEMORY}])
    with pytest.raises(ProgramError, match=refused):
        builder.build()
