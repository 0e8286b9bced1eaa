"""Programs that are stripped as distributions do it have the same names as before."""

import lzma
import os
import shutil
import subprocess
from pathlib import Path
from struct import pack

import pytest

from sfsample.core.filesystem import Root
from sfsample.formats.elf.dynamic import as_linked
from sfsample.formats.elf.image import SHT_DYNSYM, SHT_SYMTAB, ElfImage
from sfsample.modules import debug_files
from sfsample.modules.debug_files import DebugFiles
from sfsample.modules.module import Module
from sfsample.symbolize import module_symbols, symbol_table
from sfsample.symbolize.module_symbols import ModuleSymbols
from sfsample.symbolize.symbolizer import Symbolizer
from tests.builders import elf_builder as e
from tests.builders.symbol_tables import SymbolTable

WHOLE = Path(__file__).parents[1] / "fixtures" / "v3" / "target"

pytestmark = pytest.mark.skipif(shutil.which("objcopy") is None, reason="objcopy is not installed")


def run(*words):
    subprocess.run(list(map(str, words)), check=True)


def symbols_of(path, *roots, where="/opt/bin/program", **options):
    image = ElfImage(Path(path).read_bytes(), str(path))
    return ModuleSymbols(Module(image, 0, where), DebugFiles([Root(str(root)) for root in roots], **options))


@pytest.fixture(scope="module")
def functions():
    """Return {vaddr: symbol} for addresses all over the functions of the whole program."""
    image = ElfImage(WHOLE.read_bytes(), "whole")
    symbols = symbols_of(WHOLE)
    found = {}
    for start, end in image.executable:
        for vaddr in range(start, end, 3):
            symbol = symbols.find(vaddr)
            if symbol and symbol.size and not symbol.name.endswith("@plt"):
                found[vaddr] = symbol
    assert len({symbol.name for symbol in found.values()}) > 40
    return found


@pytest.fixture
def stripped(tmp_path):
    run("objcopy", "--only-keep-debug", WHOLE, tmp_path / "whole.debug")
    run("objcopy", "--strip-all", WHOLE, tmp_path / "program")
    return tmp_path / "program"


def copy_to(root, where, path):
    target = Path(root, where)
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(path, target)
    return target


def build_id_path(path):
    build_id = ElfImage(Path(path).read_bytes(), "x").build_id
    return f"usr/lib/debug/.build-id/{build_id[:2]}/{build_id[2:]}.debug"


def remove_build_id(path):
    """Change the note of the build-id to an unknown type."""
    note = e.note(bytes.fromhex(ElfImage(path.read_bytes(), "x").build_id))
    data = path.read_bytes()
    assert note in data
    path.write_bytes(data.replace(note, note[:8] + b"\x09" + note[9:]))


def assert_named(symbols, functions):
    assert {vaddr: symbols.find(vaddr) for vaddr in functions} == functions


def test_symtab_names_all_functions(functions):
    assert_named(symbols_of(WHOLE), functions)


def test_a_stripped_program_is_explained(stripped, functions):
    symbols = symbols_of(stripped)
    found = {vaddr for vaddr in functions if symbols.find(vaddr)}
    assert len(found) < len(functions) / 10  # .dynsym
    build_id = ElfImage(stripped.read_bytes(), "x").build_id
    assert symbols.why_unnamed() == f"stripped, and no debug file for build-id {build_id} was found"


@pytest.mark.parametrize("where", ["opt/bin", "opt/bin/.debug", "usr/lib/debug/opt/bin", "usr/lib/debug"])
def test_debug_link_is_found_in_the_root_of_the_target(stripped, functions, tmp_path, where):
    run("objcopy", f"--add-gnu-debuglink={tmp_path / 'whole.debug'}", stripped)
    copy_to(tmp_path / "root", f"{where}/whole.debug", tmp_path / "whole.debug")
    assert_named(symbols_of(stripped, tmp_path / "root"), functions)
    assert_named(symbols_of(stripped, tmp_path, tmp_path / "root"), functions)


def test_debug_link_is_found_beside_the_program(stripped, functions, tmp_path):
    run("objcopy", f"--add-gnu-debuglink={tmp_path / 'whole.debug'}", stripped)
    assert_named(symbols_of(stripped, where=str(stripped)), functions)


def test_debug_link_is_found_in_a_given_directory(stripped, functions, tmp_path):
    run("objcopy", f"--add-gnu-debuglink={tmp_path / 'whole.debug'}", stripped)
    copy_to(tmp_path / "symbols", "whole.debug", tmp_path / "whole.debug")
    assert_named(symbols_of(stripped, directories=[str(tmp_path / "symbols")]), functions)


