"""Detects that a module of a stack was unmapped and another one mapped at the same addresses.

dlclose(3) and dlopen(3) can put another library at the same addresses.  So one system call reads the
build-ids of all modules of a stack from the target's memory.  sfsample compares these bytes with those in the
files.  Only if they differ, sfsample checks each module by itself.
"""

import os

from sfsample.modules.mapping import DELETED, Mapping
from sfsample.modules.module import Module
from sfsample.modules.module_map import ModuleMap
from sfsample.process.vm import Pieces, read_memory

_MAX_MODULE_SETS = 256  # entries at which the cache is emptied


class ModuleIdentities:
    """The fingerprints of the modules of one process."""

    def __init__(self, modules: ModuleMap) -> None:
        self._map = modules
        self._odd_links: set[Mapping] = set()  # mappings with another path in map_files than in maps
        self._mappings: tuple[Mapping, ...] = ()  # memory map for which `_sets` is valid
        # set of modules -> addresses of the fingerprints in memory, and their bytes in the files
        self._sets: dict[frozenset[Module], tuple[Pieces, bytes]] = {}

    def replaced(self, tid: int, modules: frozenset[Module]) -> bool:
        """Return True if one of these modules is no longer mapped at its address in thread `tid`."""
        if self._mappings is not self._map.mappings or len(self._sets) > _MAX_MODULE_SETS:
            self._mappings = self._map.mappings
            self._sets.clear()
            self._odd_links.clear()
        if modules not in self._sets:
            found = [*filter(None, map(self._fingerprint, modules))]
            pieces = Pieces([(address, len(data)) for address, data in found])
            self._sets[modules] = pieces, b"".join(data for _, data in found)
        pieces, expected = self._sets[modules]
        if pieces.read(tid) == expected:
            return False
        return any(self._is_replaced(tid, module) for module in modules)

    def is_mapped(self, tid: int, mapping: Mapping) -> bool:
        """Return True if a file is still mapped at exactly these addresses, or if the kernel does not say.

        Two files may have the same bytes, so only the kernel knows which of them is mapped.  Reading the link
        takes 3 us; reading the maps takes 50 us and more.  Source: proc(5), /proc/PID/map_files.
        """
        if not mapping.is_file:
            return True
        try:
            link = os.readlink(f"/proc/{tid}/map_files/{mapping.start:x}-{mapping.end:x}")
        except FileNotFoundError:
            link = ""
        except OSError:
            return True
        return link == mapping.path + (DELETED if mapping.deleted else "") or mapping in self._odd_links

    def believe(self, mapping: Mapping) -> None:
        """Note that the maps still have a mapping whose link has another path, or is missing."""
        self._odd_links.add(mapping)

    def _fingerprint(self, module: Module) -> tuple[int, bytes] | None:
        """Return address and bytes of a module's fingerprint; None: only the module's code was mapped."""
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
