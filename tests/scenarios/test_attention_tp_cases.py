"""Which attention and tensor-parallel case stands for which measured row, where a kernel's structure decides it."""

import pytest
from xstage.scenarios.published import load_published
from xstage.scenarios.published.cases import mapped

TABLE = load_published("attention_tp").reset_index()


def cases(**where):
    rows = TABLE
    for column, value in where.items():
        rows = rows[rows[column] == value]
    assert len(rows)
    return [mapped(row).case for row in rows.to_dict("records")]


def test_a_kernel_that_is_launched_otherwise_on_another_gpu_is_another_case():
    """FlashInfer pull request 5116: 20 x 1 CTAs beside copy engines on B200, 20 x 4 after a gather on B300."""
    [b200] = set(cases(family="flashinfer_ag_gemm", gpu="B200"))
    [b300] = set(cases(family="flashinfer_ag_gemm", gpu="B300"))
    assert (b200.policy.name, b200.shape.grid, b200.shape.block_n) == ("fused", 20, 64)
    assert (b300.policy.name, b300.shape.grid, b300.shape.block_n) == ("serial", 80, 64)


def test_a_kernel_that_fills_rows_up_to_whole_tiles_computes_them():
    shapes = {case.shape.m for case in cases(family="vllm_lamport", timed="kernel") if case}
    assert shapes == {128, 256}


def test_columns_of_one_rank_are_not_taken_for_those_of_all():
    """Kraken's benchmark of AllGather + GEMM has weights of K x N on every rank."""
    for case in cases(source_url="https://github.com/meta-pytorch/kraken/pull/2", family="torch", version="nccl"):
        assert case.shape.local_n == 6656


def test_sums_from_the_switch_stand_for_kernels_that_use_multimem():
    for family in ("vllm_cutedsl", "flagtree"):
        assert {case.shape.algorithm for case in cases(family=family)} == {"in_switch"}


@pytest.mark.parametrize("version, packs", [("ordinary_nccl", 4), ("whole_qkv_nvlink", 1), ("ordinary_nvlink", 0)])
def test_layouts_that_no_collective_makes_cost_kernels(version, packs):
    found = cases(family="flashinfer_ulysses", version=version)
    assert {case.packs for case in found} == {packs}
    assert all((case.bytes_packed > 0) == (packs > 0) for case in found)
