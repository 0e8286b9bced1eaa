"""Which module is at an address, now.

Law: opens nothing and reads no /proc: it is given `read_maps` and `open_image`.  An address that misses
reads the maps again, at most once between two calls of `expire` (one sample), so a wild return address costs
little.  `generation` changes whenever an executable mapping has changed: what was cached by address is void.
A file that cannot be opened may just be coming or going (dlopen, dlclose): it is tried again a few times.
Modules that have gone are kept, to be named later; but there may come ever new ones, so not very many.
"""

from bisect import bisect_right
from collections.abc import Callable, Collection

from sfsample.core.arch import ByteOrder
from sfsample.errors import SfsampleError
from sfsample.formats.elf.image import PT_LOAD, ElfImage
from sfsample.modules.generated_code import GeneratedCode, ReadMemory
from sfsample.modules.mapping import Mapping
from sfsample.modules.module import Module
from sfsample.modules.unwind_tables import UnwindTables

_TRIES = 3
_PAGE = 4096
_MOST_GONE = 256  # modules: each has a file open
_MOST_TOLD = 10_000  # problems, and paths
_LARGEST_GAP = 0x20000  # between two segments of a file: less than two of the largest pages of any machine
ReadMaps = Callable[[], tuple[Mapping, ...]]
OpenImage = Callable[[Mapping], ElfImage]
TablesOf = Callable[[ElfImage, str], UnwindTables]
IsCode = Callable[[int], bool]


