"""torch.profiler JSON, made here as Kineto writes it."""

import codecs
import gzip
import json

import pytest
from xstage.hw_validate.readers.read import read_trace
from xstage.sim.errors import InputError


def event(name, ts, dur, cat="kernel", pid=0, tid=7, **args):
    return {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args}


def kernel(name, ts, dur, device=0, stream=7, **more):
    return event(name, ts, dur, pid=device, tid=stream, device=device, stream=stream, **more)


EVENTS = [
    event("aten::mm", 10, 80, cat="cpu_op", pid=4711, tid=4711),
    kernel("gemm", 100.25, 20.5),
    kernel("ncclDevKernel_SendRecv", 101, 50, stream=20),
    event("Memcpy PtoP", 130, 1.125, cat="gpu_memcpy", device=0, stream=7, bytes=8192),
    event("forward", 99, 30, cat="gpu_user_annotation"),
    {"ph": "s", "id": 1, "pid": 4711, "tid": 4711, "ts": 10, "cat": "ac2g", "name": "ac2g"},
]


NO_NUMBER = "has a GPU event without a number where one is needed"


@pytest.fixture
def trace(tmp_path):
    def make(content, name="trace.json"):
        file = tmp_path / name
        file.write_text(content if isinstance(content, str) else json.dumps(content))
        return file

    return make


def test_gpu_events_by_stream_and_nothing_of_the_cpu(trace):
    table = read_trace(trace({"schemaVersion": 1, "traceEvents": EVENTS}))
    found = table[["name", "role", "kind", "bytes", "start_us", "end_us"]].astype(object).to_numpy().tolist()
    assert found == [
        ["gemm", "stream 7", "kernel", 0, 0.0, 20.5],
        ["ncclDevKernel_SendRecv", "stream 20", "kernel", 0, 0.75, 50.75],
        ["Memcpy PtoP", "stream 7", "copy", 8192, 29.75, 30.875],
    ]
    assert table["phase"].astype(object).where(table["phase"].notna(), None).tolist() == ["forward", None, None]


def test_without_a_stream_in_the_arguments_it_is_the_thread_and_the_process_is_the_gpu(trace):
    """So on AMD GPUs (ROCm)."""
    table = read_trace(trace([event("Cijk_Ailk", 5, 20, pid=2, tid=1), event("Cijk_PostGSU2", 25, 1, pid=2, tid=1)]))
    assert table[["gpu", "role", "name"]].to_numpy().tolist() == [
        [2, "stream 1", "Cijk_Ailk"],
        [2, "stream 1", "Cijk_PostGSU2"],
    ]


def test_microseconds_since_1970_keep_their_nanoseconds(trace):
    events = json.dumps([kernel("k", f"1790000000000000.00{ns}", 0.002, cat="Kernel") for ns in (1, 4)])
    table = read_trace(trace(events.replace('"1790000000000000.001"', "1790000000000000.001")))
    assert table[["start_us", "end_us"]].to_numpy().tolist() == [[0.0, 0.002], [0.003, 0.005]]


def test_a_packed_file_and_a_bare_list_are_read(trace, tmp_path):
    with gzip.open(tmp_path / "trace.json.gz", "wt") as stream:
        json.dump({"traceEvents": EVENTS}, stream)
    assert len(read_trace(tmp_path / "trace.json.gz")) == len(read_trace(trace(EVENTS))) == 3


def test_what_packs_a_file_is_seen_in_it_and_a_byte_order_mark_is_passed_over(tmp_path):
    text = json.dumps({"traceEvents": EVENTS}).encode()
    (tmp_path / "packed.json").write_bytes(gzip.compress(text))
    (tmp_path / "marked.json").write_bytes(codecs.BOM_UTF8 + text)
    assert len(read_trace(tmp_path / "packed.json")) == len(read_trace(tmp_path / "marked.json")) == 3


@pytest.mark.parametrize("damaged", [lambda packed: packed[:-20], lambda packed: packed[:30] + b"xxxx" + packed[34:]])
def test_a_damaged_packed_file_is_refused(tmp_path, damaged):
    file = tmp_path / "trace.json.gz"
    file.write_bytes(damaged(gzip.compress(json.dumps({"traceEvents": EVENTS}).encode())))
    with pytest.raises(InputError, match=r"trace\.json\.gz: is no whole JSON file"):
        read_trace(file)


def test_epoch_and_relative_clocks_in_one_file_are_refused(trace):
    with pytest.raises(InputError, match=r"mixes clocks.*times since 1970 and times since the start of a recording"):
        read_trace(trace([*EVENTS, kernel("late", 1790000000000000, 3)]))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"traceEvents": [', "is no whole JSON file"),
        ('{"events": []}', "has no list of events"),
        ({"traceEvents": EVENTS[:1]}, "holds nothing that ran on a GPU"),
        ("[" * 100_000, "is no whole JSON file"),
        ([kernel("k", "soon", 1)], NO_NUMBER),
        ([kernel("k", 5, float("inf"))], NO_NUMBER),
        ([kernel("k", 1e300, 1)], NO_NUMBER),
        ('[{"ph": "X", "cat": "kernel", "ts": 1E+999999999, "dur": 1, "args": {"device": 0, "stream": 7}}]', NO_NUMBER),
        ('[{"ph": "X", "cat": "kernel", "ts": 1, "dur": 1, "args": {"device": 0, "stream": 1E+999999999}}]', NO_NUMBER),
        ([kernel("k", 5, 1, device=2**70)], NO_NUMBER),
        ([kernel("k", 5, 1, bytes=2**70)], NO_NUMBER),
        ([kernel("k", 5, 1, device=1.7)], NO_NUMBER),
        ([kernel("k", 5, 1) | {"args": None}], NO_NUMBER),
        ([kernel("k", 5, 1) | {"args": [0, 7]}], NO_NUMBER),
        ([kernel("k", 5, 1, device=2**40)], "gpu = 1099511627776: is out of range"),
        ([kernel("\ud800", 5, 1)], "has a name that is no text"),
        ([kernel("k", 5, -1)], "'k' at 5000 ns ends before it starts"),
        ("hello", r"is no trace that can be read \(allowed: Nsight Systems"),
    ],
)
def test_what_cannot_be_read_is_refused_with_the_file(trace, content, message):
    with pytest.raises(InputError, match=rf"trace\.json: {message}"):
        read_trace(trace(content))


def test_a_missing_file_and_names_that_do_not_apply_are_refused(trace, tmp_path):
    with pytest.raises(InputError, match=r"none\.json: cannot be read: No such file"):
        read_trace(tmp_path / "none.json")
    with pytest.raises(InputError, match="event names = 'a, b': are for a FlashInfer buffer"):
        read_trace(trace(EVENTS), event_names=["a", "b"])