@pytest.mark.parametrize("here", [True, False])
def test_debug_file_is_found_by_build_id(stripped, functions, tmp_path, here):
    """In a given directory, or in the system's directory in the root of the target."""
    where = build_id_path(stripped)
    copy_to(tmp_path / "root", where, tmp_path / "whole.debug")
    if here:
        directory = tmp_path / "root" / "usr/lib/debug"
        assert_named(symbols_of(stripped, directories=[str(directory)]), functions)
    else:
        assert_named(symbols_of(stripped, tmp_path / "root"), functions)


def test_a_debug_file_with_another_build_id_is_refused(stripped, functions, tmp_path):
    where = build_id_path(stripped)
    other = WHOLE.with_name("workload")
    copy_to(tmp_path / "root", where, other)
    symbols = symbols_of(stripped, tmp_path / "root")
    assert None in {symbols.find(vaddr) for vaddr in functions}
    build_id = ElfImage(other.read_bytes(), "x").build_id
    assert (
        symbols.why_unnamed()
        == f"a debug file does not belong to this module: /{where}: has build-id {build_id}"
    )


def test_without_a_build_id_the_crc_must_match(stripped, functions, tmp_path):
    remove_build_id(stripped)
    run("objcopy", f"--add-gnu-debuglink={tmp_path / 'whole.debug'}", stripped)
    other = copy_to(tmp_path / "root", "opt/bin/whole.debug", tmp_path / "whole.debug")
    assert_named(symbols_of(stripped, tmp_path / "root"), functions)
    with other.open("ab") as file:
        file.write(b"\0")
    symbols = symbols_of(stripped, tmp_path / "root")
    assert None in {symbols.find(vaddr) for vaddr in functions}
    assert "/opt/bin/whole.debug: its CRC differs from the CRC in .gnu_debuglink" in symbols.why_unnamed()


def test_a_debug_file_whose_code_lies_elsewhere_is_refused(stripped, functions, tmp_path):
    """A program may claim the build-id of another one."""
    where = build_id_path(stripped)
    debug = copy_to(tmp_path / "root", where, tmp_path / "whole.debug")
    data = bytearray(debug.read_bytes())
    header_at = int.from_bytes(data[40:48], "little")  # e_shoff
    text = next(n for n, s in enumerate(ElfImage(bytes(data), "x").sections) if s.name == ".text")
    data[header_at + 64 * text + 17] ^= 0x10  # sh_addr
    debug.write_bytes(data)
    symbols = symbols_of(stripped, tmp_path / "root")
    assert None in {symbols.find(vaddr) for vaddr in functions}
    refused = f"a debug file does not belong to this module: /{where}: its code lies elsewhere"
    assert symbols.why_unnamed() == refused


def test_a_debug_file_that_is_too_large_for_a_crc_is_refused_unread(stripped, functions, tmp_path):
    """A sparse file of 200 GB costs nothing to make."""
    remove_build_id(stripped)
    run("objcopy", f"--add-gnu-debuglink={tmp_path / 'whole.debug'}", stripped)
    debug = copy_to(tmp_path / "root", "opt/bin/whole.debug", tmp_path / "whole.debug")
    os.truncate(debug, 200 << 30)
    symbols = symbols_of(stripped, tmp_path / "root")
    assert None in {symbols.find(vaddr) for vaddr in functions}
    assert symbols.why_unnamed().endswith("has no build-id, and more than 1 GiB, too much for a CRC")


@pytest.mark.parametrize(
    "link", [b"../whole.debug\0\0\0\0\0\0", b"whole.debug", b"\0\0\0\0\0\0\0\0", b"w\0\0\0\1"]
)
def test_a_damaged_debug_link_is_ignored(stripped, tmp_path, link):
    (tmp_path / "link").write_bytes(link)
    run("objcopy", "--add-section", f".gnu_debuglink={tmp_path / 'link'}", stripped)
    copy_to(tmp_path / "root", "opt/whole.debug", tmp_path / "whole.debug")
    assert symbols_of(stripped, tmp_path / "root").debug_file().image is None


