"""Facts about the published measurements: nothing is lost, every cell means something, one's own tables are read alike."""

import csv
import json
from importlib.resources import files
from typing import get_args, get_type_hints

import pandas as pd
import pytest
from xstage.scenarios.machine_files import load_machine
from xstage.scenarios.published import load_like, load_links, load_published
from xstage.scenarios.published.clean import MORE_COLUMNS, RAW_COLUMNS, SHAPE_KEYS
from xstage.scenarios.published.csv_lines import read_lines
from xstage.scenarios.published.mapping import variant_named
from xstage.scenarios.published.schema import COLUMNS, LINK_COLUMNS, names, repeat_key
from xstage.scenarios.published.sources import all_addresses, prefix_of, sources_page
from xstage.sim.errors import InputError
from xstage.sim.schedules import attention_a2a, megamoe, tensor_parallel

FOLDER = files("xstage.scenarios.published")
KINDS = ("megamoe", "attention_tp")
COLLECTED = {"megamoe": 865, "attention_tp": 723}
"""Rows that were written down from the sources; each is in its table or in dropped.csv."""


def lines_of(name):
    return [line.cells for line in read_lines(FOLDER.joinpath(name))[1]]


@pytest.fixture(scope="module", params=KINDS)
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def table(kind):
    return load_published(kind)


# --- what the tables hold


def test_no_row_is_lost(kind, table):
    dropped = [line for line in lines_of("dropped.csv") if line["table"] == kind]
    assert len(table) + len(dropped) == COLLECTED[kind]
    assert all(line["reason"] for line in dropped)


def test_columns_have_the_types_of_the_schema(kind, table):
    assert tuple(table.columns) == ("table", *names(COLUMNS[kind]))
    types = {"text": "object", "count": "Int64", "number": "float64"}
    for column in COLUMNS[kind]:
        expected = types.get(column.kind, "bool" if column.required else "boolean")
        assert table[column.name].dtype == expected, column.name


def test_every_gpu_and_machine_is_known(table):
    gpus = {(line["gpu"], line["machine"]) for line in lines_of("gpus.csv")}
    assert set(zip(table.gpu, table.machine, strict=True)) <= gpus
    for machine in set(table.machine) - {""}:
        assert load_machine(machine).name == machine


def test_every_variant_is_used_and_every_row_has_one(kind, table):
    lines = [line for line in lines_of("variants.csv") if line["table"] == kind]
    listed = {line["variant"] for line in lines}
    dropped = {line["variant"] for line in lines_of("dropped.csv")}
    assert listed == set(table.variant) | (dropped & listed)
    assert (table.nearest_variant == "").all()
    assert len({(line["operation"], line["variant"]) for line in lines}) == len(lines)


def test_times_are_those_of_gpu_kernels(table):
    """A launch alone takes some us, and no operation here a tenth of a second; parts may be shorter."""
    kernels = table[table.timed.isin(["kernel", "communication_only"])]
    assert kernels.time_us.between(10, 100_000).all()
    assert table[table.timed == "part"].time_us.between(0.5, 100_000).all()


def test_pipelines_with_gemms_are_not_communication():
    table = load_published("megamoe")
    assert set(table[table.timed == "communication_only"].part) == {"dispatch", "combine"}
    unfused = table[(table.policy == "unfused") & (table.part == "")]
    assert set(unfused.timed) == {"kernel"}
    assert len(unfused) == 109


def test_whole_layers_and_models_are_not_kernels():
    table = load_published("attention_tp")
    of_a_model = (table.layer != "") | (table.model != "")
    assert set(table[of_a_model].timed) == {"end_to_end"}
    assert not (table[~of_a_model].timed == "end_to_end").any()


def test_published_megamoe_flops_follow_from_the_times():
    """6 R H I in the time, R = T k rows a rank (DeepGEMM pull 316)."""
    table = load_published("megamoe")
    rows = table[table.source_url == "https://github.com/deepseek-ai/DeepGEMM/pull/316"]
    flops = 6 * rows.tokens_per_rank * rows.topk * rows.hidden * rows.intermediate
    assert len(rows) == 8
    assert (flops / rows.time_us / 1e6).tolist() == pytest.approx(rows.tflops.tolist(), abs=1)


