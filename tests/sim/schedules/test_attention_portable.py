"""The schedule of our own attention kernel: persistent for every mask, and `serial` in one launch."""

import numpy as np
import pytest
from xstage.scenarios.machine_files import load_machine
from xstage.sim.errors import InputError
from xstage.sim.execute import simulate
from xstage.sim.schedules.attention_a2a import Attention, Policy, build, tile_of

MACHINE = load_machine("hgx-h100", {"compute.kernels": "portable", "compute.sms": 6})
POLICIES = [Policy("serial"), Policy("comm_warp"), Policy("reserved_sms", reserved_sms=2), Policy("piggyback")]


def run(shape, policy, engine="compiled"):
    program = build(MACHINE, shape, policy)
    return simulate(program, MACHINE.fabric(shape.ranks), engine=engine, trace="full")


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
def test_both_engines_agree_and_every_row_arrives(policy, causal):
    shape = Attention(600, 8, ranks=4, kv_heads=2, batch=2, causal=causal)
    traces = [run(shape, policy, engine) for engine in ("simpy", "compiled")]
    first, second = (trace.ops() for trace in traces)
    assert first.equals(second)
    remote = traces[1].outcome.granule_records
    assert int(remote["bytes"].sum()) == shape.ranks * shape.output_bytes_sent


def test_serial_copies_begin_when_all_tiles_of_the_rank_are_done_and_it_waits_for_all_others():
    ops = run(Attention(1024, 8, ranks=4), Policy("serial")).ops()
    done = ops[ops.phase == "attention"].groupby("gpu").end_us.max()
    copies = ops[(ops.phase == "copy") & (ops.kind == "store")].groupby("gpu")
    assert (copies.start_us.min() >= done - 1e-9).all()
    arrived = ops[ops.phase == "arrive"].groupby("gpu").end_us.max()
    assert arrived.min() >= done.max() - 1e-9  # its rows come from all ranks
    assert ops[ops.phase == "copy"].sm.nunique() == MACHINE.sms


def test_the_output_buffer_is_needed_again_at_the_end_of_the_next_tile_with_or_without_a_mask():
    tiles = [tile_of("portable", 128, 128, causal=causal, tokens=4096) for causal in (False, True)]
    assert [(tile.block_m, tile.stores, tile.contract) for tile in tiles] == [(128, 1, "late")] * 2
    assert np.array_equal([tile.static for tile in tiles], [True, False])


@pytest.mark.parametrize("field", ["launch_ps", "rate_kbs", "permute_kbs"])
def test_terms_that_the_kernel_shows_itself_are_refused(field):
    with pytest.raises(InputError, match=f"{field} = 5: is what the portable kernel shows itself"):
        build(MACHINE, Attention(1024, 8, ranks=4), Policy("serial", **{field: 5}))


def test_what_the_kernel_does_not_have_is_refused():
    with pytest.raises(InputError, match=r"head_dim = 192: has no portable kernel here \(allowed: 1 to 128\)"):
        tile_of("portable", 192, 192, causal=False, tokens=1024)
    with pytest.raises(InputError, match=r"inputs = 'fp8': has no portable kernel here \(allowed: bf16\)"):
        tile_of("portable", 128, 128, causal=False, tokens=1024, inputs="fp8")