def add_mini_debug_info(program, directory):
    """Add to a stripped program what Fedora's find-debuginfo adds: the symbols that are not in .dynsym."""

    def names(*flags):
        out = subprocess.run(["nm", "--format=posix", "--defined-only", *flags, str(WHOLE)],
                             capture_output=True, text=True, check=True).stdout  # fmt: skip
        return {line.split()[0].partition("@")[0] for line in out.splitlines() if line.split()[1] in "TtDd"}

    (directory / "keep").write_text("\n".join(sorted(names() - names("-D"))))
    run("objcopy", "--only-keep-debug", WHOLE, directory / "mini")
    run("objcopy", "--strip-all", f"--keep-symbols={directory / 'keep'}", directory / "mini")
    (directory / "mini.xz").write_bytes(lzma.compress((directory / "mini").read_bytes(), lzma.FORMAT_XZ))
    run("objcopy", "--add-section", f".gnu_debugdata={directory / 'mini.xz'}", program)


def test_mini_debug_info_names_all_functions(stripped, functions, tmp_path):
    add_mini_debug_info(stripped, tmp_path)
    assert ElfImage(stripped.read_bytes(), "x").symbols(SHT_SYMTAB) is None
    symbols = symbols_of(stripped)
    found = {vaddr: symbols.find(vaddr) for vaddr in functions}
    missing = {symbol.name for vaddr, symbol in functions.items() if found[vaddr] is None}
    assert not missing
    assert {v: s.start for v, s in found.items()} == {v: s.start for v, s in functions.items()}


def reason_with_debugdata(program, directory, data):
    """Return why a program has no names when `.gnu_debugdata` is `data`."""
    (directory / "packed").write_bytes(data)
    run("objcopy", "--add-section", f".gnu_debugdata={directory / 'packed'}", program, directory / "with")
    symbols = symbols_of(directory / "with")
    assert symbols.find(ElfImage(program.read_bytes(), "x").executable[0][0] + 0x400) is None
    return symbols.why_unnamed()


def test_damaged_mini_debug_info_is_reported(stripped, tmp_path):
    good = lzma.compress(WHOLE.read_bytes(), lzma.FORMAT_XZ)
    assert "cannot be unpacked" in reason_with_debugdata(stripped, tmp_path, b"no xz at all")
    assert "is cut off" in reason_with_debugdata(stripped, tmp_path, good[:-40])
    assert "not an ELF file" in reason_with_debugdata(
        stripped, tmp_path, lzma.compress(b"x" * 100, lzma.FORMAT_XZ)
    )


def test_unpacked_mini_debug_info_is_limited(stripped, tmp_path, monkeypatch):
    monkeypatch.setattr(module_symbols, "_MAX_UNPACKED_BYTES", 1 << 20)
    bomb = lzma.compress(bytes(64 << 20), lzma.FORMAT_XZ)
    assert len(bomb) < 1 << 16
    assert "unpacks to more than 1 MiB" in reason_with_debugdata(stripped, tmp_path, bomb)


def test_mini_debug_info_of_another_file_with_the_same_build_id_is_not_used(stripped, functions, tmp_path):
    """A hostile program claimed the build-id of an honest one, and its names were cached for that."""
    add_mini_debug_info(stripped, tmp_path)
    honest = symbols_of(stripped)
    vaddr, name = next((v, s.name) for v, s in functions.items() if honest.find(v) == s)
    mini = (tmp_path / "mini").read_bytes().replace(name.encode(), b"x" * len(name))
    (tmp_path / "hostile.xz").write_bytes(lzma.compress(mini, lzma.FORMAT_XZ))
    run("objcopy", "--update-section", f".gnu_debugdata={tmp_path / 'hostile.xz'}", stripped,
        tmp_path / "hostile")  # fmt: skip

    def name_in(path):
        module = Module(ElfImage(path.read_bytes(), path.name), 0, f"/opt/{path.name}")
        return Symbolizer().symbol(module, vaddr).name

    assert name_in(tmp_path / "hostile") == "x" * len(name)
    assert name_in(stripped) == name


@pytest.mark.parametrize(
    "path", [WHOLE.with_name("libcallee.so"), Path("/usr/lib/x86_64-linux-gnu/libc.so.6")], ids=str
)
def test_a_file_without_section_headers_has_its_dynamic_symbols(path, monkeypatch):
    monkeypatch.setattr(debug_files, "SYSTEM_DEBUG_DIR", "/nowhere")
    if not path.exists():
        pytest.skip(f"no {path}")
    data = bytearray(path.read_bytes())
    data[40:48] = bytes(8)  # e_shoff
    data[58:64] = bytes(6)  # e_shentsize, e_shnum, e_shstrndx
    without = ModuleSymbols(Module(ElfImage(bytes(data), "x"), 0, "x"), DebugFiles([]))
    image = ElfImage(path.read_bytes(), "x")
    table = SymbolTable(*image.symbols(SHT_DYNSYM), "little", image.code_sections)
    found = {symbol for start, end in image.code_sections for vaddr in range(start, end, 16)
             if (symbol := table.find_stated(vaddr))}  # fmt: skip
    assert found
    assert {symbol: without.find(symbol.start) for symbol in found} == {
        symbol: table.find(symbol.start) for symbol in found
    }


