"""Finds the module that is mapped at an address of one process now.

The caller's functions `read_maps` and `open_image` do the I/O.  If an address is in no mapping, the maps are
read again, but only once after each `allow_refresh`, so a wrong return address costs little.  `generation`
increases when an executable mapping changes.  A cache with addresses as keys is valid only in one generation.

If a file cannot be opened, the target may be mapping or unmapping the file now (dlopen, dlclose), so
`ModuleMap` tries again a few times.  For the names of functions, `ModuleMap` keeps the last unmapped modules,
but not all unmapped modules, because a process may load new modules without end.
"""

import re
from bisect import bisect_right
from collections.abc import Callable, Collection

from sfsample.core.arch import ByteOrder
from sfsample.core.memory import ReadMemory
from sfsample.errors import SfsampleError
from sfsample.formats.elf.image import PAGE, PT_LOAD, ElfImage
from sfsample.modules.mapping import Mapping, base_of
from sfsample.modules.module import Module
from sfsample.modules.unwind_tables import UnwindTables

_MAX_OPEN_ATTEMPTS = 3  # attempts for each mapping
_COMPARED_PAGES = 16  # pages in which a copy of code is compared with the file
_MAX_UNMAPPED_MODULES = 256  # unmapped modules that are kept; each has a file open
_MAX_PROBLEMS = 10_000
_MAX_UNSTABLE_PATHS = 10_000
_MAX_SEGMENT_GAP = 0x20000  # bytes: two pages of 64 KiB; a gap between segments is smaller
# A JIT maps a page of its jitdump as code, so that perf notices the file (Linux jitdump-specification.txt).
_JIT_DUMP = re.compile(r"/jit-\d+\.dump$")
_MAX_CODE_PAGES = 256  # pages of generated code that are kept
ReadCode = Callable[[int, int], bytes]  # arguments: address, size; returns up to `size` bytes
ReadMaps = Callable[[], tuple[Mapping, ...]]
OpenImage = Callable[[Mapping], ElfImage]
TablesOf = Callable[[ElfImage], UnwindTables]
IsCode = Callable[[int], bool]


