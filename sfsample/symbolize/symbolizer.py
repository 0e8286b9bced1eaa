"""From a place in a module to a name.

Law: runs after the sampling, once per distinct place; a symbol table is read when the first place in its
module is asked for, and only names that are asked for are demangled.  A place that has no name is counted,
and `unnamed` tells why.
"""

from collections import Counter
from collections.abc import Mapping
from functools import cached_property
from types import MappingProxyType

from sfsample.core.filesystem import ProcessRoot, Root
from sfsample.formats.elf.image import ElfImage
from sfsample.modules.debug_files import DebugFiles
from sfsample.modules.location import Location, pid_of
from sfsample.modules.module import Module
from sfsample.symbolize.disk_cache import DiskCache
from sfsample.symbolize.dwarf_lines import Lines
from sfsample.symbolize.frame_text import clean_name, frame_name
from sfsample.symbolize.missing import MissingName, generated_without_name, module_without_name
from sfsample.symbolize.module_symbols import ModuleSymbols
from sfsample.symbolize.named_frame import NamedFrame, kernel_frame, with_places
from sfsample.symbolize.options import DEFAULT_SYMBOL_OPTIONS, SymbolOptions
from sfsample.symbolize.perf_map import PerfMaps
from sfsample.symbolize.spelling import spell
from sfsample.symbolize.symbol_table import Symbol

NO_HOMES: Mapping[int, ProcessRoot] = MappingProxyType({})


class Symbolizer:
    """Names places.  Keeps the tables of the modules it has met, so make one per result.

    `homes`: where the processes live, by pid; their debug files and perf maps are looked for there.
    """

    def __init__(
        self, naming: SymbolOptions = DEFAULT_SYMBOL_OPTIONS, homes: Mapping[int, ProcessRoot] = NO_HOMES
    ) -> None:
        self._naming = naming
        self._homes = homes
        self._cache = DiskCache(naming.cache_dir)
        self._perf_maps = PerfMaps(homes)
        self._lines = Lines(self._cache, naming.progress)
        self._symbols: dict[ElfImage, ModuleSymbols] = {}
        self._first: dict[ElfImage, Module] = {}  # of those that several processes have mapped
        self._frames: dict[Location, tuple[NamedFrame, ...]] = {}

    def symbol(self, module: Module, vaddr: int) -> Symbol | None:
        """Return the function symbol that covers `vaddr`."""
        return self._of(module).find(vaddr)

    def frames(self, location: Location) -> tuple[NamedFrame, ...]:
        """Return the functions at a place, at least one; the most inlined comes first."""
        module = location.module
        if module is not None:
            module = self._first.setdefault(module.image, module)
        place = location._replace(module=module, found="")  # how it was found makes no difference
        found = self._frames.get(place)
        if found is None:
            found = self._frames[place] = self._named(place)
        return found

    def name(self, module: Module | None, address: int, lookup: int) -> str:
        """Return the text of the innermost frame at `address`, whose function is found at `lookup`."""
        return self.frames(Location(module, address, lookup))[0].text

    def unnamed(self) -> list[MissingName]:
        """Return where places have no name, and why; most places first."""
        places = [place for place, frames in self._frames.items() if frames[-1].function is None]
        modules = Counter(place.module for place in places if place.module)
        processes = Counter(place.pid for place in places if not place.module and place.pid)
        homes, maps = self._homes, self._perf_maps
        found = [module_without_name(module, self._of(module).why(), homes, count)
                 for module, count in modules.items()]  # fmt: skip
        found += [generated_without_name(pid_of(number), homes.get(number), count, maps.has(number))
                  for number, count in processes.items()]  # fmt: skip
        return sorted(found, key=lambda one: (-one.places, one.where))

    @property
    def problems(self) -> list[str]:
        """What could not be read."""
        return [*self._lines.problems, *self._perf_maps.problems]

    def _named(self, location: Location) -> tuple[NamedFrame, ...]:
        module = location.module
        if location.kernel:
            return (kernel_frame(location.kernel),)
        if module is None:
            return (self._generated(location),)
        frame = self._frame(module, location)
        if not (self._naming.lines or self._naming.inlines):
            return (frame,)
        dwarf = self._of(module).dwarf()
        places = self._lines.at(dwarf, location.lookup) if dwarf else []
        return with_places(frame, places, self._naming)

    def _frame(self, module: Module, location: Location) -> NamedFrame:
        address = location.address
        symbol = self.symbol(module, location.lookup)
        if symbol is None:
            return NamedFrame(frame_name(None, module.path, address), None, None, None)
        function = clean_name(spell(symbol.name, self._naming))
        return NamedFrame(function, function, symbol.name, address - symbol.start)

    def _generated(self, location: Location) -> NamedFrame:
        """Name code that lies in no file."""
        found = self._perf_maps.find(location.pid, location.lookup) if location.pid else None
        if found is None:
            return NamedFrame(frame_name(None, None, location.address), None, None, None)
        function = clean_name(found.name)
        offset = location.address - found.start
        return NamedFrame(f"{function}_[j]", function, found.name, offset, kind="j")

    @cached_property
    def _debug_files(self) -> DebugFiles:
        """Made when the first module is named: until then processes may be added to the homes."""
        return DebugFiles(_roots(self._homes), self._naming.debug_dirs, self._naming.fetch)

    def _of(self, module: Module) -> ModuleSymbols:
        if module.image not in self._symbols:
            self._symbols[module.image] = ModuleSymbols(module, self._debug_files, self._cache)
        return self._symbols[module.image]


def _roots(homes: Mapping[int, ProcessRoot]) -> list[Root]:
    """Return the root directories of the processes, those that see the same files once."""
    found = {(home.mounts, home.root.identity): home.root for home in homes.values() if home.root is not None}
    return list(found.values())
