"""Lines and inlined functions are those of addr2line; also without DWARF, and without the extra."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sfsample.cli.environment import symbol_options
from sfsample.cli.options import NameFlags
from sfsample.core.python_view import PythonView
from sfsample.errors import UsageError
from sfsample.formats.elf.image import ElfImage
from sfsample.modules.location import Location
from sfsample.modules.module import Module
from sfsample.symbolize import dwarf_lines
from sfsample.symbolize.dwarf_lines import DwarfLines, available, has_dwarf
from sfsample.symbolize.options import SymbolOptions
from sfsample.symbolize.symbolizer import Symbolizer

SOURCES = Path(__file__).parents[1] / "fixtures" / "src"
WITHOUT_DWARF = Path(__file__).parents[1] / "fixtures" / "v3" / "workload"
OPTIONS = SymbolOptions(lines=True, inlines=True)

needs_extra = pytest.mark.skipif(
    not available(), reason="symbolic is not installed: pip install 'sfsample[lines]'"
)
needs_binutils = pytest.mark.skipif(shutil.which("objcopy") is None, reason="binutils are not installed")


def run(*words, cwd):
    return subprocess.run(list(map(str, words)), cwd=cwd, check=True, capture_output=True, text=True).stdout


def build(directory, dwarf=5, compress="none"):
    run("as", "-o", "a.o", SOURCES / f"inlines-dwarf{dwarf}.s", cwd=directory)
    run("ld", "-shared", "--build-id", "-o", "a.so", "a.o", cwd=directory)
    run("objcopy", f"--compress-debug-sections={compress}", "a.so", cwd=directory)
    return directory / "a.so"


def open_module(path):
    return Module(ElfImage(path.read_bytes(), str(path)), 0, str(path))


def function_addresses(image):
    """Return every address in a function, by nm; the padding between functions is left out."""
    lines = [line.split() for line in run("nm", "-S", image.name, cwd="/").splitlines()]
    functions = [
        (int(words[0], 16), int(words[1], 16)) for words in lines if len(words) == 4 and words[2] in "tT"
    ]
    return [vaddr for start, size in sorted(functions) for vaddr in range(start, start + size)]


def frames(symbolizer, module, vaddr):
    return [(f.function, f.file and Path(f.file).name, f.line)
            for f in symbolizer.frames(Location(module, vaddr, vaddr))]  # fmt: skip


def addr2line(path, addresses):
    """Return {vaddr: [(function, file, line)]}."""
    out = run("addr2line", "-a", "-i", "-f", "-s", "-e", path, *map(hex, addresses), cwd=path.parent)
    found = {}
    for part in re.split(r"^0x", out, flags=re.MULTILINE)[1:]:
        vaddr, *lines = part.splitlines()
        pairs = zip(lines[::2], lines[1::2], strict=True)
        places = [(name, *where.partition(" ")[0].rsplit(":", 1)) for name, where in pairs]
        found[int(vaddr, 16)] = [(n, f, int(number) if number.isdigit() else 0) for n, f, number in places]
    return found


@needs_extra
@needs_binutils
@pytest.mark.parametrize("dwarf", [4, 5])
@pytest.mark.parametrize("compress", ["none", "zlib-gabi", "zlib-gnu", "zstd"])
def test_every_address_has_the_lines_of_addr2line(tmp_path, dwarf, compress):
    path = build(tmp_path, dwarf, compress)
    module, symbolizer = open_module(path), Symbolizer(OPTIONS)
    expected = addr2line(path, function_addresses(module.image))
    found = {vaddr: frames(symbolizer, module, vaddr) for vaddr in expected}
    assert len(expected) > 100
    assert found == expected
    assert max(map(len, found.values())) == 3
    assert symbolizer.problems == []


@needs_extra
@needs_binutils
def test_frame_text_has_line_and_inlined_suffix(tmp_path):
    path = build(tmp_path)
    module = open_module(path)
    expected = addr2line(path, function_addresses(module.image))
    vaddr = next(v for v, places in expected.items() if len(places) == 3)
    [first, second, third] = expected[vaddr]
    place = Location(module, vaddr, vaddr)
    assert [f.text for f in Symbolizer(OPTIONS).frames(place)] == [
        f"square (inlines.c:{first[2]})_[i]",
        f"both (inlines.c:{second[2]})_[i]",
        f"sum (inlines.c:{third[2]})",
    ]
    assert [f.text for f in Symbolizer(SymbolOptions(inlines=True)).frames(place)] == [
        "square_[i]",
        "both_[i]",
        "sum",
    ]
    assert [f.text for f in Symbolizer(SymbolOptions(lines=True)).frames(place)] == [
        f"sum (inlines.c:{third[2]})"
    ]
    assert [f.inlined for f in Symbolizer(OPTIONS).frames(place)] == [True, True, False]


@needs_extra
@needs_binutils
def test_dwarf_is_read_from_a_debug_file(tmp_path):
    path = build(tmp_path)
    whole = {
        v: frames(Symbolizer(OPTIONS), open_module(path), v)
        for v in function_addresses(open_module(path).image)
    }
    run("objcopy", "--only-keep-debug", "a.so", "a.so.debug", cwd=tmp_path)
    run("objcopy", "--strip-all", "--add-gnu-debuglink=a.so.debug", "a.so", cwd=tmp_path)
    symbolizer, module = Symbolizer(OPTIONS), open_module(path)
    assert not has_dwarf(module.image)
    assert {v: frames(symbolizer, module, v) for v in whole} == whole


@needs_extra
@needs_binutils
def test_dwarf_is_converted_once(tmp_path):
    path = build(tmp_path)
    dwarf_lines._CACHE.clear()
    messages = []
    for _ in range(2):
        lines = DwarfLines(messages.append)
        image = open_module(path).image
        assert len(lines.at(image, function_addresses(image)[0])) >= 1
    assert len(messages) == 1
    assert messages[0].startswith("reading DWARF of ")


@needs_extra
@needs_binutils
def test_lines_of_another_file_with_the_same_build_id_are_not_used(tmp_path):
    """A hostile program may claim the build-id of another one; the cache outlives it."""
    path = build(tmp_path)
    image = open_module(path).image
    vaddr = function_addresses(image)[0]
    honest = DwarfLines(lambda _: None).at(image, vaddr)
    dwarf_lines._CACHE.clear()
    claimed = ElfImage(path.read_bytes().replace(b"inlines.c", b"hostile.c"), "hostile")
    assert claimed.build_id == image.build_id

    assert DwarfLines(lambda _: None).at(claimed, vaddr) != honest
    assert DwarfLines(lambda _: None).at(image, vaddr) == honest


@needs_extra
@needs_binutils
def test_a_file_that_changes_while_it_is_converted_does_not_spoil_the_cache(tmp_path):
    """The program may write to its file between the hash and the conversion."""
    path = build(tmp_path)
    honest = path.read_bytes()
    file = bytearray(honest)
    image = ElfImage(file, str(path))
    vaddr = function_addresses(image)[0]
    expected = DwarfLines(lambda _: None).at(ElfImage(honest, "x"), vaddr)
    dwarf_lines._CACHE.clear()

    def change(_text):
        file[:] = honest.replace(b"inlines.c", b"hostile.c")

    DwarfLines(change).at(image, vaddr)
    assert DwarfLines(lambda _: None).at(ElfImage(honest, "x"), vaddr) == expected


@needs_extra
@needs_binutils
def test_dwarf_of_a_file_that_is_too_large_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(dwarf_lines, "_MAX_FILE_BYTES", 1000)
    path = build(tmp_path)
    lines = DwarfLines(lambda _: pytest.fail("was read"))
    assert lines.at(open_module(path).image, 0x1000) == []
    [problem] = lines.problems
    assert "bytes are more than" in problem


@needs_extra
@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no compiler")
@pytest.mark.parametrize("dwarf", [4, 5])
def test_lines_in_dwo_files_are_reported_as_missing(tmp_path, dwarf):
    """One unit of two is split; the lines of the other are found."""
    for name, flags in (("one", ("-gsplit-dwarf",)), ("two", ())):
        (tmp_path / f"{name}.c").write_text(f"int {name}(int n) {{ return n + 1; }}\n")
        run("cc", "-c", f"-gdwarf-{dwarf}", "-fPIC", *flags, f"{name}.c", cwd=tmp_path)
    run("cc", "-shared", "-nostdlib", "-o", "both.so", "one.o", "two.o", cwd=tmp_path)
    module, symbolizer = open_module(tmp_path / "both.so"), Symbolizer(OPTIONS)
    vaddrs = {
        words[-1]: int(words[0], 16)
        for words in map(str.split, run("nm", "both.so", cwd=tmp_path).splitlines())
    }

    assert frames(symbolizer, module, vaddrs["one"]) == [("one", None, None)]
    assert frames(symbolizer, module, vaddrs["two"]) == [("two", "two.c", 1)]
    [problem] = symbolizer.problems
    assert problem.startswith(f"{module.path}: some lines and inlined functions are in .dwo or .dwp files")


@needs_extra
def test_functions_are_named_without_dwarf():
    module = open_module(WITHOUT_DWARF)
    symbolizer = Symbolizer(OPTIONS)
    vaddr = function_addresses(module.image)[64]
    [frame] = symbolizer.frames(Location(module, vaddr, vaddr))
    assert frame.function
    assert frame.line is None
    assert symbolizer.problems == []


@needs_extra
@needs_binutils
def test_damaged_dwarf_does_not_lose_names(tmp_path):
    """Every 97th byte of the debug sections is changed: no exception, and the names stay."""
    path = build(tmp_path)
    data = bytearray(path.read_bytes())
    for section in open_module(path).image.sections:
        if section.name.startswith(".debug_"):
            for at in range(section.offset, section.offset + section.size, 97):
                data[at] ^= 0xFF
    path.write_bytes(data)
    module, symbolizer = open_module(path), Symbolizer(OPTIONS)
    vaddrs = function_addresses(module.image)
    for vaddr in vaddrs:
        assert symbolizer.frames(Location(module, vaddr, vaddr))[-1].text
    assert {frames(symbolizer, module, vaddr)[-1][0] for vaddr in vaddrs} >= {"sum", "entry"}


def test_lines_flag_without_the_extra_is_a_usage_error(monkeypatch):
    monkeypatch.setattr("sfsample.symbolize.dwarf_lines.available", lambda: False)
    with pytest.raises(UsageError) as refused:
        symbol_options(NameFlags(lines=True), quiet=True)
    assert refused.value.help == ("install it: pip install 'sfsample[lines]'",)
    symbol_options(NameFlags(), quiet=True)
    assert symbol_options(NameFlags(lines=True), quiet=True, python=PythonView.ONLY).lines


@needs_binutils
def test_native_frames_beside_python_ones_name_the_extra_that_they_lack(tmp_path, monkeypatch):
    """`--python only --lines` needs no extra, but shows native frames of threads that run no Python."""
    path = build(tmp_path)
    monkeypatch.setitem(sys.modules, "symbolic.symcache", None)
    lines = DwarfLines(lambda _: None)
    image = ElfImage(path.read_bytes(), str(path))
    assert lines.at(image, 0x1000) == lines.at(image, 0x1001) == []
    assert lines.problems == [f"{path}: no lines: they need pip install 'sfsample[lines]'"]