def test_published_attention_flops_follow_from_the_times():
    """4 B H S^2 d in the time, half of it under a causal mask; rates of three digits, times of two in most sources."""
    table = load_published("attention_tp")
    rows = table[(table.operation == "fa") & table.tflops.notna()]
    flops = 4.0 * rows.batch * rows.seq**2 * rows.heads * rows.head_dim / rows.n_gpus
    rate = flops / (1 + rows.causal.astype(int)) / rows.time_us / 1e6
    assert len(rows) == 383
    assert ((rate / rows.tflops - 1).abs() < 0.045).mean() > 0.98
    assert ((rate / rows.tflops - 1).abs() < 0.11).all()


def test_a_time_that_its_source_rounds_to_two_digits_is_that_of_the_rate():
    """FlashAttention pull 2605 prints 0.17 ms beside 829 TFLOPS, which is 165.8 us."""
    table = load_published("attention_tp")
    rows = table[table.source_url == "https://github.com/Dao-AILab/flash-attention/pull/2605"]
    flops = 4.0 * rows.batch * rows.seq**2 * rows.heads * rows.head_dim / (1 + rows.causal.astype(int))
    assert (flops / rows.time_us / 1e6).tolist() == pytest.approx(rows.tflops.tolist(), rel=1e-4)
    assert rows.inferred.str.contains("time_us").all()
    assert 165.79 in rows[rows.tflops == 829].time_us.tolist()


def test_a_repeated_measurement_has_a_number(kind, table):
    key = [*repeat_key(kind)]
    counted = table.groupby(key, dropna=False, sort=False).cumcount() + 1
    assert (table.repeat == counted).all()
    assert (table.repeat > 1).any()


def test_fitted_rows_are_of_at_most_two_shapes_a_machine_and_kind_of_kernel():
    """The burst of the X-Stage paper is no shape: it gives R, Q and T_iss0."""
    shapes = {}
    for kind in KINDS:
        table = load_published(kind)
        sizes = [column for column in ("hidden", "tokens_per_rank", "seq", "head_dim") if column in table]
        for row in table[table.fit & (table.family != "xstage")].itertuples():
            shapes.setdefault((row.machine, kind), set()).add(tuple(getattr(row, size) for size in sizes))
    assert {machine for machine, _ in shapes} == {
        "hgx-h100",
        "xstage-hopper",
        "hgx-h200",
        "hgx-h20",
        "hgx-b200",
        "gb300",
    }
    assert max(len(of_machine) for of_machine in shapes.values()) == 2


def test_every_line_of_fit_csv_is_a_row():
    for line in lines_of("fit.csv"):
        table = load_published(line["table"])
        rows = table[table.fit & (table.source_url == line["source_url"])]
        assert len(rows[rows.variant == line["variant"]] if line["variant"] else rows) > 0
        assert line["used_for"]


def test_columns_that_no_source_states_are_named(kind, table):
    for inferred in set(";".join(table.inferred).split(";")) - {""}:
        assert inferred in names(COLUMNS[kind])
    for gpu in [line for line in lines_of("gpus.csv") if line["assumed"] == "yes"]:
        assert table[table.gpu_as_written == gpu["as_written"]].inferred.str.contains("gpu").all()


def test_sources_md_is_what_the_tables_say():
    assert FOLDER.joinpath("SOURCES.md").read_text(encoding="utf-8") == sources_page()


def test_every_address_belongs_to_one_source_and_every_source_is_used():
    prefixes = [line["prefix"] for line in lines_of("sources.csv")]
    used = {prefix_of(address, prefixes) for addresses in all_addresses().values() for address in addresses}
    assert used == set(prefixes)


def test_links_are_typed_and_have_a_rate_or_a_time():
    links = load_links()
    assert tuple(links.columns) == names(LINK_COLUMNS)
    assert (links.rate_gbs.notna() ^ links.time_ns.notna()).all()
    assert links.rate_gbs.dropna().between(20, 1000).all()


# --- tables of one's own


def as_written(kind, table):
    """The rows in the columns in which they are written down."""
    called = {"ranks": "n_gpus", "gpu": "gpu_as_written", "notes": "note", "kind": "operation"}
    table = table.astype(object).where(table.notna(), "")
    raw = {
        column: table[called.get(column, column)]
        for column in (*RAW_COLUMNS[kind], *MORE_COLUMNS[kind])
        if column not in ("shape", "scope")
    }
    if kind == "attention_tp":
        keys = {column: key for key, column in reversed(SHAPE_KEYS.items())}
        raw["shape"] = [
            json.dumps({key: row[column] for column, key in keys.items() if row[column] != ""})
            for _, row in table.iterrows()
        ]
    return pd.DataFrame(raw)


