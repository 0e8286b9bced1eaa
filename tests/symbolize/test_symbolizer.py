"""Frames of a location: with a symbol, without, in the kernel."""

from sfsample.formats.elf.image import ElfImage
from sfsample.modules.location import Location, kernel_locations
from sfsample.modules.module import Module
from sfsample.symbolize.named_frame import NamedFrame
from sfsample.symbolize.symbolizer import Symbolizer
from tests.builders import elf_builder as e
from tests.builders import symtab_builder as b


def module(*symbols: b.Sym, path: str = "/usr/lib/libx.so") -> Module:
    symtab, strtab = b.build(*symbols)
    sections = [
        e.Bytes(".text", 0x1000, bytes(0x100), flags=6),
        e.Bytes(".symtab", 0, symtab, e.SHT_SYMTAB, 0, link=3),
        e.Bytes(".strtab", 0, strtab, e.SHT_STRTAB, 0),
    ]
    return Module(ElfImage(e.elf([e.Load(0x1000, bytes(0x100))], sections), path), 0x10000, path)


def test_a_symbol_is_found_by_lookup_and_its_offset_is_that_of_the_address():
    location = Location(module(b.Sym("_Z1fi", 0x1010, 0x10)), 0x1020, 0x101F)
    [frame] = Symbolizer().frames(location)
    assert frame == NamedFrame("f(int)", "f(int)", "_Z1fi", 0x10)


def test_text_is_cleaned_and_raw_is_not():
    [frame] = Symbolizer().frames(Location(module(b.Sym("a;\x1b", 0x1010, 0x10)), 0x1010, 0x1010))
    assert (frame.text, frame.function, frame.raw) == ("a:?", "a:?", "a;\x1b")


def test_a_location_without_a_symbol_is_named_by_module_and_offset():
    [frame] = Symbolizer().frames(Location(module(), 0x1020, 0x101F))
    assert frame == NamedFrame("[libx.so+0x1020]", None, None, None)


def test_a_location_without_a_module_is_named_by_its_address():
    [frame] = Symbolizer().frames(Location(None, 0x1020, 0x101F))
    assert frame == NamedFrame("[0x1020]", None, None, None)


def test_a_kernel_function_needs_no_symbol_table():
    [location] = kernel_locations(["ep;poll"], 7)
    [frame] = Symbolizer().frames(location)
    assert frame == NamedFrame("ep:poll_[k]", "ep:poll", "ep;poll", None, kind="k")
    assert Symbolizer().missing_names() == []
