"""The microbenchmark kernel as it is, emulated: what it stores and notes, on one GPU and between two; it never hangs."""

import numpy as np
import pytest
from xstage.hw_validate.cuda import emulate
from xstage.hw_validate.cuda import experiments as e
from xstage.hw_validate.cuda.errors import KernelTimeoutError
from xstage.hw_validate.cuda.noted import Noted
from xstage.hw_validate.cuda.parts import Extent, microbenchmarks
from xstage.hw_validate.cuda.run_bursts import BurstRunner, scout
from xstage.hw_validate.cuda.transport import open_transport
from xstage.sim.errors import DeadlockError

from .emulated import BUILDS, needs_compiler
from .emulated_devices import EmulatedDevices

pytestmark = needs_compiler
TINY = Extent(sizes=4, rounds=1, train_rounds=1, train_bursts=3, sweep_rounds=1)
KIB = 1024


def run(*rows, gpus=1, seed=0, look=None, sanitizer=None, sms=4, threads=64, defines=None):
    """The times of a table, as each row's [SMs, bursts, marks] of rank 0; `look` sees the transport before it is closed."""
    devices = EmulatedDevices(BUILDS, gpus=gpus, sms=sms, seed=seed, sanitizer=sanitizer, defines=defines)
    with (
        open_transport(devices, most_bytes=1 << 20) as transport,
        BurstRunner(devices, transport, threads=threads) as runner,
    ):
        done = runner.run(runner.resolve(np.concatenate(rows)))
        noted = Noted.of(done.arrays(), [{"group": "all"}])
        return [noted.cycles(i) for i in range(len(done.table))], (look(transport, runner) if look else None), done


@pytest.mark.parametrize("gpus", [1, 2])
@pytest.mark.parametrize("seed", range(2))
def test_every_part_runs_to_its_end_with_times_in_order(gpus, seed):
    devices = EmulatedDevices(BUILDS, gpus=gpus, seed=seed)
    with (
        open_transport(devices, most_bytes=1 << 20) as transport,
        BurstRunner(devices, transport, threads=64) as runner,
    ):
        scout(runner)
        for part in microbenchmarks(TINY, seed):
            done = runner.run(runner.resolve(part.table))
            noted = Noted.of(done.arrays(), part.groups)
            for i, row in enumerate(done.table):
                if row["kind"] in (e.CLOCK, e.OFFSET) or row["flags"] & (e.LOADS | e.FENCES):
                    continue
                sender = (int(row["senders"]) & -int(row["senders"])).bit_length() - 1
                times = noted.cycles(i, sender)[: 1 if row["kind"] == e.FLAG else None]
                assert (np.diff(times, axis=2) >= 0).all(), (part.name, row)
                assert (np.diff(times[..., 0], axis=1) > 0).all(), (part.name, row)


def test_all_warps_of_a_whole_cta_store_and_load():
    devices = EmulatedDevices(BUILDS, sms=2)
    rows = [e.row(e.STORE, 0, bytes=16 * KIB), e.row(e.STORE, 1, bytes=8 * KIB, warps=4, marks=3, flags=e.LOADS),
            e.row(e.FEED, 2, bytes=64 * KIB, bursts=2), e.row(e.PULL, 3, bytes=64 * KIB, bursts=2),
            e.row(e.STORE, 4, bytes=16 * KIB)]  # fmt: skip
    with open_transport(devices, most_bytes=1 << 20) as transport, BurstRunner(devices, transport) as runner:
        done = runner.run(runner.resolve(np.concatenate(rows)))
        far = transport.far[0].read()
    noted = Noted.of(done.arrays(), [])
    assert (far[: 16 * KIB] != 0).mean() > 0.97
    assert not far[24 * KIB : 152 * KIB].any()  # what PULL loads
    assert (far[152 * KIB : 168 * KIB] != 0).mean() > 0.97
    assert (noted.cycles(0)[..., 1] > noted.cycles(0)[..., 0]).all()
    assert (noted.cycles(1)[..., 2] % 4 == 0).all()  # four loads at once, counted by warp
    assert all((np.diff(noted.cycles(i), axis=2) > 0).all() for i in (2, 3))


