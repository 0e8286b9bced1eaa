"""Every CFI row of real libraries is that of `readelf --debug-dump=frames-interp`.

The differences of readelf's output (binutils 2.40):

* An FDE whose program is only DW_CFA_nop has no rows; its only row is that of the CIE, which is compared.
* "u" is a register that is undefined, or one that has no rule.  The raw dump (`--debug-dump=frames`) names
the
  registers of DW_CFA_undefined, which are compared.
* "exp" and "vexp" hide the expression; the operations in the raw dump are compared.
* It follows .gnu_debuglink into files whose .eh_frame is empty, and then warns: `no-follow-links`.
"""

import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import NamedTuple

import pytest
from elftools.elf.elffile import ELFFile

from sfsample.core.rule import CFA, Rule
from sfsample.formats.dwarf.cfi import CfiRow
from sfsample.formats.dwarf.eh_frame import EhFrame, Fde, eh_frame_address
from tests.builders.installed import library

LIBRARIES = ("libc.so.6", "ld-linux-x86-64.so.2", "libstdc++.so.6")
AMD64_REGISTERS = ("rax", "rdx", "rcx", "rbx", "rsi", "rdi", "rbp", "rsp",
                   *(f"r{n}" for n in range(8, 16)), "rip", *(f"xmm{n}" for n in range(16)))  # fmt: skip

ENTRY = re.compile(
    r"^(?P<offset>[0-9a-f]+) [0-9a-f]+ [0-9a-f]+ "
    r"(?:CIE|FDE cie=(?P<cie>[0-9a-f]+) pc=(?P<start>[0-9a-f]+)\.\.(?P<end>[0-9a-f]+))"
)
CELL = re.compile(r"\S+(?: \(\w+\))?")


def subjects() -> list[object]:
    """Return the system's Python, and as extended the one that runs the tests and its shared library."""
    pythons = [os.path.realpath("/usr/bin/python3"), os.path.realpath(sys.executable)]
    shared = Path(sysconfig.get_config_var("LIBDIR") or "", sysconfig.get_config_var("INSTSONAME") or "")
    if shared.is_file() and ".so" in shared.name:
        pythons.append(os.path.realpath(shared))
    first, *others = dict.fromkeys(pythons)
    return [first, *(pytest.param(path, marks=pytest.mark.extended) for path in others)]


class Entry(NamedTuple):
    """A CIE or FDE in an output of readelf."""

    offset: int
    cie: int | None  # None for a CIE
    start: int
    end: int
    lines: list[str]


