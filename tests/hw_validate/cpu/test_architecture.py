"""Which processors are known, and that each gets stores that pass its caches."""

import pytest
from llvmlite import binding, ir
from xstage.hw_validate.cpu.architecture import UnsupportedProcessorError, detect
from xstage.sim.errors import XstageError


@pytest.mark.parametrize(
    "machine, flags, instruction, bits",
    [
        ("x86_64", {"avx512f": True, "avx": True}, "vmovntps zmm", 512),
        ("AMD64", {"avx512f": False, "avx": True}, "vmovntps ymm", 256),
        ("x86_64", {"avx": False}, "movntps xmm", 128),
        ("x86_64", {}, "movntps xmm", 128),
        ("aarch64", {}, "stnp", 256),
        ("arm64", {}, "stnp", 256),
    ],
)
def test_known_processors(machine, flags, instruction, bits):
    found = detect(machine, flags, pointer_bits=64)
    assert (found.store_instruction, found.store_bits) == (instruction, bits)


@pytest.mark.parametrize("machine", ["riscv64", "ppc64le", "s390x", "i686", "armv7l", ""])
def test_other_processors_are_refused_by_name(machine):
    with pytest.raises(UnsupportedProcessorError, match=machine or "nameless") as error:
        detect(machine, {}, pointer_bits=64)
    assert "x86-64, Arm64" in str(error.value)
    assert isinstance(error.value, XstageError)


def test_a_32_bit_python_is_refused():
    with pytest.raises(UnsupportedProcessorError, match="32 bits"):
        detect("x86_64", {}, pointer_bits=32)


@pytest.mark.parametrize(
    "machine, flags, triple, features, expected",
    [
        ("x86_64", {"avx512f": True}, "x86_64-unknown-linux-gnu", "+avx512f", ["vmovntps\t%zmm"]),
        ("x86_64", {"avx": True}, "x86_64-unknown-linux-gnu", "+avx", ["vmovntps\t%ymm", "vmovntps\t%ymm"]),
        ("x86_64", {}, "x86_64-unknown-linux-gnu", "", ["movntps\t%xmm"] * 4),
        ("aarch64", {}, "aarch64-unknown-linux-gnu", "", ["stnp\tq", "stnp\tq"]),
    ],
)
def test_a_line_is_stored_by_the_instruction_named(machine, flags, triple, features, expected):
    try:
        from xstage.hw_validate.cpu.lane import build_line_store
    except UnsupportedProcessorError as refusal:
        pytest.skip(str(refusal))

    module = ir.Module()
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [ir.IntType(64)]), "line")
    builder = ir.IRBuilder(function.append_basic_block())
    build_line_store(builder, function.args[0], detect(machine, flags, 64).store_bits, nontemporal=True)
    builder.ret_void()
    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
    target = binding.Target.from_triple(triple).create_target_machine(features=features)
    assembly = target.emit_assembly(binding.parse_assembly(str(module)))
    stores = [line.strip() for line in assembly.splitlines() if "movnt" in line or "stnp" in line]
    assert len(stores) == len(expected)
    assert all(line.startswith(start) for line, start in zip(stores, expected, strict=True))