def test_the_tables_are_what_the_mapping_makes_of_their_rows(kind, table, tmp_path):
    file = tmp_path / "mine.csv"
    as_written(kind, table).to_csv(file, index=False)
    pd.testing.assert_frame_equal(load_like(file).reset_index(drop=True), table.reset_index(drop=True))


def row_of(columns, cells):
    return dict(zip(columns, cells.split(), strict=True))


MEGAMOE = row_of(
    RAW_COLUMNS["megamoe"],
    "mine H100-SXM 8.0 4096 2048 288 8 0.25 fp8_e4m3 fp8_e4m3 bf16 megamoe_sm90_fused_lag_ring 3565.1",
)
ATTENTION = row_of(
    RAW_COLUMNS["attention_tp"], 'mine fa H100 1 {"b":4,"s":8192,"h":16,"d":128,"causal":true} bf16 fa3 500'
)


@pytest.fixture
def own(tmp_path):
    def write(row, **changes):
        file = tmp_path / "mine.csv"
        cells = {name: text for name, text in {**row, **changes}.items() if text is not None}
        with file.open("w", encoding="utf-8", newline="") as stream:
            writer = csv.DictWriter(stream, cells)
            writer.writeheader()
            writer.writerow(cells)
        return file

    return write


def test_a_row_of_ones_own_has_the_columns_of_the_published_ones(own):
    [row] = load_like(own(MEGAMOE)).to_dict("records")
    assert (row["table"], row["family"], row["policy"], row["timed"]) == ("megamoe", "deepgemm", "lag", "kernel")
    assert (row["machine"], row["n_gpus"], row["tokens_per_rank"], row["fit"]) == ("hgx-h100", 8, 0.25, False)
    [row] = load_like(own(ATTENTION)).to_dict("records")
    assert (row["table"], row["seq"], row["causal"], row["policy"]) == ("attention_tp", 8192, True, "compute_only")


@pytest.mark.parametrize(
    "row, variant, nearest, policy",
    [
        (MEGAMOE, "megamoe_sm90_fused_lag_v3", "megamoe_sm90_fused_lag_ring", "lag"),
        (MEGAMOE, "deepep+triton_gemm_unfused", "deepep+grouped_gemm_unfused", "unfused"),
        (ATTENTION | {"gpu": "B200"}, "fa4 nightly", "fa4 (run A)", "compute_only"),
        (ATTENTION, "fa4 nightly", "X-Stage FA3 only", "compute_only"),  # the published FA4 is that of SM100
    ],
)
def test_an_unknown_variant_is_taken_for_the_nearest_one_and_flagged(own, row, variant, nearest, policy):
    [read] = load_like(own(row, variant=variant)).to_dict("records")
    assert (read["nearest_variant"], read["policy"], read["variant"]) == (nearest, policy, variant)


@pytest.mark.parametrize(
    "gpu, variant, nearest",
    [
        ("H100", "wave", "megamoe_sm90_fused_wave"),
        ("B200", "wave", "megamoe_sm100_wave"),
        ("H100", "DeepEP + DeepGEMM", "deepep+grouped_gemm_unfused"),
        ("H20", "deepep low latency + masked gemm", "deepep_ll+masked_gemm_unfused"),
        ("B200", "DeepEP + DeepGEMM", "deepep+grouped_gemm_unfused on sm100"),
        ("B300", "deepep low latency + masked gemm", "deepep_ll+masked_gemm_unfused on sm100"),
        ("B200", "unfused baseline", "deepep+grouped_gemm_unfused on sm100"),
        ("A100", "MegaMoE fused", "megamoe_sm90_fused_wave"),  # no fused kernel is of its generation
        ("H200", "deepep dispatch", "deepep_unfused_stage_dispatch"),
        ("H20", "megamoe_sm90_nvfp4_baseline_v2", "megamoe_sm90_nvfp4_baseline_BN128-split"),
    ],
)
def test_the_nearest_variant_is_of_the_gpus_generation_and_unfused_where_the_name_says_so(own, gpu, variant, nearest):
    """`deepgemm` alone is a word of fused kernels too; a part is taken only where the name says which."""
    assert load_like(own(MEGAMOE, gpu=gpu, variant=variant)).nearest_variant.tolist() == [nearest]