def test_a_burst_covers_its_bytes_and_no_more():
    def look(transport, runner):
        far = transport.far[0].read()
        return [(far[sm * runner.region_bytes :][: runner.region_bytes] != 0).sum() for sm in range(4)]

    _, filled, _ = run(e.row(e.STORE, 0, bytes=2 * KIB, producers=3, warps=2), look=look)
    assert all(0.97 * 2 * KIB < count <= 2 * KIB for count in filled[:3])
    assert filled[3] == 0


@pytest.mark.parametrize("width", [4, 8, 16])
def test_every_width_covers_the_same_bytes(width):
    def look(transport, runner):
        return np.flatnonzero(transport.far[0].read()).max()

    _, last, _ = run(e.row(e.STORE, 0, bytes=KIB, producers=1, width=width), look=look)
    assert KIB - 8 <= last < KIB


def test_bulk_stores_arrive_and_are_seen_when_loaded_back():
    def look(transport, runner):
        return (transport.far[0].read() != 0).sum()

    times, filled, _ = run(e.row(e.BULK, 0, bytes=4 * KIB, chunk=KIB, producers=1, marks=5, flags=e.BACK), look=look)
    assert filled > 0.97 * 4 * KIB
    assert (np.diff(times[0][0, 0]) > 0).all()


def test_zeros_are_zeros_and_control_stores_stay_at_home():
    def look(transport, runner):
        return transport.far[0].read().any(), transport.own[0].read().any()

    assert run(e.row(e.STORE, 0, bytes=KIB, flags=e.ZEROS), look=look)[1] == (False, False)
    assert run(e.row(e.STORE, 0, bytes=KIB, flags=e.LOCAL), look=look)[1] == (False, True)


def test_bursts_go_to_the_memory_of_the_next_gpu():
    def look(transport, runner):
        return [buffer.read().any() for buffer in transport.far]

    assert run(e.row(e.STORE, 0, bytes=KIB), gpus=2, look=look)[1] == [False, True]
    assert run(e.row(e.STORE, 0, bytes=KIB, senders=2, target=0), gpus=2, look=look)[1] == [True, False]


def test_no_address_is_stored_to_twice_until_the_region_is_full():
    def look(transport, runner):
        return (transport.far[0].read() != 0).sum()

    _, filled, _ = run(e.row(e.STORE, 0, bytes=KIB, bursts=5, producers=1), look=look)
    assert filled > 0.97 * 5 * KIB


def test_bursts_to_the_same_places_leave_the_new_ones_to_others():
    """Two new places, with bursts to the same one before, between and behind them: the first new one is the same, too."""
    new, same = e.row(e.STORE, 0, bytes=KIB, producers=1), e.row(e.STORE, 0, bytes=4 * KIB, producers=1, flags=e.SAME)

    def look(transport, runner):
        return transport.far[0].read()[: 8 * KIB]

    _, only, _ = run(same, same, same, look=look)
    assert (only[: 4 * KIB] != 0).mean() > 0.97 and not only[4 * KIB :].any()
    _, both, _ = run(same, *[new] * 5, same, new, look=look)
    assert (both[: 6 * KIB] != 0).mean() > 0.97 and not both[6 * KIB :].any()


SLOW = 50_000


@pytest.mark.parametrize("seed", range(3))
def test_stores_do_not_wait_for_a_thread_of_their_sm_that_releases(seed):
    """A release takes ten times as long as it takes to store: that shows in the time until the burst is over, alone."""
    row = e.row(e.STORE, 0, bytes=16 * KIB, bursts=2, warps=1, marks=3, flags=e.FENCES)
    (quick,), _, _ = run(row, seed=seed)
    (slow,), _, _ = run(row, seed=seed, defines={"XSTAGE_RELEASE_TICKS": SLOW})
    for times in (quick, slow):
        assert (times[..., 1] - times[..., 0] < SLOW / 10).all()
    released = slow[:, 0, 2] > 0
    assert released.any() and (np.diff(slow[released][..., 0], axis=1) > SLOW).all()
    assert (np.diff(quick[..., 0], axis=1) < SLOW / 10).all() and quick[..., 2].max() > 1


