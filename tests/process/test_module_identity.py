"""Replaced modules are detected by fingerprints in memory; here, in the memory of the test itself."""

import ctypes
import os
from types import SimpleNamespace

from sfsample.process.module_identity import ModuleIdentities
from sfsample.process.vm import Pieces

PAGE = 4096


class Memory:
    """Bytes at a known address."""

    def __init__(self, text: bytes) -> None:
        self.buffer = ctypes.create_string_buffer(text, len(text))
        self.address = ctypes.addressof(self.buffer)


class Library:
    """A module that was mapped at `address`, whose file has the given fingerprint."""

    def __init__(self, address: int, fingerprint: bytes, path: str = "/lib/a") -> None:
        self.path = path
        self._start = address
        self.image = SimpleNamespace(
            fingerprint_range=(0, len(fingerprint)), loaded=lambda *_: memoryview(fingerprint)
        )

    def address(self, vaddr: int) -> int:
        return self._start + vaddr


class FakeModuleMap:
    """A module map in which these libraries are mapped at their addresses."""

    def __init__(self, *libraries: Library) -> None:
        self._libraries = {library.address(0): library.path for library in libraries}
        self.mappings = (object(),)
        self.refreshed = 0

    def any_mapping(self, address: int):
        path = self._libraries.get(address)
        return None if path is None else SimpleNamespace(path=path)

    def is_mapped(self, _module) -> bool:
        return False

    def refresh(self) -> None:
        self.refreshed += 1

    def unmap(self, library: Library) -> None:
        del self._libraries[library.address(0)]


def test_pieces_are_read_together_and_in_order():
    first, second = Memory(b"one"), Memory(b"two, longer")
    pieces = Pieces([(second.address, 11), (first.address, 3)])

    assert pieces.read(os.getpid()) == b"two, longerone"
    second.buffer[0:3] = b"TWO"
    assert pieces.read(os.getpid()) == b"TWO, longerone"


def test_unreadable_piece_makes_the_result_empty():
    assert not Pieces([(Memory(b"x").address, 1), (PAGE, 1)]).read(os.getpid())
    assert Pieces([]).read(os.getpid()) == b""


def test_one_replaced_module_of_many_is_detected():
    memories = [Memory(b"build-id %d" % number) for number in range(50)]
    libraries = [Library(memory.address, bytes(memory.buffer)) for memory in memories]
    identities = ModuleIdentities(FakeModuleMap(*libraries))

    assert not identities.replaced(os.getpid(), frozenset(libraries))
    memories[17].buffer[0] = b"B"
    assert identities.replaced(os.getpid(), frozenset(libraries))
    assert not identities.replaced(os.getpid(), frozenset(libraries[18:]))


def test_more_modules_than_one_system_call_reads_are_checked():
    memories = [Memory(b"build-id %d" % number) for number in range(1100)]  # IOV_MAX is 1024
    libraries = [Library(memory.address, bytes(memory.buffer)) for memory in memories]
    identities = ModuleIdentities(FakeModuleMap(*libraries))

    assert not identities.replaced(os.getpid(), frozenset(libraries))
    memories[1099].buffer[0] = b"B"
    assert identities.replaced(os.getpid(), frozenset(libraries))


def test_unreadable_module_and_moved_code_do_not_count_as_replaced():
    unreadable, moved = Library(PAGE, b"build-id"), Library(PAGE, b"build-id", "/lib/b")
    modules = FakeModuleMap(unreadable)
    identities = ModuleIdentities(modules)

    assert not identities.replaced(os.getpid(), frozenset({unreadable})), "no byte can be compared"
    assert modules.refreshed == 1
    assert not identities.replaced(os.getpid(), frozenset({moved})), "another file is mapped there"
    assert modules.refreshed == 1


def test_changed_mappings_empty_the_cache():
    memory = Memory(b"build-id")
    library = Library(memory.address, b"build-id")
    modules = FakeModuleMap(library)
    identities = ModuleIdentities(modules)
    assert not identities.replaced(os.getpid(), frozenset({library}))

    memory.buffer[0] = b"B"
    assert identities.replaced(os.getpid(), frozenset({library}))
    modules.mappings = (object(),)
    modules.unmap(library)
    modules.is_mapped = lambda _module: True
    assert not identities.replaced(os.getpid(), frozenset({library}))
