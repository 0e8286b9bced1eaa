"""Detects that other code was mapped at the addresses of a module since the memory map was read.

dlclose(3) and dlopen(3) can put another library at the same addresses.  So sfsample reads the build-ids of
all modules of a stack from the target's memory, with one system call.  If a build-id differs from the
build-id in the file, sfsample checks each module separately.

mmap(2) with MAP_FIXED can replace a single page by a page of another file, or of the same file.  So sfsample
asks the kernel which part of which file is mapped now.  Before Linux 6.11, sfsample must read the whole map.
"""

import time
from collections.abc import Callable
from typing import NamedTuple

from sfsample.modules.mapping import Mapping, Place
from sfsample.modules.module import Module
from sfsample.modules.module_map import ModuleMap
from sfsample.process.vm import Pieces, read_memory

_MAX_MODULE_SETS = 256  # entries in the cache; a full cache is emptied
_MIN_READ_S = 0.05  # seconds between two readings of the memory map
_MAX_READ_SHARE = 0.01  # share of the time that sfsample spends on reading the memory map


class _Identity(NamedTuple):
    """The bytes and mappings that identify a set of modules, in one version of the memory map."""

    pieces: Pieces  # addresses and sizes of the fingerprints in memory
    fingerprints: bytes  # the fingerprints in the files: build-ids, or ELF headers
    code: tuple[tuple[Mapping, Place], ...]  # mappings of all code of the modules


class ModuleIdentities:
    """The identities of the modules of one process.  `place_at` is the method `ProcFs.place_at`."""

    def __init__(self, modules: ModuleMap, place_at: Callable[[int], Place | None]) -> None:
        self._map, self._place_at = modules, place_at
        self._next_read_s = 0.0  # time of the next reading of the memory map, before Linux 6.11
        # device numbers of one file in the map and from `place_at`: SUSE's kernel shows two numbers for btrfs
        self._devices: set[tuple[tuple[int, ...], tuple[int, ...]]] = set()
        self._mappings: tuple[Mapping, ...] = ()  # memory map for which `_sets` is valid
        self._sets: dict[frozenset[Module], _Identity] = {}

    def replaced(self, tid: int, modules: frozenset[Module]) -> bool:
        """Return True if a module of `modules` is no longer mapped at its address in thread `tid`."""
        identity = self._identity(modules)
        if identity.pieces.read(tid) == identity.fingerprints:
            return False
        return any(self._is_replaced(tid, module) for module in modules)

    def moved(self, modules: frozenset[Module], without_module: frozenset[int] = frozenset()) -> bool:
        """If code of `modules` is no longer mapped as before, read the maps again and return True.

        Also check the code at the addresses `without_module` (memory without a file, or a file that is no ELF
        file).  Return False if the process has ended.
        """
        others = {mapping: mapping.place for pc in without_module if (mapping := self._map.mapping(pc))}
        for mapping, expected in [*self._identity(modules).code, *others.items()]:
            place = self._place_at(mapping.start)
            if place is None:
                return self._moved_in_maps(modules)
            devices = expected[4:], place[4:]
            is_same = place[:4] == expected[:4]  # comparison without the devices
            has_no_file = place.inode == expected.inode == 0  # memory that may grow and shrink
            if place != expected and not has_no_file and not (is_same and devices in self._devices):
                has_maps = self._map.refresh()
                if is_same and self._map.any_mapping(mapping.start) == mapping:
                    self._devices.add(devices)
                self._open_what_is_there(mapping)
                return has_maps
        return False

    def _moved_in_maps(self, modules: frozenset[Module]) -> bool:
        """Do the work of `moved` before Linux 6.11.  Without unstable modules, read the maps seldom."""
        now = time.monotonic()
        if now < self._next_read_s and not modules & self._map.unstable_modules:
            return False
        code = self._identity(modules).code
        self._map.refresh()
        self._next_read_s = now + max(_MIN_READ_S, (time.monotonic() - now) / _MAX_READ_SHARE)
        changed = [mapping for mapping, _ in code if self._map.any_mapping(mapping.start) != mapping]
        for mapping in changed:
            self._open_what_is_there(mapping)
        return bool(changed)

    def _open_what_is_there(self, replaced: Mapping) -> None:
        """Open the modules that have replaced a mapping; the next capture first checks these modules."""
        for mapping in self._map.mappings:
            if mapping.executable and replaced.start <= mapping.start < replaced.end:
                self._map.find(mapping.start)

    def _identity(self, modules: frozenset[Module]) -> _Identity:
        if self._mappings is not self._map.mappings or len(self._sets) > _MAX_MODULE_SETS:
            self._mappings = self._map.mappings
            self._sets.clear()
        if modules not in self._sets:
            found = [*filter(None, map(self._fingerprint, modules))]
            pieces = Pieces([(address, len(data)) for address, data in found])
            code = (m for m in self._mappings if m.executable and self._map.is_code_of(m, modules))
            fingerprints = b"".join(data for _, data in found)
            self._sets[modules] = _Identity(pieces, fingerprints, tuple((m, m.place) for m in code))
        return self._sets[modules]

    def _fingerprint(self, module: Module) -> tuple[int, bytes] | None:
        """Return address and bytes of a module's fingerprint; None: the code was mapped without it."""
        vaddr, size = module.image.fingerprint_range
        address, data = module.address(vaddr), module.image.loaded(vaddr, size)
        mapping = self._map.any_mapping(address)
        not_mapped = self._map.is_mapped(module) if mapping is None else mapping.path != module.path
        return None if data is None or not_mapped else (address, bytes(data))

    def _is_replaced(self, tid: int, module: Module) -> bool:
        fingerprint = self._fingerprint(module)
        if fingerprint is None:
            return False
        address, expected = fingerprint
        found = read_memory(tid, address, len(expected))
        if found is not None:
            return found != expected
        # the module was unmapped (perhaps only for a moment) or is unreadable, or the thread has ended
        self._map.refresh()
        mapping = self._map.any_mapping(address)
        unmapped = mapping is None or mapping.path != module.path
        return unmapped or read_memory(tid, address, len(expected)) is not None
