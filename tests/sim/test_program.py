"""A Program is checked when it is made, saved whole, loaded equal, described and compared."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from xstage.sim import program as p
from xstage.sim.errors import ProgramError
from xstage.sim.program import Program
from xstage.sim.program_builder import ProgramBuilder, Seat

from .random_programs import random_case


def two_lane_program(first: list[dict[str, Any]], second: list[dict[str, Any]] | None = None) -> Program:
    """Two GPUs, counter 0 at GPU 0 and 1 at GPU 1, one slot; a lane of GPU 0 runs `first`, one of GPU 1 `second`."""
    b = ProgramBuilder(n_gpus=2)
    b.counters(home=[0, 1], cause="inputs")
    b.destination({1: 100})
    for gpu, ops in enumerate((first, second or [])):
        task = b.tasks(b.op_list(ops), 1, phase="work")
        b.groups(gpu=gpu, plan=b.plan(repeat=[b.queue([task])]), seats=[Seat("mma", sm=3, window=gpu)], slots=[1])
    return b.build(made_for="a test")


STORE = {"kind": p.STORE, "target": 0, "bytes": 100}


def with_noise_between_columns(table: p.Table) -> p.Table:
    """Equal rows, with other bytes where the columns leave room: NumPy does not say what is there."""
    noisy = np.full(table.nbytes, 0xAB, dtype=np.uint8).view(table.dtype)
    for name in table.dtype.names or ():
        noisy[name] = table[name]
    return noisy if table.dtype.names else table


def test_what_is_saved_loads_equal_and_has_the_same_bytes_each_time(tmp_path: Path) -> None:
    for seed in range(20):
        program, _ = random_case(seed)
        program.save(tmp_path / "a.npz")
        replace(program, **{name: with_noise_between_columns(table) for name, table in program.tables()}).save(
            tmp_path / "b.npz"
        )
        assert Program.load(tmp_path / "a.npz") == program
        assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()


def test_a_group_may_have_any_number_of_lanes() -> None:
    """More than the 64 arrays that NumPy broadcasts at once, three of a lane and three of its group."""
    b = ProgramBuilder(n_gpus=1)
    seats = [Seat("mma", sm=np.arange(2), start_ps=lane) for lane in range(200)]
    b.groups(gpu=0, plan=b.plan(), seats=seats)
    lanes = b.build().lanes
    assert lanes["sm"].tolist() == [0] * 200 + [1] * 200
    assert lanes["start_ps"].tolist() == [*range(200)] * 2


@pytest.mark.parametrize("kept", [0, 10, 200, -40])
def test_a_truncated_file_is_refused(tmp_path: Path, kept: int) -> None:
    path = tmp_path / "whole.npz"
    two_lane_program([STORE]).save(path)
    cut = tmp_path / "cut.npz"
    cut.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(ProgramError, match=r"cut\.npz: not a whole Program"):
        Program.load(cut)


def test_a_file_that_is_missing_or_no_program_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ProgramError, match="no such file"):
        Program.load(tmp_path / "none.npz")
    np.savez(tmp_path / "other.npz", values=np.arange(3))
    with pytest.raises(ProgramError, match="not a whole Program"):
        Program.load(tmp_path / "other.npz")


@pytest.mark.parametrize(
    "header", [{"roles": 5}, {"roles": "mma"}, {"roles": [[1]]}, {"phases": None}, {"meta": 5}, {"n_gpus": "2"}]
)
def test_a_file_whose_header_was_changed_by_hand_is_refused(tmp_path: Path, header: dict[str, Any]) -> None:
    path = tmp_path / "program.npz"
    two_lane_program([STORE]).save(path)
    with np.load(path) as file:
        tables = {name: file[name] for name in file.files}
    written = json.loads(str(tables.pop("header")))
    np.savez(path, header=np.array(json.dumps(written | header)), **tables)
    with pytest.raises(ProgramError, match=r"its header lacks one of|roles: a name is no text"):
        Program.load(path)


def test_a_failed_save_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "program.npz"
    two_lane_program([STORE]).save(path)
    before = path.read_bytes()

    def stop(stream: Any, **_: Any) -> None:
        stream.write(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(np, "savez", stop)
    with pytest.raises(KeyboardInterrupt):
        two_lane_program([]).save(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_tables_cannot_be_changed_afterwards() -> None:
    with pytest.raises(ValueError, match="read-only"):
        two_lane_program([STORE]).ops["bytes"] = 5


def test_describe_tells_who_acts_and_what_is_moved() -> None:
    text = two_lane_program([STORE, {"kind": p.COMPUTE, "duration_ps": 2_000_000}]).describe()
    assert "2 GPUs, 2 groups, 2 lanes: 2 mma" in text
    assert "2 ops: 1 compute, 1 store" in text
    assert "100 B stored" in text
    assert "a test" in text


def test_a_diff_names_the_table_the_row_and_the_columns() -> None:
    one = two_lane_program([{"kind": p.COMPUTE, "duration_ps": 1}])
    other = two_lane_program([{"kind": p.COMPUTE, "duration_ps": 2}])
    assert one.diff(one) == []
    assert one.diff(other) == ["ops: 1 of 1 rows differ, first ops[0]: duration_ps 1 | 2"]
    assert any("ops: 1 rows | 2 rows" in line for line in one.diff(two_lane_program([STORE, STORE])))


REFUSED: list[tuple[str, list[dict[str, Any]], list[dict[str, Any]] | None]] = [
    ("negative duration", [{"kind": p.COMPUTE, "duration_ps": -1}], None),
    ("unknown kind", [{"kind": 99}], None),
    ("no such destinations row", [STORE | {"target": 7}], None),
    ("bytes differ", [STORE | {"bytes": 99}], None),
    ("owner GPU does not exist", [], [{"kind": p.LOAD, "target": 2, "bytes": 1}]),
    ("LOAD needs at least one byte", [], [{"kind": p.LOAD, "target": 0, "bytes": 0}]),
    ("window of at least 1", [{"kind": p.LOAD, "target": 1, "bytes": 1}], None),
    ("no such counter", [{"kind": p.WAIT, "counter": 2, "count": 1}], None),
    ("count must be 1 or more", [{"kind": p.SIGNAL, "counter": 0, "count": 0}], None),
    ("counter of another GPU", [{"kind": p.WAIT, "counter": 1, "count": 1}], None),
    ("has its home elsewhere", [STORE | {"counter": 0}], None),
    ("has no such slot", [{"kind": p.ACQUIRE, "counter": 1, "count": 1}], None),
]


@pytest.mark.parametrize(("reason", "first", "second"), REFUSED)
def test_ops_that_make_no_sense_are_refused(reason: str, first: list[Any], second: list[Any] | None) -> None:
    with pytest.raises(ProgramError, match=reason):
        two_lane_program(first, second)


def changed(table: str, change: Callable[[Any], None]) -> Program:
    program = two_lane_program([STORE])
    rows = getattr(program, table).copy()
    change(rows)
    return replace(program, **{table: rows})


@pytest.mark.parametrize(
    ("table", "column", "value", "reason"),
    [
        ("shares", "gpu", 2, "the GPU does not exist"),
        ("shares", "bytes", 0, "at least one byte"),
        ("runs", "n_ops", 5, "reaches beyond the 1 rows of ops"),
        ("tasks", "first_run", -1, "reaches beyond"),
        ("tasks", "guard_counter", 9, "no such guard counter"),
        ("queues", "n_tasks", 3, "reaches beyond"),
        ("steps", "queue", 2, "no such queue"),
        ("steps", "times", -1, "times must be 0"),
        ("plans", "n_repeat", 9, "the steps do not exist"),
        ("groups", "gpu", 5, "the GPU does not exist"),
        ("groups", "plan", 4, "no such plan"),
        ("groups", "ahead", -1, "ahead must be 0 or more"),
        ("lanes", "start_ps", -1, "starts before time 0"),
        ("lanes", "role", 3, "no such role"),
        ("lanes", "sm", -2, "negative SM"),
        ("counters", "home", 2, "the home GPU does not exist"),
        ("counters", "cause", 7, "unknown cause"),
    ],
)
def test_references_that_lead_nowhere_are_refused(table: str, column: str, value: int, reason: str) -> None:
    def change(rows: Any) -> None:
        rows[column] = value

    with pytest.raises(ProgramError, match=reason):
        changed(table, change)


def test_a_task_stands_in_one_place_only() -> None:
    b = ProgramBuilder(1)
    task = b.tasks(b.op_list([]), 1)
    b.groups(gpu=0, plan=b.plan(repeat=[b.queue([task, task])]), seats=[Seat("mma")])
    with pytest.raises(ProgramError, match="more than one place"):
        b.build()


def test_tasks_that_nobody_takes_are_refused() -> None:
    b = ProgramBuilder(1)
    b.queue([b.tasks(b.op_list([]), 1)])
    with pytest.raises(ProgramError, match="no group's plan visits it"):
        b.build()


def test_a_queue_belongs_to_one_gpu() -> None:
    b = ProgramBuilder(2)
    plan = b.plan(repeat=[b.queue([b.tasks(b.op_list([]), 1)])])
    b.groups(gpu=[0, 1], plan=plan, seats=[Seat("mma")])
    with pytest.raises(ProgramError, match="shared by groups of different GPUs"):
        b.build()


def test_a_task_has_a_run_for_every_seat() -> None:
    b = ProgramBuilder(1)
    plan = b.plan(repeat=[b.queue([b.tasks(b.op_list([]), 1)])])
    b.groups(gpu=0, plan=plan, seats=[Seat("mma"), Seat("epilogue")])
    with pytest.raises(ProgramError, match="1 runs, but its group has 2 lanes"):
        b.build()


def test_a_destination_lists_a_gpu_once_and_a_multicast_has_one_size() -> None:
    b = ProgramBuilder(2)
    b.destinations([[1, 1]], [[4, 4]])
    with pytest.raises(ProgramError, match="GPU 1 is listed twice"):
        b.build()
    b = ProgramBuilder(3)
    b.destination({1: 4, 2: 5}, replicate=True)
    with pytest.raises(ProgramError, match="one size for every GPU"):
        b.build()


def test_a_store_too_large_for_one_op_is_refused() -> None:
    b = ProgramBuilder(2)
    row = b.destination({1: 2**31})
    b.ops(p.STORE, target=row, bytes=2**31)
    with pytest.raises(ProgramError, match="split it"):
        b.build()


@pytest.mark.parametrize(
    ("column", "value"), [("count", 2**32), ("duration_ps", 1.5), ("kind", 259), ("bytes", 1e30), ("target", -(2**40))]
)
def test_numbers_that_a_column_cannot_hold_are_refused_not_wrapped(column: str, value: float) -> None:
    with pytest.raises(ProgramError, match=rf"ops\.{column}: .*(out of range|no whole number)"):
        ProgramBuilder(1).ops(**{"kind": p.COMPUTE} | {column: value})


def test_names_stand_once_and_phases_exist() -> None:
    program = two_lane_program([])
    with pytest.raises(ProgramError, match="roles: a name stands there twice"):
        replace(program, roles=("mma", "mma"))
    for phase in (-1, 5):
        tasks = program.tasks.copy()
        tasks["phase"] = phase
        with pytest.raises(ProgramError, match="no such phase"):
            replace(program, tasks=tasks)


def test_flags_and_replicate_have_no_other_values() -> None:
    program = two_lane_program([STORE])
    rows, ops = program.destinations.copy(), program.ops.copy()
    rows["replicate"] = 2
    ops["flags"] = 16
    with pytest.raises(ProgramError, match="replicate must be 0 or 1"):
        replace(program, destinations=rows)
    with pytest.raises(ProgramError, match="unknown flags"):
        replace(program, ops=ops)


def test_meta_comes_back_as_it_was_kept(tmp_path: Path) -> None:
    program = replace(two_lane_program([]), meta={"shape": (1, 2), "count": np.int64(3)})
    program.save(tmp_path / "p.npz")
    assert program.meta == {"shape": [1, 2], "count": 3}
    assert Program.load(tmp_path / "p.npz") == program
    with pytest.raises(ProgramError, match="meta cannot be kept"):
        replace(program, meta={"machine": object()})


TEXT_FOR_A_NUMBER = '{"n_gpus": "2", "roles": [], "phases": [], "meta": {}, "format_version": 1}'


@pytest.mark.parametrize("header", ["[1]", "{}", TEXT_FOR_A_NUMBER])
def test_a_file_with_a_wrong_header_is_refused(tmp_path: Path, header: str) -> None:
    tables = dict(two_lane_program([]).tables())
    np.savez(tmp_path / "p.npz", header=np.array(header), **tables)  # type: ignore[arg-type]
    with pytest.raises(ProgramError):
        Program.load(tmp_path / "p.npz")
