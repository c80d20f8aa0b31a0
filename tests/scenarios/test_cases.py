"""Which case stands for which measured row, and that no machine file knows a row that it is judged by."""

import re
from importlib.resources import files
from typing import get_args

import pytest
from xstage.scenarios import catalogue
from xstage.scenarios.machine_files import load_machine
from xstage.scenarios.published import load_published
from xstage.scenarios.published.cases import Reason, _kernel, _kernels, mapped
from xstage.scenarios.published.csv_lines import read_lines
from xstage.sim.schedules import megamoe

from xstage.predictions.machine_fit import free_numbers

TABLES = {kind: load_published(kind) for kind in ("megamoe", "attention_tp")}
ROWS = [row for table in TABLES.values() for row in table.reset_index().to_dict("records")]
MAPPED = [(row, mapped(row)) for row in ROWS]
MACHINES = sorted(entry.name for entry in catalogue.entries() if entry.kind == "machine")
FITTED = ("hgx-b200", "hgx-h200", "hgx-h20", "hgx-h100", "gb300")


def cases_of(family, version):
    found = [one.case for row, one in MAPPED if (row["family"], row["version"]) == (family, version)]
    assert found
    return found


def test_a_row_has_a_case_or_a_reason_of_the_list():
    for row, found in MAPPED:
        assert (found.case is None) == (found.skipped in get_args(Reason)), row
    assert {found.skipped for _, found in MAPPED if found.skipped} <= set(get_args(Reason))


def test_most_whole_kernels_of_deepgemm_have_a_case():
    whole = [found for row, found in MAPPED if row["family"] == "deepgemm" and row["timed"] == "kernel"]
    assert sum(found.case is not None for found in whole) / len(whole) >= 0.85


def test_every_kernel_is_named_and_every_line_is_the_first_for_some_row():
    timed = [row for row in ROWS if row["timed"] in ("kernel", "part")]
    timed += [line.cells for line in read_lines(files("xstage.scenarios.published").joinpath("own_variants.csv"))[1]]
    first = {id(_kernel(row["table"], row["family"], row["version"])) for row in timed}
    unused = [line.cells for line in _kernels() if id(line.cells) not in first]
    assert unused == []


@pytest.mark.parametrize(
    "timed, reason", [("end_to_end", "host time included"), ("communication_only", "part not modelled")]
)
def test_what_is_no_kernel_is_not_predicted(timed, reason):
    assert {found.skipped for row, found in MAPPED if row["timed"] == timed} == {reason}


def test_parts_that_a_run_has_are_predicted_and_others_are_not():
    parts = [(row, found) for row, found in MAPPED if row["timed"] == "part"]
    predicted = {(row["version"], row["part"]) for row, found in parts if found.case}
    assert predicted == {
        ("sm90_lag8_sgl88", "dispatch_pull_end"),
        ("sm90_lag40_sgl88", "dispatch_pull_end"),
        ("sm90_split", "l1_launch"),
        ("sm90_split", "l2_launch"),
        *(("sm90_wave_instrumented", part) for part in ("l1", "l2", "combine", "dispatch_pull")),
        *(("intranode", part) for part in ("l1_gemm", "swiglu", "l2_gemm")),
        *(("sm90_grouped_gemm", part) for part in ("l1_gemm", "l2_gemm")),
    }
    assert {found.skipped for _, found in parts if not found.case} == {"part not modelled"}
    [lag] = {found.case.call.policy.lag for row, found in parts if row["version"] == "sm90_lag8_sgl88"}
    assert lag == 8


def test_kernels_whose_source_shows_one_math_warpgroup_have_the_narrow_tile():
    narrow = {row["version"] for row, found in MAPPED if getattr(found.case, "tile", "") == "narrow"}
    assert narrow == {
        "sm90_wave",
        "sm90_wave_bm64_generic",
        "sm90_wave_combine_chunks2",
        "sm90_wave_split_a_sfa",
    }


def test_the_later_wave_kernel_has_its_tall_tile_where_the_mma_is_slow():
    tiles = {(row["gpu"], found.case.tile) for row, found in MAPPED if row.get("version") == "sm90_wave_sgl36"}
    assert tiles == {("H20", "by_rows")}
    both = {
        (row["gpu"], found.case.swap_ab, found.case.tile)
        for row, found in MAPPED
        if row.get("version") == "sm90_wave_sgl_dev"
    }
    assert both == {("H20", True, "wide"), ("H20", False, "by_rows"), ("H100", True, "wide"), ("H100", False, "wide")}
    said = {(row["gpu"], *found.approximations) for row, found in MAPPED if row.get("version") == "sm90_wave_sgl_dev"}
    assert said == {("H20",), ("H100", "tiles of 64 rows where the kernel has 128")}


def test_separate_kernels_have_the_grouped_gemm_of_their_dispatch():
    gemms = {
        (row["version"], found.case.policy.gemm, found.case.launches)
        for row, found in MAPPED
        if row["family"] == "deepep_deepgemm" and row["timed"] == "kernel"
    }
    assert gemms == {
        ("low_latency", "masked", 0),
        ("intranode", "psum", 2),
        ("normal", "contiguous", 5),
        ("high_throughput", "contiguous", 5),
    }