def test_a_release_for_the_own_sm_is_told_from_one_for_all():
    """One for all takes 50 us here, one for the own SM nothing."""
    row = {"bytes": KIB, "marks": 3}
    rows = [e.row(e.STORE, 0, flags=e.FENCE, **row), e.row(e.STORE, 1, flags=e.FENCE | e.IN_SM, **row)]
    (to_all, in_sm), _, _ = run(*rows, defines={"XSTAGE_RELEASE_TICKS": SLOW})
    assert (to_all[..., 2] - to_all[..., 1] >= SLOW).all()
    assert (in_sm[..., 2] - in_sm[..., 1] < SLOW / 10).all()


def test_the_light_sm_releases_while_hogs_store_on():
    row = e.row(e.STORE, 0, bytes=KIB, bursts=3, other_bytes=128, marks=3, flags=e.LIGHT | e.FENCE, gap_ns=100.0)

    def look(transport, runner):
        return [
            (transport.far[0].read()[sm * runner.region_bytes :][: runner.region_bytes] != 0).sum() for sm in range(4)
        ]

    (times,), stored, _ = run(row, look=look, defines={"XSTAGE_RELEASE_TICKS": SLOW})
    assert times.shape == (1, 3, 3) and (times[..., 2] - times[..., 1] >= SLOW).all()
    assert all(count > 3 * KIB for count in stored[:3]) and stored[3] <= 3 * 512


def test_a_gap_is_at_least_as_long_as_asked():
    times, _, _ = run(e.row(e.STORE, 0, bytes=KIB, bursts=4, gap_ns=5000.0))
    gaps = times[0][:, 1:, 0] - times[0][:, :-1, 1]
    assert (gaps >= 5000).all()


def test_only_the_light_sm_notes_beside_hogs():
    times, _, done = run(e.row(e.STORE, 0, bytes=KIB, bursts=3, other_bytes=512, flags=e.LIGHT, gap_ns=100.0))
    assert times[0].shape == (1, 3, 2)
    assert int(done.table["producers"][0]) == 3


def test_emulated_gpus_have_one_timer():
    _, _, done = run(e.row(e.OFFSET, 0, producers=1, bursts=8, marks=6, target=1), gpus=2)
    noted = Noted.of(done.arrays(), [{"group": "offset"}])
    words = noted.cycles(0)[0]
    assert abs(noted.offsets_ns()["1"]) <= (words[:, 4] - words[:, 0]).min()


class Unequal(EmulatedDevices):
    """GPU 1 has another table than GPU 0: its rows have no echo."""

    def run(self, launches, abort, deadline_s):
        self.live[int(launches[1].parameters["rows"][0])].data.view(e.ROW)["flags"] = 0
        return super().run(launches, abort, deadline_s)


class UnequalWithDeadlines(Unequal):
    deadlines = True


@pytest.mark.parametrize(
    "devices, error, said",
    [(Unequal, DeadlockError, None), (UnequalWithDeadlines, KernelTimeoutError, "an SM waited for another")],
)
def test_a_partner_that_never_answers_is_a_deadlock_or_with_deadlines_given_up(devices, error, said):
    """The echo asks GPU 1, whose table has the row without an echo: nothing can run any more."""
    row = e.row(e.STORE, 0, bytes=KIB, flags=e.ECHO, marks=3)
    gpus = devices(BUILDS, gpus=2)
    with (
        open_transport(gpus, most_bytes=1 << 20) as transport,
        BurstRunner(gpus, transport, threads=64) as runner,
        pytest.raises(error, match=said),
    ):
        runner.run(runner.resolve(row))


@pytest.mark.slow
@pytest.mark.parametrize("gpus", [1, 2])
@pytest.mark.parametrize("sanitizer", ["thread", "address"])
def test_no_race_and_no_access_outside(sanitizer, gpus):
    devices = EmulatedDevices(BUILDS, gpus=gpus, seed=gpus, sanitizer=sanitizer)
    with (
        open_transport(devices, most_bytes=1 << 20) as transport,
        BurstRunner(devices, transport, threads=64) as runner,
    ):
        for part in microbenchmarks(TINY, 1):
            runner.run(runner.resolve(part.table))


@pytest.mark.slow
def test_loads_out_of_l2_begin_anew_at_the_end_of_their_memory():
    times, _, _ = run(e.row(e.FEED, 0, bytes=384 * KIB), sanitizer="address")  # by four SMs, out of 1 MiB
    assert len(times[0]) == 4


def test_the_emulator_has_a_compiler_here():
    assert emulate.compiler()
