"""Exports of Nsight Systems, made here with the public schema."""

import sqlite3

import pytest
from xstage.hw_validate.readers.read import read_trace
from xstage.sim.errors import InputError

PROCESS = 0x0001_0000_2A00_0000
THREAD = PROCESS + 17

SCHEMA = """
CREATE TABLE META_DATA_EXPORT (name TEXT, value TEXT);
CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INT, end INT, deviceId INT, contextId INT, streamId INT, correlationId INT,
  globalPid INT, demangledName INT, shortName INT, gridX INT);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INT, end INT, deviceId INT, contextId INT, streamId INT, correlationId INT,
  globalPid INT, bytes INT, copyKind INT);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INT, end INT, globalTid INT, correlationId INT, nameId INT);
CREATE TABLE NVTX_EVENTS (start INT, end INT, eventType INT, text TEXT, globalTid INT, textId INT);
"""


@pytest.fixture
def export(tmp_path):
    """`export(statement, ...)` writes the usual file, runs the statements on it and returns its path."""

    def make(*statements, schema=SCHEMA):
        file = tmp_path / "profile.sqlite"
        with sqlite3.connect(file) as base:
            base.executescript(schema)
            if schema is SCHEMA:
                fill(base)
            for statement in statements:
                base.execute(statement)
        base.close()
        return file

    return make


def fill(base):
    base.execute("INSERT INTO META_DATA_EXPORT VALUES ('EXPORT_SCHEMA_VERSION', '3.15.1')")
    base.executemany("INSERT INTO StringIds VALUES (?, ?)",
                     [(1, "void mega_moe<128>(int)"), (2, "mega_moe"), (3, "layer 4")])  # fmt: skip
    base.executemany(
        "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, ?, 1, ?, ?, ?, ?, 2, 148)",
        [(9_000, 11_500, 0, 7, 101, PROCESS, 1), (12_000, 12_500, 0, 7, 102, PROCESS, 99),
         (9_200, 9_900, 1, 7, 103, PROCESS, 1)],
    )  # fmt: skip
    base.execute(f"INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (10000, 10800, 0, 1, 21, 104, {PROCESS}, 4096, 10)")
    base.executemany(
        "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, ?, ?, 0)",
        [(8_000, 8_100, THREAD, 101), (8_500, 8_600, THREAD, 102), (8_050, 8_150, THREAD + 1, 103),
         (8_950, 9_000, THREAD, 104)],
    )  # fmt: skip
    base.executemany(
        "INSERT INTO NVTX_EVENTS VALUES (?, ?, ?, ?, ?, ?)",
        [(7_000, 8_900, 59, "step", THREAD, None), (7_900, 8_200, 59, None, THREAD, 3),
         (7_000, 9_900, 34, "mark", THREAD, None)],
    )  # fmt: skip


def test_kernels_and_copies_with_their_streams_names_and_nvtx_ranges(export):
    table = read_trace(export())
    found = table[["gpu", "role", "name", "phase", "kind", "bytes", "start_us", "end_us"]].astype(object)
    assert found.where(found.notna(), None).to_numpy().tolist() == [
        [0, "stream 7", "void mega_moe<128>(int)", "layer 4", "kernel", 0, 0.0, 2.5],
        [1, "stream 7", "void mega_moe<128>(int)", None, "kernel", 0, 0.2, 0.9],
        [0, "stream 21", "Memcpy PtoP", None, "copy", 4096, 1.0, 1.8],
        [0, "stream 7", "mega_moe", "step", "kernel", 0, 3.0, 3.5],
    ]
    assert table["lane"].nunique() == 3


def test_one_gpu_can_be_kept(export):
    file = export()
    assert set(read_trace(file, gpu=1)["gpu"]) == {1}
    with pytest.raises(InputError, match=r"gpu = 5: is no GPU of this trace \(allowed: 0, 1\)"):
        read_trace(file, gpu=5)


@pytest.mark.parametrize("table", ["NVTX_EVENTS", "CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_MEMCPY",
                                   "META_DATA_EXPORT", "StringIds"])  # fmt: skip
def test_a_table_that_was_not_traced_may_be_missing(export, table):
    assert len(read_trace(export(f"DROP TABLE {table}"))) >= 3


def test_another_schema_version_is_refused(export):
    with pytest.raises(InputError, match=r"EXPORT_SCHEMA_VERSION = '4\.0\.0': is not known.*\(allowed: 2\.x, 3\.x\)"):
        read_trace(export("UPDATE META_DATA_EXPORT SET value = '4.0.0'"))


def test_a_column_that_is_missing_is_named(export):
    with pytest.raises(InputError, match="CUPTI_ACTIVITY_KIND_KERNEL = 'streamId': has no such column"):
        read_trace(export("ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL DROP COLUMN streamId"))


def test_a_file_without_cuda_says_so(export):
    with pytest.raises(InputError, match="holds no kernels and no copies: was CUDA traced"):
        read_trace(export(schema="CREATE TABLE StringIds (id INT, value TEXT);"))


def test_mixed_clocks_are_refused(export):
    with pytest.raises(InputError, match="mixes clocks"):
        read_trace(
            export("UPDATE CUPTI_ACTIVITY_KIND_MEMCPY SET start = 1790000000000000000, end = 1790000000000000900")
        )


def test_a_damaged_file_is_refused(export):
    file = export()
    content = file.read_bytes()
    file.write_bytes(content[:4096] + b"\xff" * (len(content) - 4096))
    with pytest.raises(InputError, match=r"profile\.sqlite: cannot be read as an export of Nsight Systems"):
        read_trace(file)


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET start = NULL", "has a row without a number"),
        ("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET start = 'soon'", "has a row without a number"),
        ("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET deviceId = NULL", "has a row without a number"),
        ("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET deviceId = 1.7", "has a row without a number"),
        ("UPDATE NVTX_EVENTS SET start = NULL", "has a row without a number"),
        ("UPDATE NVTX_EVENTS SET globalTid = NULL WHERE text = 'step'", "has a row without a number"),
        (f"UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET deviceId = {2**32 + 3}", "gpu = 4294967299: is out of range"),
        ("UPDATE StringIds SET value = X'FF' WHERE id = 1", "has a name that is no text"),
    ],
)
def test_a_value_that_cannot_be_is_refused(export, statement, message):
    with pytest.raises(InputError, match=rf"profile\.sqlite: {message}"):
        read_trace(export(statement))
