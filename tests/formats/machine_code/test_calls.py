"""Calls and PLT stubs are recognized, compared with objdump and by hand-made encodings."""

import os
import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from sfsample.formats.elf.image import ElfImage
from sfsample.formats.machine_code.calls import call_target, calls_of, ends_in_call, longest_call, stub_slot
from sfsample.modules.module import Module

AMD64, AARCH64, S390X = 62, 183, 22
FIXTURES = Path(__file__).parents[2] / "fixtures"
STATIC = FIXTURES / "v3" / "target-static"
MACHINES = {AMD64: ("", ""), AARCH64: ("aarch64", "aarch64-linux-gnu-"), S390X: ("s390x", "s390x-linux-gnu-")}
CALL = re.compile(r"\s*([0-9a-f]+):\t([0-9a-f ]+)\t(?:call|bl|brasl?)\s+(?:%r14,)?([0-9a-f]+) <")
machines = pytest.mark.parametrize("machine", MACHINES)
INSTRUCTION = re.compile(r"\s*([0-9a-f]+):\t([0-9a-f ]+)\t(?:(?:bnd|notrack|rex\S*|data16|cs) )*(\S+)")


def test_ends_in_call_accepts_every_call_of_a_program_and_few_other_instructions():
    """At most one other instruction in 200 is taken for a call, in a static libc."""
    assert shutil.which("objdump"), "objdump is in binutils, which scripts/setup dev installs"
    text = subprocess.run(["objdump", "-d", "-w", STATIC], check=True, capture_output=True, text=True).stdout
    image = ElfImage(STATIC.read_bytes(), "target-static")
    size = longest_call(AMD64)
    seen: Counter[tuple[bool, bool]] = Counter()
    for address, code, mnemonic in INSTRUCTION.findall(text):
        end = int(address, 16) + len(code.split())
        before = image.loaded(end - size, size)
        if before is not None:
            is_call = mnemonic.startswith("call")
            seen[is_call, ends_in_call(AMD64, bytes(before))] += 1
    assert seen[True, True] > 4000
    assert seen[True, False] == 0
    assert seen[False, True] < seen[False, False] / 200


def disassembled(machine: int, program: str, *options: str) -> tuple[ElfImage, str]:
    """Return a fixture of a machine, and the output of that machine's objdump."""
    home, prefix = MACHINES[machine]
    objdump = f"{prefix}objdump" if os.uname().machine == "x86_64" else "objdump"
    if shutil.which(objdump) is None:
        pytest.skip(f"{objdump} is not installed")
    path = FIXTURES / home / "v3" / program
    done = subprocess.run([objdump, "-w", *options, path], capture_output=True, text=True, check=False)
    if "can't disassemble" in done.stderr:
        pytest.skip(f"this {objdump} knows its own machine only")
    return ElfImage(path.read_bytes(), program), done.stdout


@machines
def test_call_target_agrees_with_objdump_for_every_call(machine):
    image, text = disassembled(machine, "target-static", "-d")
    size, seen = longest_call(machine), 0
    for at, code, target in CALL.findall(text):
        end = int(at, 16) + len(code.replace(" ", "")) // 2
        assert call_target(machine, bytes(image.loaded(end - size, size)), end) == int(target, 16)
        seen += 1
    assert seen > 3000