def test_a_gpu_without_a_machine_is_unknown():
    assert all(found.case is None for row, found in MAPPED if not row["machine"])
    assert any(found.skipped == "GPU unknown" for _, found in MAPPED)


def test_a_wave_kernel_has_the_shape_and_release_of_its_row():
    cases = cases_of("deepgemm", "sm100_wave_pr316")
    [case] = {case for case in cases if case.shape.tokens == 512 and case.shape.hidden == 4096}
    assert (case.shape.hidden, case.shape.intermediate, case.shape.experts, case.shape.topk) == (4096, 2048, 256, 6)
    assert (case.shape.numbers, case.shape.ranks, case.release) == ("w4a8", 8, "pr316")
    assert case.policy == megamoe.ExpertWave()


def test_two_launches_have_the_l1_tile_of_their_name_or_of_the_published_table():
    tiles = {
        version: {case.policy.l1_block_n for case in cases_of("deepgemm", version)}
        for version in ("sm90_split_l1bn512", "sm90_split_staged_nmajor", "sm90_split_selector_final")
    }
    assert tiles == {
        "sm90_split_l1bn512": {512},
        "sm90_split_staged_nmajor": {256},
        "sm90_split_selector_final": {None},
    }


def test_two_launches_have_a_schedule_of_their_own():
    for case in cases_of("deepgemm", "sm90_split_pr383"):
        assert case.policy == megamoe.Split(launch_gap_ps=0)  # the times of both kernels are added up
        assert case.launches == 0


def test_swapped_operands_follow_the_public_rules():
    tuned = cases_of("deepgemm", "sm90_split_pr383")
    assert all(case.swap_ab for case in tuned if case.shape.tokens <= 64)
    assert all(case.swap_ab == (case.shape.tokens <= 128) for case in tuned)
    assert all(case.swap_ab for case in cases_of("deepgemm", "sm90_wave_swapab_sgl48"))
    assert not any(case.swap_ab for case in cases_of("deepgemm", "sm90_wave_sgl36"))


def test_what_is_taken_as_something_else_is_said():
    said = {found.approximations for row, found in MAPPED if row.get("version") == "sm90_nvfp4_final_bn128_split"}
    assert said == {("tiles of 64 x 256 taken",)}


def test_nvfp4_weights_are_unpacked_to_meet_fp8_activations():
    rows = [row for row, _ in MAPPED if row.get("weight_dtype") == "nvfp4" and row["act_dtype"] == "fp8_e4m3"]
    assert {mapped(row).case.shape.numbers for row in rows} == {"w4a8"}


def test_an_unknown_variant_is_flagged():
    known = next(row for row in ROWS if row["version"] == "sm100_wave")
    found = mapped({**known, "nearest_variant": "megamoe_sm100_wave"})
    assert found.approximations[-1] == "unknown variant, megamoe_sm100_wave taken"


def test_attention_alone_runs_the_heads_of_one_rank():
    [case] = {case for case in cases_of("fa3", "xstage") if case.shape.tokens == 8192}
    assert (case.shape.heads, case.shape.ranks, case.policy.name) == (4, 1, "compute_only")


# --- what machines may know


@pytest.mark.parametrize("name", FITTED)
def test_free_numbers_are_few_and_belong_to_the_machine(name):
    numbers = free_numbers(name)
    assert 0 < len(numbers) <= 6
    known = dict(load_machine(name).numbers())
    assert {number.name for number in numbers} <= set(known)
    assert any(row["fit"] and row["machine"] == name and found.case for row, found in MAPPED)


def sources(name):
    return [(path, number.source) for path, number in load_machine(name).numbers()]


@pytest.mark.parametrize("name", MACHINES)
def test_no_judged_time_or_rate_appears_in_a_machine_file(name):
    """Three digits may agree by chance, four do not."""
    fitted = {value for row in ROWS if row["fit"] for value in _published_numbers(row)}
    judged = {value for row, found in MAPPED if found.case and not row["fit"] for value in _published_numbers(row)}
    for path, source in sources(name):
        said = {text for text in _times_and_rates(source) if len(text.replace(".", "").strip("0")) >= 4}
        assert not (said & judged) - fitted, (path, source)


@pytest.mark.parametrize("name", FITTED)
def test_a_number_fitted_by_the_command_says_so_and_has_an_interval(name):
    """The fits of attention are older than the command; it finds their values again (a slow test)."""
    numbers = dict(load_machine(name).numbers())
    for free in free_numbers(name):
        if "attention" not in free.name:
            assert f"xstage published --fit {name}" in numbers[free.name].source
            assert numbers[free.name].interval is not None


def _times_and_rates(text):
    """Numbers before 'us' or 'TFLOPS', also where two share the unit: '195.2 and 13249.4 us'."""
    units = r"(?:us|TFLOPS)\b"
    return re.findall(rf"(\d+(?:\.\d+)?)(?= {units}| and \d+(?:\.\d+)? {units})", text)


def _published_numbers(row):
    return {f"{row[name]:g}" for name in ("time_us", "tflops") if row[name] == row[name] and row[name] is not None}
