"""Whether modules are still where they were, by marks in our own memory."""

import ctypes
import os
from types import SimpleNamespace

from sfsample.process.module_identity import ModuleIdentities
from sfsample.process.vm import Pieces

PAGE = 4096


class Memory:
    """Bytes of ours, that others may find at an address."""

    def __init__(self, text: bytes) -> None:
        self.buffer = ctypes.create_string_buffer(text, len(text))
        self.address = ctypes.addressof(self.buffer)


class Library:
    """A module whose mark the file says is `mark`, and which was mapped at `address`."""

    def __init__(self, address: int, mark: bytes, path: str = "/lib/a") -> None:
        self.path = path
        self._start = address
        self.image = SimpleNamespace(mark=(0, len(mark)), loaded=lambda *_: memoryview(mark))

    def address(self, vaddr: int) -> int:
        return self._start + vaddr


class Index:
    """An index in which a library is mapped at each of these addresses."""

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


def test_pieces_are_read_at_once_and_in_order():
    one, two = Memory(b"one"), Memory(b"two, longer")
    pieces = Pieces([(two.address, 11), (one.address, 3)])

    assert pieces.read(os.getpid()) == b"two, longerone"
    two.buffer[0:3] = b"TWO"
    assert pieces.read(os.getpid()) == b"TWO, longerone"


def test_nothing_is_read_where_one_piece_is_missing():
    assert not Pieces([(Memory(b"x").address, 1), (PAGE, 1)]).read(os.getpid())
    assert Pieces([]).read(os.getpid()) == b""


def test_one_of_many_that_was_replaced_is_noticed():
    memories = [Memory(b"mark %d" % number) for number in range(50)]
    libraries = [Library(memory.address, bytes(memory.buffer)) for memory in memories]
    marks = ModuleIdentities(Index(*libraries))

    assert not marks.replaced(os.getpid(), frozenset(libraries))
    memories[17].buffer[0] = b"M"
    assert marks.replaced(os.getpid(), frozenset(libraries))
    assert not marks.replaced(os.getpid(), frozenset(libraries[18:]))


def test_more_than_the_kernel_reads_at_once_are_read_all_the_same():
    memories = [Memory(b"mark %d" % number) for number in range(1100)]  # IOV_MAX is 1024
    libraries = [Library(memory.address, bytes(memory.buffer)) for memory in memories]
    marks = ModuleIdentities(Index(*libraries))

    assert not marks.replaced(os.getpid(), frozenset(libraries))
    memories[1099].buffer[0] = b"M"
    assert marks.replaced(os.getpid(), frozenset(libraries))


def test_one_that_has_gone_counts_as_replaced_and_code_that_was_moved_does_not():
    gone, elsewhere = Library(PAGE, b"mark"), Library(PAGE, b"mark", "/lib/b")
    index = Index(gone)
    marks = ModuleIdentities(index)

    assert not marks.replaced(os.getpid(), frozenset({gone})), "nobody can read it there"
    assert index.refreshed == 1
    assert not marks.replaced(os.getpid(), frozenset({elsewhere})), "another file lies there: it was moved"
    assert index.refreshed == 1


def test_what_was_mapped_since_is_looked_at_anew():
    memory = Memory(b"mark")
    library = Library(memory.address, b"mark")
    index = Index(library)
    marks = ModuleIdentities(index)
    assert not marks.replaced(os.getpid(), frozenset({library}))

    memory.buffer[0] = b"M"
    assert marks.replaced(os.getpid(), frozenset({library}))
    index.mappings = (object(),)
    index.unmap(library)
    index.is_mapped = lambda _module: True
    assert not marks.replaced(os.getpid(), frozenset({library}))