class ModuleMap:
    """The executable mappings of one process and their modules; `tables_of` returns an image's tables."""

    def __init__(
        self, read_maps: ReadMaps, open_image: OpenImage,
        read_memory: ReadMemory = lambda *_: None, tables_of: TablesOf = UnwindTables,
    ) -> None:  # fmt: skip
        self._read_maps, self._open_image, self._tables_of = read_maps, open_image, tables_of
        self.mappings: tuple[Mapping, ...] = ()  # all mappings at the last refresh, in address order
        self._executable: tuple[Mapping, ...] = ()
        self._starts: list[int] = []
        self._modules: dict[Mapping, Module | None] = {}
        self._mapped: dict[tuple[str, str, int, int], Module] = {}  # key: path, device, inode, load bias
        self._all_modules: dict[tuple[ElfImage, int, str], Module] = {}  # mapped and unmapped modules
        self._open_failures: dict[Mapping, list[str]] = {}  # errors, one for each attempt
        self._to_retry: set[Mapping] = set()  # mappings that could not be opened, and will be tried again
        # paths of unmapped files, and of files that were new in the same `refresh`
        self._unstable_paths: dict[str, None] = {}
        self._is_fresh = False  # True: the maps were read after the last `allow_refresh`
        self._read_memory = read_memory
        self._code_pages: dict[int, bytes] = {}  # address -> page of generated code
        self.generation = 0
        self._problems: list[str] = []

    def allow_refresh(self) -> None:
        """Allow one more read of the maps at an unknown address; retry modules that could not be opened."""
        if self._to_retry:
            self._modules = {m: module for m, module in self._modules.items() if m not in self._to_retry}
            self._to_retry.clear()
            self.refresh(force=True)
        self._is_fresh = False

    def refresh(self, *, force: bool = False) -> bool:
        """Read the maps, and keep the modules that are still mapped.

        `force`: begin a new generation even if no executable mapping has changed.  If the maps are empty, the
        process has ended: return False, and keep the last mappings.
        """
        self._is_fresh = True
        mappings = self._read_maps()
        if not mappings:
            return False
        self.mappings = mappings
        executable = tuple(m for m in self.mappings if m.executable)
        if executable == self._executable and not force:
            return True
        self._note_unmapped_files({*self._executable}, {*executable})
        self._executable = executable
        self._starts = [m.start for m in executable]
        self._modules = {m: self._modules[m] for m in executable if m in self._modules}
        self._mapped = {key: m for key, m in self._mapped.items() if m in self._modules.values()}
        self._close_unmapped()
        self._code_pages.clear()
        self.generation += 1
        return True

    def _note_unmapped_files(self, before: set[Mapping], now: set[Mapping]) -> None:
        if any(mapping.is_file for mapping in before - now):
            self._unstable_paths |= dict.fromkeys(mapping.path for mapping in before ^ now if mapping.is_file)
            while len(self._unstable_paths) > _MAX_UNSTABLE_PATHS:
                del self._unstable_paths[next(iter(self._unstable_paths))]
        self._open_failures = {m: failures for m, failures in self._open_failures.items() if m in now}

    def _close_unmapped(self) -> None:
        """Close the modules that were unmapped, except the last `_MAX_UNMAPPED_MODULES`.

        A module that is not in use may still be mapped: `find` may return it again.  A module is surely
        unmapped if no mapping has its path, or if another module with its path is in use.
        """
        if len(self._all_modules) <= _MAX_UNMAPPED_MODULES:
            return
        in_use = {module for module in self._modules.values() if module is not None}
        unopened = {mapping.path for mapping in self.mappings} - {module.path for module in in_use}
        not_in_use = (item for item in self._all_modules.items() if item[1] not in in_use)
        unmapped = [(key, module) for key, module in not_in_use if module.path not in unopened]
        for key, module in unmapped[:-_MAX_UNMAPPED_MODULES]:
            for problem in module.problems:
                self._add_problem(problem)
            del self._all_modules[key]
            module.close_file()

    @property
    def has_unmapped_files(self) -> bool:
        """True if a file has lost an executable mapping since the first `refresh` (dlclose, execve)."""
        return bool(self._unstable_paths)

    @property
    def unstable_modules(self) -> frozenset[Module]:
        """The modules in use whose file was unmapped before, or mapped when another file was unmapped."""
        if not self._unstable_paths:
            return frozenset()
        in_use = filter(None, self._modules.values())
        return frozenset(module for module in in_use if module.path in self._unstable_paths)

    def is_mapped(self, module: Module) -> bool:
        """Return True if code of a module was mapped at the last refresh."""
        return module in self._modules.values()

    def is_code_of(self, mapping: Mapping, modules: Collection[Module]) -> bool:
        """Return True if a mapping holds code of one of these modules: part of the file, or a copy."""
        if mapping.is_file:
            return any(mapping.path == module.path for module in modules)
        return self._modules.get(mapping) in modules

    def will_retry_open(self, address: int) -> bool:
        """Return True if the module at `address` could not be opened, and `allow_refresh` will try again."""
        return bool(self._to_retry) and self._lookup(address) in self._to_retry

    def reload(self, modules: Collection[Module]) -> frozenset[Module]:
        """Read the maps after one of `modules` was replaced; return the modules now at their addresses."""
        self._modules = {mapping: m for mapping, m in self._modules.items() if m not in modules}
        self._mapped = {key: m for key, m in self._mapped.items() if m not in modules}
        self.refresh(force=True)
        addresses = (module.address(module.image.executable[0][0]) for module in modules)
        return frozenset(module for address in addresses if (module := self.find(address)) is not None)

    @property
    def modules(self) -> tuple[Module, ...]:
        """The modules that were opened so far, except unmapped modules that are no longer kept."""
        return tuple(self._all_modules.values())

    @property
    def problems(self) -> list[str]:
        """Texts about mappings that could not be opened, and the problems of the modules."""
        all_failures = self._open_failures.values()
        retried = (failures[-1] for failures in all_failures if len(failures) < _MAX_OPEN_ATTEMPTS)
        problems = dict.fromkeys([*self._problems, *retried])
        return [*problems, *(text for module in self._all_modules.values() for text in module.problems)]

    def mapping(self, address: int) -> Mapping | None:
        """Return the executable mapping at `address`, or None, perhaps after another read of the maps."""
        mapping = self._lookup(address)
        if mapping is None and not self._is_fresh:
            self.refresh()
            mapping = self._lookup(address)
        return mapping

    def _lookup(self, address: int) -> Mapping | None:
        position = bisect_right(self._starts, address) - 1
        if position >= 0 and address < self._executable[position].end:
            return self._executable[position]
        return None

    def any_mapping(self, address: int) -> Mapping | None:
        """Return the mapping of any kind (stacks too) that was at `address` at the last refresh, or None."""
        mapping = self._next_mapping(address)
        return mapping if mapping is not None and mapping.start <= address else None

    def _next_mapping(self, address: int) -> Mapping | None:
        """Return the mapping at `address`, or the first above it, or None."""
        position = bisect_right(self.mappings, address, key=lambda m: m.end)
        return self.mappings[position] if position < len(self.mappings) else None

    def find(self, address: int) -> Module | None:
        """Return the module with the code at `address`; None for unmapped, anonymous or unreadable code."""
        mapping = self.mapping(address)
        if mapping is None:
            return None
        try:
            return self._modules[mapping]
        except KeyError:
            module = self._modules[mapping] = self._open(mapping)
            return module

    def may_be_returned_to(self, address: int) -> bool:
        """Return True if the code at `address` follows a call, or cannot be read."""
        module = self.find(address - 1)
        return module is None or module.follows_call(address)

    def call_target(self, return_address: int) -> int | None:
        """Return the target of the call before an address, or None; for a PLT stub, the stub's target."""
        caller = self.find(return_address - 1)
        target = caller.call_target(return_address) if caller else None
        stubs = self.find(target) if target is not None else None
        slot = stubs.stub_slot(target) if stubs and target is not None else None
        return target if stubs is None or slot is None else self.word(slot, stubs.image.byteorder)

    def code(self, address: int, size: int) -> bytes:
        """Return up to `size` bytes (at most a page) of code that lies in no file; fewer if memory ends.

        Each page of the target's memory is read once.  The bytes are not certain: the target may have written
        other code there after the capture of the thread.
        """
        start = address & -PAGE
        code = self._code_page(start)
        if address + size > start + PAGE and len(code) == PAGE:
            code += self._code_page(start + PAGE)
        return code[address - start : address - start + size]

    def _code_page(self, start: int) -> bytes:
        page = self._code_pages.get(start)
        if page is None:
            page = self._read_memory(start, PAGE)
            if page is None:  # failure, not cached: the target may be changing the mapping now
                return b""
            if len(self._code_pages) >= _MAX_CODE_PAGES:
                self._code_pages.clear()
            self._code_pages[start] = page
        return page

    def word(self, address: int, byteorder: ByteOrder) -> int | None:
        """Return the 8-byte word at `address` in the target's memory; None: not readable."""
        data = self._read_memory(address, 8)
        return None if data is None else int.from_bytes(data, byteorder)

    def is_code(self, address: int) -> bool:
        """Return True if `address` was executable at the last refresh."""
        return self._lookup(address) is not None

    def open_first(self) -> None:
        """Open one module, so that the Python code for this is imported before a thread is stopped."""
        if self._executable:
            self.find(self._executable[0].start)

    def open_all(self) -> tuple[Module, ...]:
        """Return every module that has executable code and can be opened, in address order."""
        modules = (self.find(mapping.start) for mapping in self._executable)
        return tuple(dict.fromkeys(module for module in modules if module is not None))

    def _open(self, mapping: Mapping) -> Module | None:
        if not mapping.path:
            return self._open_copied_code(mapping)
        if not (mapping.is_file or mapping.path == "[vdso]") or _JIT_DUMP.search(mapping.path):
            return None
        try:
            image = self._open_image(mapping)
        except SfsampleError as failure:
            self._note_open_failure(mapping, f"{mapping.path}: {failure}")
            return None
        self._open_failures.pop(mapping, None)
        offset = 0 if mapping.path == "[vdso]" else mapping.offset
        base = base_of(mapping, self.mappings)
        bias = image.load_bias(mapping.start, offset, executable=mapping.executable, base=base)
        if bias is None:
            self._add_problem(f"{mapping.path}: no segment is loaded from file offset {offset:#x}")
            return None
        # one object can have several executable mappings (mprotect(2) splits them)
        key = (mapping.path, mapping.device, mapping.inode, bias)
        if key not in self._mapped:
            module = Module(image, bias, mapping.path, self._tables_of(image))
            self._mapped[key] = self._all_modules.setdefault((image, bias, mapping.path), module)
        return self._mapped[key]

    def _open_copied_code(self, mapping: Mapping) -> Module | None:
        """Return the module whose code is copied to the anonymous memory of `mapping`, or None.

        Programs replace their code by such a copy on huge pages.  Other segments of the file are mapped below
        and above the copy.  If code is the first segment (s390x, AArch64), all other segments are above,
        perhaps after a gap.
        """
        below, above = self.any_mapping(mapping.start - 1), self._next_mapping(mapping.end)
        if above is None or not above.is_file or above.start - mapping.end >= _MAX_SEGMENT_GAP:
            return None
        module = self._modules.get(above) or self._open(above)
        if module is None:
            return None
        start, end = module.vaddr(mapping.start), module.vaddr(mapping.end)
        first = min(segment.vaddr for segment in module.image.segments if segment.type == PT_LOAD)
        file_below = below and (below.path, below.device, below.inode)
        if start != first & -PAGE and file_below != (above.path, above.device, above.inode):
            return None
        gap_end = module.vaddr(above.start)
        is_place_of_code = _has_code(module, start, end) and not _has_code(module, end, gap_end)
        return module if is_place_of_code and self._is_copy(module, mapping) else None

    def _is_copy(self, module: Module, mapping: Mapping) -> bool:
        """Return True if some pages of a mapping, evenly spread, equal the same pages of the file."""
        step = max(PAGE, (mapping.end - mapping.start) // _COMPARED_PAGES & -PAGE)
        for address in range(mapping.start, mapping.end, step):
            expected = module.image.loaded(module.vaddr(address), PAGE)
            if expected is not None and self._read_memory(address, PAGE) != bytes(expected):
                return False
        return True

    def _note_open_failure(self, mapping: Mapping, problem: str) -> None:
        if mapping not in self._read_maps():
            self._to_retry.add(mapping)  # mapping that no longer exists (dlclose, execve)
            return
        failures = self._open_failures.setdefault(mapping, [])
        failures.append(problem)
        if len(failures) < _MAX_OPEN_ATTEMPTS:
            self._to_retry.add(mapping)
        else:
            self._add_problem(problem)

    def _add_problem(self, problem: str) -> None:
        if problem not in self._problems and len(self._problems) < _MAX_PROBLEMS:
            self._problems.append(problem)


def _has_code(module: Module, start: int, end: int) -> bool:
    return any(max(low, start) < min(high, end) for low, high in module.image.executable)