def readelf_entries(path: str, mode: str) -> dict[int, Entry]:
    """Split readelf's dump of .eh_frame (and nothing else: there may be a .debug_frame) into entries."""
    text = subprocess.run(
        ["readelf", f"--debug-dump={mode},no-follow-links", path],
        env={**os.environ, "LC_ALL": "C"}, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    _, _, text = text.partition("Contents of the .eh_frame section")
    text, _, _ = text.partition("\nContents of the ")
    entries: dict[int, Entry] = {}
    lines: list[str] = []
    for line in text.splitlines():
        found = ENTRY.match(line)
        if found:
            offset, cie, start, end = (None if v is None else int(v, 16) for v in found.groups())
            lines = []
            entries[offset] = Entry(offset, cie, start or 0, end or 0, lines)
        elif line.strip():
            lines.append(line)
    return entries


def registers_of(header: str) -> list[str]:
    names = header.split()
    assert names[:2] == ["LOC", "CFA"]
    return names[2:]


def readelf_rows(entry: Entry) -> list[tuple[int, str, dict[str, str]]]:
    """Return (location, CFA, register -> rule) as text, without the registers that say "u"."""
    if not entry.lines or "LOC" not in entry.lines[0]:
        return []
    names = registers_of(entry.lines[0])
    rows = []
    for line in entry.lines[1:]:
        if "ZERO terminator" in line:
            break
        location, cfa, *cells = CELL.findall(line)
        shown = dict(zip(names, cells, strict=True))
        rows.append((int(location, 16), cfa, {n: r for n, r in shown.items() if r != "u"}))
    return rows


def register_name(number: int) -> str:
    return AMD64_REGISTERS[number] if number < len(AMD64_REGISTERS) else f"r{number}"


def rule_text(number: int, rule: Rule) -> str:
    if rule.expression:
        return "exp" if rule.deref else "vexp"
    if rule.base == CFA:
        return f"{'c' if rule.deref else 'v'}{rule.offset:+d}"
    return "s" if rule.base == number else f"r{rule.base} ({register_name(rule.base)})"


def as_shown(row: CfiRow) -> tuple[str, dict[str, str]]:
    cfa = "exp" if row.cfa.expression else f"{register_name(row.cfa.base)}{row.cfa.offset:+d}"
    rules = {
        "ra" if number == row.ra_register else register_name(number): rule_text(number, rule)
        for number, rule in row.rules.items()
        if rule is not None
    }
    return cfa, rules


OPERATION_NAMES = {
    0x06: "DW_OP_deref",
    0x13: "DW_OP_drop",
    0x1A: "DW_OP_and",
    0x1C: "DW_OP_minus",
    0x1E: "DW_OP_mul",
    0x22: "DW_OP_plus",
    0x24: "DW_OP_shl",
    0x2A: "DW_OP_ge",
}


def leb128(data: bytes, pos: int, signed: bool) -> tuple[int, int]:
    """Decode LEB128; not with the reader that is tested."""
    end = next(i for i in range(pos, len(data)) if data[i] < 0x80) + 1
    groups = "".join(f"{byte & 0x7F:07b}" for byte in reversed(data[pos:end]))
    value = int(groups, 2)
    return value - (1 << len(groups) if signed and groups[0] == "1" else 0), end


def expression_text(code: bytes) -> str:
    """Spell an expression as readelf does; an operation that no library has used so far fails the test."""
    pos, out = 0, []
    while pos < len(code):
        opcode, pos = code[pos], pos + 1
        if 0x30 <= opcode <= 0x4F:
            out.append(f"DW_OP_lit{opcode - 0x30}")
        elif 0x70 <= opcode <= 0x8F:
            offset, pos = leb128(code, pos, signed=True)
            out.append(f"DW_OP_breg{opcode - 0x70} ({register_name(opcode - 0x70)}): {offset}")
        elif opcode == 0x23:
            value, pos = leb128(code, pos, signed=False)
            out.append(f"DW_OP_plus_uconst: {value}")
        elif opcode == 0x0D:
            operand, pos = code[pos : pos + 4], pos + 4
            out.append(f"DW_OP_const4s: {int.from_bytes(operand, 'little', signed=True)}")
        else:
            out.append(OPERATION_NAMES[opcode])
    return "; ".join(out)


class Hidden(NamedTuple):
    """What only the raw dump shows."""

    cfa_expressions: set[str]
    expressions: set[tuple[str, str]]  # register, operations
    undefined: set[str]


def hidden_in_raw(*entries: Entry) -> Hidden:
    hidden = Hidden(set(), set(), set())
    for line in (line.strip() for entry in entries for line in entry.lines):
        if found := re.fullmatch(r"DW_CFA_def_cfa_expression \((.*)\)", line):
            hidden.cfa_expressions.add(found[1])
        elif found := re.fullmatch(r"DW_CFA_(?:val_)?expression: r(\d+) \(\w+\) \((.*)\)", line):
            hidden.expressions.add((found[1], found[2]))
        elif found := re.fullmatch(r"DW_CFA_undefined: r(\d+) \(\w+\)", line):
            hidden.undefined.add(found[1])
    return hidden


def hidden_in_rows(rows: list[tuple[int, CfiRow]]) -> Hidden:
    hidden = Hidden(set(), set(), set())
    for _, row in rows:
        if row.cfa.expression:
            hidden.cfa_expressions.add(expression_text(row.cfa.expression))
        for number, rule in row.rules.items():
            if rule is None:
                hidden.undefined.add(str(number))
            elif rule.expression:
                hidden.expressions.add((str(number), expression_text(rule.expression)))
    return hidden


def section(path: str, name: str) -> tuple[bytes, int]:
    with Path(path).open("rb") as file:
        found = ELFFile(file).get_section_by_name(name)
        assert found is not None, f"{path} has no {name}"
        return found.data(), found["sh_addr"]


def as_loaded(path: str) -> EhFrame:
    """Build from program headers alone, as in a process: `.eh_frame` is the rest of its segment."""
    with Path(path).open("rb") as file:
        segments = list(ELFFile(file).iter_segments())
        hdr = next(s for s in segments if s["p_type"] == "PT_GNU_EH_FRAME")
        vaddr = eh_frame_address(hdr.data(), hdr["p_vaddr"], "little")
        load = next(
            s for s in segments
            if s["p_type"] == "PT_LOAD" and 0 <= vaddr - s["p_vaddr"] < s["p_filesz"]
        )  # fmt: skip
        return EhFrame(load.data()[vaddr - load["p_vaddr"] :], vaddr, "little", hdr.data(), hdr["p_vaddr"])


def compare_fde(eh_frame: EhFrame, fde: Fde, interpreted: dict[int, Entry], raw: dict[int, Entry]) -> None:
    entry = interpreted[fde.offset]
    assert (fde.start, fde.start + fde.size, fde.cie.offset) == (entry.start, entry.end, entry.cie)
    expected = readelf_rows(entry)
    if not expected:  # only nops: the CIE's row
        [(_, cfa, rules)] = readelf_rows(interpreted[fde.cie.offset])
        expected = [(fde.start, cfa, rules)]
    rows = list(eh_frame.rows(fde))

    assert [(location, *as_shown(row)) for location, row in rows] == expected
    assert hidden_in_rows(rows) == hidden_in_raw(raw[fde.cie.offset], raw[fde.offset])


def compare(path: str) -> None:
    data, vaddr = section(path, ".eh_frame")
    eh_frame = EhFrame(data, vaddr, "little")
    interpreted, raw = readelf_entries(path, "frames-interp"), readelf_entries(path, "frames")
    compared = 0
    for fde in eh_frame.fdes():
        compare_fde(eh_frame, fde, interpreted, raw)
        compared += 1

    assert compared == sum(entry.cie is not None for entry in interpreted.values())
    assert compared > 0


def compare_table_with_walk(path: str) -> None:
    data, vaddr = section(path, ".eh_frame")
    by_walk, by_table = EhFrame(data, vaddr, "little"), as_loaded(path)
    assert by_table._table is not None
    compared = 0
    for fde in by_walk.fdes():
        rows = list(by_walk.rows(fde))
        for address in (fde.start, fde.start + fde.size - 1):
            assert by_walk.find(address) == by_table.find(address) == fde
            # The program of a linker's PLT entry may advance to the end of the FDE, where nothing is covered.
            expected = [row for location, row in rows if location <= address][-1]
            assert by_walk.row_at(address) == by_table.row_at(address) == expected
        outside = fde.start + fde.size
        assert by_walk.find(outside) == by_table.find(outside)
        compared += 1

    assert compared > 0


@pytest.mark.parametrize("name", LIBRARIES)
def test_every_row_of_a_library_equals_readelf(name):
    compare(library(name))


@pytest.mark.parametrize("path", subjects())
def test_every_row_of_python_equals_readelf(path):
    compare(path)


@pytest.mark.parametrize("name", LIBRARIES)
def test_table_and_walk_agree_in_a_library(name):
    compare_table_with_walk(library(name))


@pytest.mark.parametrize("path", subjects())
def test_table_and_walk_agree_in_python(path):
    compare_table_with_walk(path)
