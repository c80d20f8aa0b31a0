"""Every kernel compiles for every architecture, keeps its registers, and needs no file but its own text."""

import re
import sys

import pytest
from xstage.hw_validate.cuda.compile import ARCHITECTURES, KERNELS, CompileError, compile_kernel, kernel_text
from xstage.sim.errors import InputError

USUAL = "sm_90"
"""The architecture that `make test` compiles for; the others are for `make check`."""
SOURCES = sorted(path.name for path in KERNELS.glob("*.cu"))


@pytest.mark.parametrize(
    "architecture", [pytest.param(a, marks=[pytest.mark.slow] * (a != USUAL)) for a in ARCHITECTURES]
)
@pytest.mark.parametrize("source", SOURCES)
def test_a_kernel_compiles_without_stack_and_without_spills(source, architecture):
    pytest.importorskip("cuda.core", reason="cuda-core, which compiles for GPUs, is for Linux only")
    compiled = compile_kernel(source, architecture)
    assert compiled.cubin[:4] == b"\x7fELF"
    assert compiled.kernels
    assert not [line for line in compiled.log.splitlines() if "warning" in line]
    for name, needs in compiled.kernels.items():
        assert (needs.stack_bytes, needs.spill_bytes) == (0, 0), name
        assert 0 < needs.registers <= 255, name


def ptx_of(source):
    """The PTX of a kernel for sm_90, by lines."""
    nvrtc = pytest.importorskip("cuda.bindings.nvrtc", reason="cuda-core, which compiles for GPUs, is for Linux only")
    _, program = nvrtc.nvrtcCreateProgram(kernel_text(source).encode(), b"kernel.cu", 0, [], [])
    nvrtc.nvrtcCompileProgram(program, 2, [b"-arch=compute_90", b"-std=c++17"])
    _, size = nvrtc.nvrtcGetPTXSize(program)
    text = b" " * size
    nvrtc.nvrtcGetPTX(program, text)
    return text.decode().splitlines()


def loops_of(lines):
    """The lines between each label and each jump back to it."""
    labels = {line.strip()[:-1]: i for i, line in enumerate(lines) if line.startswith("$") and line.endswith(":")}
    jumps = [(i, match[1]) for i, line in enumerate(lines) if (match := re.search(r"\bbra\S* \t?(\$\w+);", line))]
    return [lines[labels[to] : i] for i, to in jumps if labels[to] < i]


def test_a_microbenchmark_reads_its_table_only_where_no_time_runs():
    """An acquire empties the L1: a field of the row read after it, before the second time, would add an access to L2."""
    lines = ptx_of("bursts.cu")
    loads = [i for i, line in enumerate(lines) if re.search(r"\bld\.global\.(v\d\.)?[usbf]\d", line)]
    assert loads
    assert not [line for line in lines[loads[0] : loads[-1]] if "%clock64" in line]


def test_a_wait_does_not_empty_the_l1_each_time_it_looks(tmp_path):
    """An acquire does; only the last look, after which something is read, may be one."""
    source = tmp_path / "waits.cu"
    source.write_text(
        '#include "device.cuh"\n'
        "struct P { xstage::u32 *flag, *out, *abort; };\n"
        "XSTAGE_KERNEL(waits, P, 32) {\n"
        "  using namespace xstage;\n"
        "  if (wait_acquire<GPU>(parameters.flag, 1, Watch{parameters.abort, 9})) parameters.out[0] = 1;\n"
        "}\n"
    )
    lines = ptx_of(source)
    assert any("ld.acquire.gpu" in line for line in lines)
    looping = [line for loop in loops_of(lines) for line in loop]
    assert any("ld.relaxed.gpu" in line for line in looping) and not any("ld.acquire" in line for line in looping)


def test_the_stores_of_a_microbenchmark_are_of_one_kind_whatever_their_width():
    stores = {match[0] for line in ptx_of("bursts.cu") if (match := re.search(r"\bst\.(volatile|global\.u\d+)", line))}
    assert {"st.global.u32", "st.global.u64"} <= stores and "st.volatile" not in stores


@pytest.mark.parametrize("source", ["bursts.cu", "replay.cu", "megamoe.cu"])
def test_signals_beyond_the_cta_are_additions_that_wait_for_nothing(source):
    """`red` to an address that may be shared memory becomes ATOM, whose result comes back; to a global one it is RED."""
    added = [match[1] for line in ptx_of(source) if (match := re.search(r"\b(red\.(?:relaxed|release)\.\S+)", line))]
    beyond = [one for one in added if ".cta" not in one]
    assert beyond and all(".global." in one for one in beyond)


def test_a_wait_for_loads_never_stands_still_in_one_instruction():
    """Between two looks it sees whether others gave up."""
    lines = ptx_of("replay.cu")
    assert any("mbarrier.test_wait" in line for line in lines)
    assert not any("mbarrier.try_wait" in line for line in lines)


def test_a_stack_is_seen_where_there_is_one(tmp_path):
    pytest.importorskip("cuda.core", reason="cuda-core, which compiles for GPUs, is for Linux only")
    source = tmp_path / "stack.cu"
    source.write_text(
        '#include "device.cuh"\n'
        "struct P { xstage::u32 *out, at; };\n"
        "XSTAGE_KERNEL(stack, P, 32) {\n"
        "  xstage::u32 many[64];\n"
        "  for (xstage::u32 i = 0; i < 64; ++i) many[i] = i * parameters.at;\n"
        "  many[parameters.at & 63] = 1;\n"
        "  for (xstage::u32 i = 0; i < 64; ++i) parameters.out[i] = many[(i * parameters.at) & 63];\n"
        "}\n"
    )
    assert compile_kernel(source, "sm_90a").kernels["stack"].stack_bytes >= 256


def test_the_message_of_the_compiler_names_file_and_line(tmp_path):
    pytest.importorskip("cuda.core", reason="cuda-core, which compiles for GPUs, is for Linux only")
    source = tmp_path / "broken.cu"
    source.write_text('#include "device.cuh"\nint x = "text";\n')
    with pytest.raises(CompileError, match=r"broken.cu\(2\): error"):
        compile_kernel(source, "sm_80")


def test_the_text_of_a_kernel_holds_each_header_once_and_those_of_the_host_only_for_the_host():
    text = kernel_text("replay.cu")
    assert text.count("namespace xstage {") == 7  # device, memory, copy, matrix; lane_tables, lane_claims, lanes
    assert "#include" not in text and "#pragma once" not in text
    assert "namespace xstage::emulation {" in kernel_text("replay.cu", emulation=True)


def test_an_unknown_kernel_is_refused_with_those_there_are():
    with pytest.raises(InputError, match=r"kernel = 'nothing.cu': no such source \(allowed: a path, or .*replay.cu"):
        kernel_text("nothing.cu")


def test_without_cuda_core_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "cuda.core", None)
    with pytest.raises(CompileError, match=r"pip install 'cuda-core\[cu12\]'"):
        compile_kernel("replay.cu", "sm_90a")