def test_the_vdso_in_memory_has_names():
    """The vdso of the test process; of aliases, those without leading underscores are chosen."""
    row = next(
        (line for line in Path("/proc/self/maps").read_text().splitlines() if line.endswith("[vdso]")), None
    )
    if row is None:
        pytest.skip("this kernel gives no vdso")
    start, end = (int(word, 16) for word in row.split()[0].split("-"))
    with open("/proc/self/mem", "rb") as memory:
        memory.seek(start)
        image = ElfImage(memory.read(end - start), "[vdso]")
    symbols = ModuleSymbols(Module(image, start, "[vdso]"), DebugFiles([]))
    table = SymbolTable(*image.symbols(), image.byteorder, image.code_sections)
    names = {found.name for low, high in image.code_sections for vaddr in range(low, high, 16)
             if (found := table.find_stated(vaddr))}  # fmt: skip
    assert {"clock_gettime", "gettimeofday"} <= names
    assert all(
        symbols.find(v) == table.find(v) for low, high in image.code_sections for v in range(low, high, 64)
    )


@pytest.mark.parametrize("byteorder", ["little", "big"])
def test_pointers_of_a_relocated_dynamic_section_are_as_linked(byteorder):
    order = "<" if byteorder == "little" else ">"
    memory = pack(
        order + "10q", 5, 0x7F0000001000, 6, 0x2000, 10, 0x7F0000009999, 0x6FFFFEF5, 0x7F0000003000, 0, 0
    )
    linked = pack(order + "10q", 5, 0x1000, 6, 0x2000, 10, 0x7F0000009999, 0x6FFFFEF5, 0x3000, 0, 0)
    assert as_linked(memory, 0x7F0000000000, byteorder) == linked
    assert as_linked(linked, 0, byteorder) == linked
    assert as_linked(memory[:-3], 0x7F0000000000, byteorder) == linked[:-16]


HIDDEN = """
        .globl  seen
        .type   seen, @function
seen:   {cfi} startproc
        nop
1:      ret
        {cfi} endproc
        .type   hidden, @function
hidden: {cfi} startproc
        mov     $1, %eax
        ret
        {cfi} endproc
        .globl  calls
        .type   calls, @function
calls:  call    hidden
        ret
        .size   calls, . - calls
"""


@pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed")
@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the source is for x86-64")
@pytest.mark.parametrize("cfi", [".cfi_", "#"], ids=["tables", "calls"])
def test_a_symbol_without_a_size_does_not_cover_the_next_function(tmp_path, cfi):
    """As musl's `memset` and the `__clone` after it: only a complete symbol table has both."""
    path = tmp_path / "hidden.so"
    source = HIDDEN.replace("{cfi} ", cfi)
    command = ["gcc", "-shared", "-nostdlib", "-x", "assembler", "-", "-o", path]
    subprocess.run(command, input=source, text=True, check=True)
    places = {symbol.name: symbol.start for start, end in ElfImage(path.read_bytes(), "x").code_sections
              for vaddr in range(start, end) if (symbol := symbols_of(path).find(vaddr))}  # fmt: skip
    assert places.keys() == {"seen", "hidden", "calls"}

    run("strip", path)
    names = {vaddr: (found := symbols_of(path).find(vaddr)) and found.name
             for vaddr in range(places["seen"], places["calls"] + 6)}  # fmt: skip
    assert names.pop(places["seen"]) == "seen"
    assert {name for vaddr, name in names.items() if vaddr < places["hidden"]} == {"seen"}
    assert {name for vaddr, name in names.items() if vaddr >= places["hidden"]} == {None, "calls"}


def test_a_limit_that_left_out_names_is_said(monkeypatch):
    monkeypatch.setattr(symbol_table, "_MAX_RECORDS", 3)
    symbols = symbols_of(WHOLE)
    assert symbols.find(0) is None
    in_symtab, in_dynsym = symbols.problems
    assert in_symtab.startswith("/opt/bin/program: only 3 of ")
    assert in_dynsym.startswith("/opt/bin/program: only 3 of ")
    assert symbols.why_unnamed().startswith("its symbol table has no function there; only 3 of ")