@machines
def test_calls_of_finds_all_calls_that_objdump_shows(machine):
    """Tested with the 20 functions that are called most."""
    image, text = disassembled(machine, "target-static", "-d")
    seen: dict[int, set[int]] = {}
    for at, bytes_, target in CALL.findall(text):
        seen.setdefault(int(target, 16), set()).add(int(at, 16) + len(bytes_.replace(" ", "")) // 2)
    [(low, high)] = [(low, high) for low, high in image.executable if high - low > 1 << 16]
    code = bytes(image.loaded(low)[: high - low])
    for target in sorted(seen, key=lambda target: -len(seen[target]))[:20]:
        assert set(calls_of(machine, code, low, target)) == seen[target]


@machines
def test_module_knows_all_callers_of_functions_that_it_does_not_export(machine):
    image, text = disassembled(machine, "libcallee.so", "-d")
    starts = {name: int(at, 16) for at, name in re.findall(r"\n([0-9a-f]+) <(\w+)>:", text)}
    module, bias = Module(image, 0x10000, "libcallee.so"), 0x10000
    assert module.calls_of(bias + starts["callee_entry"]) == ()
    (call,) = module.calls_of(bias + starts["deregister_tm_clones"])
    assert starts["__do_global_dtors_aux"] < call - bias < starts["frame_dummy"]


@machines
def test_stub_slot_agrees_with_the_relocations_of_a_program(machine):
    image, code = disassembled(machine, "target", "-d")
    _, relocations = disassembled(machine, "target", "-R")
    slots = {name: int(at, 16) for at, name in re.findall(r"\n([0-9a-f]{16}) R_\w+ +(\w+)", relocations)}
    stubs = re.findall(r"\n([0-9a-f]+) <(\w+)@plt>:", code)
    assert len(stubs) > 5
    for at, name in stubs:
        start = int(at, 16)
        assert stub_slot(machine, bytes(image.loaded(start, 16)), start) == slots[name]


@machines
def test_indirect_calls_and_other_code_have_no_target(machine):
    other = {AMD64: "90 90 90 90 90 ff d0", AARCH64: "60 00 3f d6", S390X: "07 07 07 07 0d e1"}[machine]
    assert call_target(machine, bytes.fromhex(other), 0x1000) is None
    assert stub_slot(machine, bytes.fromhex(other).ljust(16, b"\0"), 0x1000) is None


@pytest.mark.parametrize(
    "code",
    [
        "e8 00000000",
        "ff d0",
        "41 ff d4",  # r12: the prefix is before
        "ff 10",
        "ff 14 24",
        "ff 15 00000000",  # relative to rip
        "ff 50 08",
        "ff 54 18 08",
        "ff 90 00010000",
        "ff 94 18 00010000",
        "ff 14 c5 00000000",  # a table without a base
        "3e ff d0",  # notrack
    ],
)
def test_amd64_ends_in_call(code):
    assert ends_in_call(AMD64, bytes.fromhex(code).rjust(7, b"\x90"))


@pytest.mark.parametrize(
    "code",
    [
        "e9 00000000",
        "ff e0",  # jmp *%rax
        "ff 25 00000000",  # jmp *x(%rip)
        "ff 30",  # push (%rax)
        "ff d0 90",
        "ff 15 000000",
        "ff 50",
        "ff 14 c5 000000",
        "0f 05",
        "c3",
        "",
    ],
)
def test_amd64_does_not_end_in_call(code):
    assert not ends_in_call(AMD64, bytes.fromhex(code).rjust(7, b"\x90"))


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        (0x94000010, True),  # bl
        (0x97FFFFFF, True),  # bl, backwards
        (0xD63F0060, True),  # blr x3
        (0xD63F081F, True),  # blraaz x0
        (0xD63F0C7F, True),  # blrabz x3
        (0xD73F0A11, True),  # blraa x16, x17
        (0xD73F0C41, True),  # blrab x2, x1
        (0x14000010, False),  # b
        (0xD61F0060, False),  # br x3
        (0xD65F03C0, False),  # ret
        (0xD503201F, False),  # nop
    ],
)
def test_aarch64_ends_in_call(word, expected):
    assert ends_in_call(AARCH64, word.to_bytes(longest_call(AARCH64), "little")) is expected


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("c0e5 00000010", True),  # brasl %r14
        ("0707 a7e5 0010", True),  # bras %r14
        ("0707 0707 0de1", True),  # basr %r14,%r1
        ("0707 0707 0de0", False),  # basr %r14,0: reads the pc, goes nowhere
        ("0707 0707 07fe", False),  # br %r14
        ("c0f4 00000010", False),  # jg
        ("0707 a7f4 0010", False),  # j
    ],
)
def test_s390x_ends_in_call(code, expected):
    assert ends_in_call(S390X, bytes.fromhex(code)) is expected


def test_calls_of_an_unknown_machine_have_no_length():
    assert longest_call(243) == 0


@pytest.mark.parametrize(
    ("machine", "code"), [(62, b"\x90" * 10 + b"\xe8\x00"), (22, bytes(10) + b"\xc0\xe5")]
)
def test_calls_of_skips_a_call_that_is_cut_off_at_the_end(machine, code):
    assert list(calls_of(machine, code, 0, 5)) == []