@pytest.mark.parametrize("gpu, name", [("H100", "unfused"), ("B200", "expert_wave"), ("B200", "Interleaved-ready")])
def test_the_name_of_a_policy_means_that_policy(own, gpu, name):
    [row] = load_like(own(MEGAMOE, gpu=gpu, variant=name)).to_dict("records")
    known = ("policy", name.lower().replace("-", "_"), "")
    assert (row["family"], row["policy"], row["nearest_variant"]) == known


def test_every_policy_can_be_named(own):
    """Of each operation, all that the schedules know."""
    of_gemms = get_args(get_type_hints(tensor_parallel.Policy)["name"])
    known = {
        ("megamoe", ""): (*megamoe.POLICIES, "interleaved_ready"),
        ("attention_tp", "ulysses_a2a"): get_args(get_type_hints(attention_a2a.Policy)["name"]),
        **{("attention_tp", operation): of_gemms for operation in ("gemm_rs", "ag_gemm", "gemm_ar")},
    }
    for (kind, operation), policies in known.items():
        assert len(policies) >= 5
        for policy in policies:
            line, nearest = variant_named(kind, operation, policy)
            assert (line["family"], line["policy"], nearest) == ("policy", policy, "")


def test_the_baseline_of_a_gemm_is_two_kernels(own):
    [read] = load_like(own(ATTENTION, kind="gemm_rs", variant="baseline")).to_dict("records")
    assert read["policy"] == "serial"


def test_the_scope_of_an_unknown_variant_is_believed(own):
    known, unknown = MEGAMOE["variant"], "megamoe_sm90_fused_lag_v3"
    assert load_like(own(MEGAMOE, variant=unknown, scope="part")).timed.tolist() == ["part"]
    assert load_like(own(MEGAMOE, variant=known, scope="part")).timed.tolist() == ["kernel"]


@pytest.mark.parametrize(
    "gpu, name, machine, inferred",
    [
        ("NVIDIA H100 80GB HBM3", "H100", "hgx-h100", "gpu"),
        ("NVIDIA GB200 NVL72", "GB200", "gb200-nvl72", "gpu"),
        ("NVIDIA H100 PCIe", "H100 PCIe", "", "gpu"),
        ("RTX 4090", "RTX 4090", "", ""),
    ],
)
def test_an_unknown_gpu_is_what_its_name_holds_or_has_no_machine(own, gpu, name, machine, inferred):
    [row] = load_like(own(MEGAMOE, gpu=gpu)).to_dict("records")
    assert (row["gpu"], row["machine"], row["inferred"]) == (name, machine, inferred)


@pytest.mark.parametrize(
    "row, changes, message",
    [
        (MEGAMOE, {"time_us": "0"}, "mine.csv:2: time_us = '0': is not acceptable (allowed: a number above 0)"),
        (
            MEGAMOE,
            {"ranks": "eight"},
            "mine.csv:2: ranks = 'eight': is not acceptable (allowed: a whole number above 0)",
        ),
        (MEGAMOE, {"hidden": ""}, "mine.csv:2: hidden: is empty (allowed: a whole number above 0)"),
        (MEGAMOE, {"topk": None}, "mine.csv:1: topk: is no column of the file (allowed: source_url, gpu, ranks,"),
        (
            ATTENTION,
            {"kind": "gem_rs"},
            "mine.csv:2: kind = 'gem_rs': is not known; did you mean 'gemm_rs'? (allowed: fa,",
        ),
        (ATTENTION, {"shape": "b=4"}, "mine.csv:2: shape = 'b=4': is not JSON"),
        (ATTENTION, {"shape": '{"bs": 4}'}, "mine.csv:2: shape.bs: is no key of a shape (allowed: b, s, h,"),
        (ATTENTION, {"shape": '{"b": 4.5}'}, "mine.csv:2: shape.b = '4.5': is not acceptable"),
    ],
)
def test_a_bad_cell_is_named_with_file_line_column_and_value(own, row, changes, message):
    with pytest.raises(InputError) as caught:
        load_like(own(row, **changes))
    assert message in str(caught.value)


def test_a_file_that_is_no_table_is_refused(tmp_path):
    file = tmp_path / "mine.csv"
    for content, reason in ((b"", "is empty"), (b"a,b\n1\n", "has 1 cells, the header 2"), (b"a,a\n", "stands twice")):
        file.write_bytes(content)
        with pytest.raises(InputError, match=reason):
            load_like(file)
    with pytest.raises(InputError, match="no such file"):
        load_like(tmp_path / "none.csv")
    with pytest.raises(InputError, match="is no table of measurements"):
        load_published("links")
