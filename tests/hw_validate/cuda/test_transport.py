"""Where the remote bytes of a measurement lie, what is said when they cannot, and that all memory is given back."""

import pytest
from xstage.hw_validate.cuda import transport
from xstage.hw_validate.cuda.errors import MemoryTooSmallError, NoPeerAccessError
from xstage.hw_validate.cuda.transport import MiB, open_transport, peer_matrix
from xstage.sim.errors import InputError

from .modelled_devices import ModelledDevices


@pytest.fixture(autouse=True)
def no_pause(monkeypatch):
    monkeypatch.setattr(transport, "AGAIN_S", 0.0)


def test_auto_is_peer_where_two_gpus_reach_each_other():
    devices = ModelledDevices(gpus=3)
    with open_transport(devices) as found:
        assert (found.name, found.n_ranks) == ("peer", 3)
        homes = [devices.live[buffer.address].home for buffer in found.far]
        assert homes == [0, 1, 2]
    assert devices.live == {}


def test_auto_is_host_on_one_gpu_and_flags_have_gpu_memory():
    devices = ModelledDevices()
    with open_transport(devices) as found:
        assert found.name == "host"
        assert devices.live[found.far[0].address].home == -1
        assert devices.live[found.own[0].address].home == 0
        assert found.warnings == []


def test_missing_peer_access_is_said_and_the_host_measured_instead():
    with open_transport(ModelledDevices(gpus=2, reachable=False)) as found:
        assert found.name == "host"
        assert "peer access is missing: GPU 0 cannot store into the memory of GPU 1" in found.warnings[0]


def test_peer_that_was_asked_for_and_is_not_there_is_refused():
    with (
        pytest.raises(NoPeerAccessError, match=r"peer access is missing: GPU 0 .* use transport host"),
        open_transport(ModelledDevices(gpus=2, reachable=False), "peer"),
    ):
        pass
    with pytest.raises(NoPeerAccessError, match="needs two GPUs"), open_transport(ModelledDevices(), "peer"):
        pass


def test_gpus_without_native_atomics_between_them_store_but_do_not_signal():
    """As over PCIe: a signal could be lost. They are measured if asked for."""
    said = "GPU 0 can store to GPU 1, but not add to its counters"
    with open_transport(ModelledDevices(gpus=2, atomics=False)) as found:
        assert found.name == "host"
        assert said in found.warnings[0]
    with open_transport(ModelledDevices(gpus=2, atomics=False), "peer") as asked:
        assert said in asked.no_signals
        assert "programs are not replayed" in asked.warnings[0]
    with open_transport(ModelledDevices(gpus=2)) as able:
        assert (able.name, able.no_signals) == ("peer", None)


def test_numbers_and_names_that_there_are_not_are_refused():
    for name, gpus, said in (
        ("nvlink", None, "transport = 'nvlink'"),
        ("peer", 5, "gpus = 5"),
        ("host", 2, "gpus = 2"),
    ):
        with pytest.raises(InputError, match=said), open_transport(ModelledDevices(gpus=2), name, gpus):
            pass


def test_less_memory_is_taken_where_less_is_free_and_said():
    with open_transport(ModelledDevices(free_bytes=400 * MiB)) as found:
        assert found.own[0].size == 160 * MiB
        assert "GPU 0 gave 160 MiB of the 1024 wanted" in found.warnings[0]


def test_any_shrinking_is_said_and_memory_is_asked_for_twice_before():
    """Pinned memory may be short for a moment."""
    short = MemoryTooSmallError("no")
    once = ModelledDevices(fails={("host_memory", 1): short})
    with open_transport(once) as found:
        assert found.far[0].size == 1024 * MiB and found.warnings == []
    twice = ModelledDevices(fails={("host_memory", 1): short, ("host_memory", 2): short})
    with open_transport(twice) as found:
        assert found.far[0].size == 512 * MiB
        assert "host memory gave 512 MiB of the 1024 wanted" in found.warnings[0]


def test_too_little_memory_is_an_error_and_nothing_is_left_taken():
    devices = ModelledDevices(free_bytes=100 * MiB)
    with pytest.raises(MemoryTooSmallError, match="GPU 0 has no 64 MiB free"), open_transport(devices):
        pass
    assert devices.live == {}


def test_a_host_without_memory_to_pin_is_an_error():
    devices = ModelledDevices(fails={("host_memory", "always"): MemoryTooSmallError("no")})
    with pytest.raises(MemoryTooSmallError, match="host memory has no 64 MiB free"), open_transport(devices, "host"):
        pass


def test_the_matrix_of_peers_is_whole():
    assert peer_matrix(ModelledDevices(gpus=2, reachable=False)) == [[True, False], [False, True]]
