"""Frames of a location: with a symbol, without, in the kernel."""

from pathlib import Path

import pytest

from sfsample.core.filesystem import ProcessRoot, Root
from sfsample.formats.elf.image import ElfImage
from sfsample.modules.location import Location, PythonPlace, kernel_locations, python_location
from sfsample.modules.module import Module
from sfsample.modules.unwind_tables import UnwindTables
from sfsample.symbolize import symbolizer as symbolizer_module
from sfsample.symbolize.module_symbols import ModuleSymbols
from sfsample.symbolize.named_frame import NamedFrame
from sfsample.symbolize.options import SymbolOptions
from sfsample.symbolize.symbolizer import Symbolizer
from tests.builders import elf_builder as e
from tests.builders import symtab_builder as b


def elf_file(*symbols: b.Sym, build_id: bytes = b"") -> bytes:
    symtab, strtab = b.build(*symbols)
    sections = [
        e.Bytes(".text", 0x1000, bytes(0x100), flags=6),
        e.Bytes(".symtab", 0, symtab, e.SHT_SYMTAB, 0, link=3),
        e.Bytes(".strtab", 0, strtab, e.SHT_STRTAB, 0),
    ]
    notes = [e.Load(0x2000, e.note(build_id), e.R, e.PT_NOTE)] if build_id else []
    return e.elf([e.Load(0x1000, bytes(0x100)), *notes], sections)


def module(*symbols: b.Sym, path: str = "/usr/lib/libx.so") -> Module:
    return Module(ElfImage(elf_file(*symbols), path), 0x10000, path)


@pytest.mark.parametrize(("line", "lines", "shown"), [(7, False, 3), (7, True, 7), (None, True, 3)])
def test_python_function_shows_its_definition_or_the_line_that_was_executed(line, lines, shown):
    place = PythonPlace("work", "/srv/busy.py", line, 3)
    [frame] = Symbolizer(SymbolOptions(lines=lines)).frames(python_location(place))
    assert (frame.text, frame.file, frame.line) == (f"work (busy.py:{shown})", "/srv/busy.py", line)


def test_a_symbol_is_found_by_lookup_and_its_offset_is_that_of_the_address():
    location = Location(module(b.Sym("_Z1fi", 0x1010, 0x10)), 0x1020, 0x101F)
    [frame] = Symbolizer().frames(location)
    assert frame == NamedFrame(
        "f(int)", "f(int)", "_Z1fi", "/usr/lib/libx.so", address=0x1020, symbol_offset=0x10
    )


def test_all_texts_are_cleaned():
    [frame] = Symbolizer().frames(Location(module(b.Sym("a;\x1b", 0x1010, 0x10)), 0x1010, 0x1010))
    assert (frame.text, frame.function, frame.raw) == ("a:?", "a:?", "a:?")


def test_a_location_without_a_symbol_is_named_by_module_and_offset():
    [frame] = Symbolizer().frames(Location(module(), 0x1020, 0x101F))
    assert frame == NamedFrame("[libx.so+0x1020]", module="/usr/lib/libx.so", address=0x1020)


def test_a_location_without_a_module_is_named_by_its_address():
    [frame] = Symbolizer().frames(Location(None, 0x1020, 0x101F))
    assert frame == NamedFrame("[0x1020]", address=0x1020)


def test_a_kernel_function_needs_no_symbol_table():
    [location] = kernel_locations(["ep;poll"], 7)
    [frame] = Symbolizer().frames(location)
    assert frame == NamedFrame("ep:poll_[k]", "ep:poll", "ep:poll", address=0, kind="k")
    assert Symbolizer().missing_names() == []


@pytest.mark.parametrize(
    "failure", [OSError(12, "Cannot allocate memory"), MemoryError(), ValueError("a bug")]
)
def test_a_failure_costs_the_name_and_is_said(failure: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise failure

    place, symbolizer = Location(module(b.Sym("f", 0x1010, 0x10)), 0x1010, 0x1010), Symbolizer()
    monkeypatch.setattr(ModuleSymbols, "find", fail)
    assert [frame.text for frame in symbolizer.frames(place)] == ["[libx.so+0x1010]"]
    assert symbolizer.problems == [f"/usr/lib/libx.so: the look-up of names failed: {failure!r}"]


def test_names_take_a_limited_time_and_kernel_functions_none(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter(range(0, 10_000, 100))  # each look-up takes 100 s
    monkeypatch.setattr(symbolizer_module, "thread_time", lambda: next(seconds))
    named, symbolizer = module(b.Sym("f", 0x1010, 0x20)), Symbolizer()
    frames = [symbolizer.frames(Location(named, at, at))[0] for at in range(0x1010, 0x1016)]
    assert [frame.function for frame in frames] == ["f", "f", "f", "f", None, None]
    [missing] = symbolizer.missing_names()
    assert missing.why == "the look-up of names took 300 s of CPU and was ended"
    [location] = kernel_locations(["ep_poll"], 7)
    assert symbolizer.frames(location)[0].function == "ep_poll"


def test_a_process_cannot_give_another_one_names_by_a_debug_file(tmp_path: Path) -> None:
    """Both map the same file; the debug file is in the root directory of one of them only."""
    build_id = b"\xab" * 20
    directory = tmp_path / "hostile/usr/lib/debug/.build-id/ab"
    directory.mkdir(parents=True)
    (directory / f"{'ab' * 19}.debug").write_bytes(elf_file(b.Sym("wrong", 0x1010, 0x10), build_id=build_id))
    (tmp_path / "honest").mkdir()
    image = ElfImage(elf_file(build_id=build_id), "/usr/lib/libx.so")
    roots = [Root(str(tmp_path / name)) for name in ("hostile", "honest")]
    symbolizer = Symbolizer(process_roots={n: ProcessRoot(root, n, 0) for n, root in enumerate(roots, 1)})
    modules = [Module(image, 0, image.name, UnwindTables(image, root=root)) for root in roots]

    [[hostile], [honest]] = [symbolizer.frames(Location(each, 0x1018, 0x1018)) for each in modules]
    assert hostile.function == "wrong"
    assert honest.function is None