class ModuleMap:
    """The executable mappings of one process and the modules behind them.

    `tables_of` gives the tables of an image and its path, those that another process has read if it maps the
    same one.
    """

    def __init__(
        self,
        read_maps: ReadMaps,
        open_image: OpenImage,
        read_memory: ReadMemory = lambda *_: None,
        tables_of: TablesOf = UnwindTables,
    ) -> None:
        self._read_maps = read_maps
        self._open_image = open_image
        self._tables_of = tables_of
        self._mappings: tuple[Mapping, ...] = ()
        self._executable: tuple[Mapping, ...] = ()
        self._starts: list[int] = []
        self._modules: dict[Mapping, Module | None] = {}
        self._same: dict[tuple[str, str, int, int], Module] = {}
        self._seen: dict[tuple[ElfImage, int, str], Module] = {}
        self._failed: dict[Mapping, list[str]] = {}  # why it could not be opened, each time
        self._again: set[Mapping] = set()  # those that will be tried again
        self._changing: dict[str, None] = {}  # files that have gone, and those that came then
        self._fresh = False
        self._read_memory = read_memory
        self._generated = GeneratedCode(read_memory)
        self.generation = 0
        self._problems: list[str] = []

    def expire(self) -> None:
        """Allow the next miss to read the maps again, and what could not be opened to be tried again."""
        if self._again:
            self._modules = {mapping: m for mapping, m in self._modules.items() if mapping not in self._again}
            self._again.clear()
            self.refresh(force=True)
        self._fresh = False

    def refresh(self, *, force: bool = False) -> bool:
        """Read the maps; keep the modules whose mappings are still there.  `force`: a new generation.

        Return False when there are none: the process has ended, and what was known of it stays true.
        """
        self._fresh = True
        mappings = self._read_maps()
        if not mappings:
            return False
        self._mappings = mappings
        executable = tuple(m for m in self._mappings if m.executable)
        if executable == self._executable and not force:
            return True
        self._note_changes({*self._executable}, {*executable})
        self._executable = executable
        self._starts = [m.start for m in executable]
        self._modules = {m: self._modules[m] for m in executable if m in self._modules}
        self._same = {key: m for key, m in self._same.items() if m in self._modules.values()}
        self._let_go()
        self._generated.forget()
        self.generation += 1
        return True

    def _note_changes(self, before: set[Mapping], now: set[Mapping]) -> None:
        if any(mapping.is_file for mapping in before - now):
            self._changing |= dict.fromkeys(mapping.path for mapping in before ^ now if mapping.is_file)
            while len(self._changing) > _MOST_TOLD:
                del self._changing[next(iter(self._changing))]
        self._failed = {mapping: why for mapping, why in self._failed.items() if mapping in now}

    def _let_go(self) -> None:
        """Forget modules that have gone, but for the last ones.

        One that is not in use may only have to be opened again: it has gone if its path has, or is another's.
        """
        if len(self._seen) <= _MOST_GONE:
            return
        now = {module for module in self._modules.values() if module is not None}
        waiting = {mapping.path for mapping in self._mappings} - {module.path for module in now}
        gone = [(k, m) for k, m in self._seen.items() if m not in now and m.path not in waiting]
        for key, module in gone[:-_MOST_GONE]:
            for text in module.problems:
                self._lose(text)
            del self._seen[key]
            module.forget()

    @property
    def has_changed(self) -> bool:
        """Whether a file has gone that was mapped before."""
        return bool(self._changing)

    @property
    def changing(self) -> frozenset[Module]:
        """The modules in use that have come and gone, and may do so again."""
        if not self._changing:
            return frozenset()
        return frozenset(m for m in self._modules.values() if m is not None and m.path in self._changing)

    def is_mapped(self, module: Module) -> bool:
        """Whether code of a module was mapped, as of the last refresh."""
        return module in self._modules.values()

    def is_unsettled(self, address: int) -> bool:
        """Whether the module at `address` could not be opened, and will be tried again after `expire`."""
        return bool(self._again) and self._lookup(address) in self._again

    def reload(self, modules: Collection[Module]) -> frozenset[Module]:
        """Read the maps again; return what is now where `modules` were, one of which was replaced."""
        self._modules = {mapping: m for mapping, m in self._modules.items() if m not in modules}
        self._same = {key: m for key, m in self._same.items() if m not in modules}
        self.refresh(force=True)
        places = (module.address(module.image.executable[0][0]) for module in modules)
        return frozenset(module for place in places if (module := self.find(place)) is not None)

    @property
    def mappings(self) -> tuple[Mapping, ...]:
        """All mappings, as of the last refresh."""
        return self._mappings

    @property
    def modules(self) -> tuple[Module, ...]:
        """The modules that were asked for and could be opened, those unmapped since included."""
        return tuple(self._seen.values())

    @property
    def problems(self) -> list[str]:
        """What could not be opened, and what the modules have lost."""
        failed = (failures[-1] for failures in self._failed.values() if len(failures) < _TRIES)
        lost = dict.fromkeys([*self._problems, *failed])
        return [*lost, *(text for module in self._seen.values() for text in module.problems)]

    def mapping(self, address: int) -> Mapping | None:
        """Return the executable mapping at `address`."""
        found = self._lookup(address)
        if found is None and not self._fresh:
            self.refresh()
            found = self._lookup(address)
        return found

    def _lookup(self, address: int) -> Mapping | None:
        position = bisect_right(self._starts, address) - 1
        if position >= 0 and address < self._executable[position].end:
            return self._executable[position]
        return None

    def any_mapping(self, address: int) -> Mapping | None:
        """Return the mapping of whatever kind at `address`, as of the last refresh (stacks)."""
        mappings = self._mappings
        position = bisect_right(mappings, address, key=lambda m: m.start) - 1
        if position >= 0 and address < mappings[position].end:
            return mappings[position]
        return None

    def _next_mapping(self, address: int) -> Mapping | None:
        """Return the mapping at `address`, or the first one above."""
        position = bisect_right(self._mappings, address, key=lambda m: m.end)
        return self._mappings[position] if position < len(self._mappings) else None

    def find(self, address: int) -> Module | None:
        """Return the module whose code is at `address`; None for unmapped, anonymous or unreadable code."""
        mapping = self.mapping(address)
        if mapping is None:
            return None
        try:
            return self._modules[mapping]
        except KeyError:
            module = self._modules[mapping] = self._open(mapping)
            return module

    def code(self, address: int, size: int) -> bytes:
        """Return the code at `address` that lies in no file: `size` bytes, or what can be read of them."""
        return self._generated.at(address, size)

    def word(self, address: int, byteorder: ByteOrder) -> int | None:
        """Return the word that is in the target's memory now."""
        data = self._read_memory(address, 8)
        return None if data is None else int.from_bytes(data, byteorder)

    def is_code(self, address: int) -> bool:
        """Whether an address was executable at the last refresh."""
        return self._lookup(address) is not None

    def open_first(self) -> None:
        """Open one module, which also loads what opens them."""
        if self._executable:
            self.find(self._executable[0].start)

    def open_all(self) -> tuple[Module, ...]:
        """Return every module that has executable code and can be opened, in address order."""
        found = (self.find(mapping.start) for mapping in self._executable)
        return tuple(dict.fromkeys(module for module in found if module is not None))

    def _open(self, mapping: Mapping) -> Module | None:
        if not mapping.path:
            return self._open_moved(mapping)
        if not (mapping.is_file or mapping.path == "[vdso]"):
            return None
        try:
            image = self._open_image(mapping)
        except SfsampleError as failure:
            self._fail(mapping, f"{mapping.path}: {failure}")
            return None
        self._failed.pop(mapping, None)
        offset = 0 if mapping.path == "[vdso]" else mapping.offset
        bias = image.load_bias(mapping.start, offset, executable=mapping.executable)
        if bias is None:
            self._lose(f"{mapping.path}: no segment is loaded from file offset {offset:#x}")
            return None
        # one object can have several executable mappings (mprotect splits them)
        key = (mapping.path, mapping.device, mapping.inode, bias)
        if key not in self._same:
            module = Module(image, bias, mapping.path, self._tables_of(image, mapping.path))
            self._same[key] = self._seen.setdefault((image, bias, mapping.path), module)
        return self._same[key]

    def _open_moved(self, mapping: Mapping) -> Module | None:
        """Return the module whose own code was copied to anonymous memory at its place.

        Programs do that to have their code on huge pages; the rest of the file lies on both sides, or above
        where its code comes first (s390x; AArch64, where a gap may follow it).
        """
        below, above = self.any_mapping(mapping.start - 1), self._next_mapping(mapping.end)
        if above is None or not above.is_file or above.start - mapping.end >= _LARGEST_GAP:
            return None
        module = self._modules.get(above) or self._open(above)
        if module is None:
            return None
        start, end = module.vaddr(mapping.start), module.vaddr(mapping.end)
        first = min(segment.vaddr for segment in module.image.segments if segment.type == PT_LOAD)
        if start != first & -_PAGE and not _of_same_file(below, above):
            return None
        gap = module.vaddr(above.start)
        return module if _has_code(module, start, end) and not _has_code(module, end, gap) else None

    def _fail(self, mapping: Mapping, text: str) -> None:
        if mapping not in self._read_maps():
            self._again.add(mapping)  # unmapped by now (dlclose, exec, the end): no fault of the file
            return
        failures = self._failed.setdefault(mapping, [])
        failures.append(text)
        if len(failures) < _TRIES:
            self._again.add(mapping)
        else:
            self._lose(text)

    def _lose(self, text: str) -> None:
        if text not in self._problems and len(self._problems) < _MOST_TOLD:
            self._problems.append(text)


def _has_code(module: Module, start: int, end: int) -> bool:
    return any(max(low, start) < min(high, end) for low, high in module.image.executable)


def _of_same_file(one: Mapping | None, other: Mapping) -> bool:
    return one is not None and (one.path, one.device, one.inode) == (other.path, other.device, other.inode)
