"""Replaced modules are detected by fingerprints in memory; here, in the memory of the test itself.

Replaced pages are detected by the kernel's answers, or else by the memory map.
"""

import ctypes
import os
from types import SimpleNamespace

import pytest

from sfsample.modules.mapping import Place
from sfsample.process import module_identity
from sfsample.process.module_identity import ModuleIdentities
from sfsample.process.procfs import ProcFs
from sfsample.process.vm import Pieces
from tests.modules.fake_process import SIZE, TEXT, A, B, FakeProcess, mapping

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
        self.mappings = (mapping(0),)
        self.refreshed = 0

    def any_mapping(self, address: int):
        path = self._libraries.get(address)
        return None if path is None else SimpleNamespace(path=path)

    def is_mapped(self, _module) -> bool:
        return False

    def is_code_of(self, _mapping, _modules) -> bool:
        return False

    def refresh(self) -> None:
        self.refreshed += 1

    def unmap(self, library: Library) -> None:
        del self._libraries[library.address(0)]


def identities_of(modules: FakeModuleMap) -> ModuleIdentities:
    return ModuleIdentities(modules, lambda _: None)


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
    identities = identities_of(FakeModuleMap(*libraries))

    assert not identities.replaced(os.getpid(), frozenset(libraries))
    memories[17].buffer[0] = b"B"
    assert identities.replaced(os.getpid(), frozenset(libraries))
    assert not identities.replaced(os.getpid(), frozenset(libraries[18:]))


def test_more_modules_than_one_system_call_reads_are_checked():
    memories = [Memory(b"build-id %d" % number) for number in range(1100)]  # IOV_MAX is 1024
    libraries = [Library(memory.address, bytes(memory.buffer)) for memory in memories]
    identities = identities_of(FakeModuleMap(*libraries))

    assert not identities.replaced(os.getpid(), frozenset(libraries))
    memories[1099].buffer[0] = b"B"
    assert identities.replaced(os.getpid(), frozenset(libraries))


def test_unreadable_module_and_moved_code_do_not_count_as_replaced():
    unreadable, moved = Library(PAGE, b"build-id"), Library(PAGE, b"build-id", "/lib/b")
    modules = FakeModuleMap(unreadable)
    identities = identities_of(modules)

    assert not identities.replaced(os.getpid(), frozenset({unreadable})), "no byte can be compared"
    assert modules.refreshed == 1
    assert not identities.replaced(os.getpid(), frozenset({moved})), "another file is mapped there"
    assert modules.refreshed == 1


def test_changed_mappings_empty_the_cache():
    memory = Memory(b"build-id")
    library = Library(memory.address, b"build-id")
    modules = FakeModuleMap(library)
    identities = identities_of(modules)
    assert not identities.replaced(os.getpid(), frozenset({library}))

    memory.buffer[0] = b"B"
    assert identities.replaced(os.getpid(), frozenset({library}))
    modules.mappings = (mapping(0),)
    modules.unmap(library)
    modules.is_mapped = lambda _module: True
    assert not identities.replaced(os.getpid(), frozenset({library}))


# -- replaced pages: the kernel is asked, or the memory map is read again


OF_A, OF_B = mapping(A), mapping(A, "/lib/b.so", inode=2)
ELSEWHERE = mapping(A, offset=TEXT + SIZE)


class Asked(FakeProcess):
    """A process whose kernel answers from the present maps; `minor`: the one that it states, if another."""

    minor: int | None = None

    def __init__(self, *maps, answers: bool = True) -> None:
        super().__init__(*maps)
        self.answers = answers
        self.modules.refresh()
        self.identities = ModuleIdentities(self.modules, self.place_at)

    def place_at(self, address):
        if not self.answers:
            return None
        found = next((m.place for m in self.maps if m.start <= address < m.end), Place())
        return found._replace(minor=self.minor or found.minor)

    def moved(self) -> bool:
        """Look whether the modules that are known at A and B have moved."""
        return self.identities.moved(frozenset(filter(None, map(self.modules.find, (A, B)))))


@pytest.mark.parametrize("now", [OF_B, ELSEWHERE, OF_A._replace(end=A + 2 * SIZE), mapping(B)])
def test_page_of_another_place_is_noticed_once(now):
    process = Asked(OF_A)
    assert process.modules.find(A)
    assert not process.moved()
    assert process.read_count == 1, "an ordinary sample reads no maps"

    process.maps = (now,)
    assert process.moved()
    assert process.modules.mappings == (now,)
    assert not process.moved()


def test_module_that_has_come_is_checked_before_the_next_capture():
    process = Asked(OF_A)
    process.modules.find(A)
    process.maps = (OF_B,)
    assert process.moved()
    assert {module.path for module in process.modules.unstable_modules} == {"/lib/b.so"}


def test_page_that_was_there_only_for_a_moment_is_noticed():
    process = Asked(OF_A)
    process.modules.find(A)
    process.place_at = lambda _: OF_B.place
    process.identities = ModuleIdentities(process.modules, process.place_at)
    assert [process.moved() for _ in range(3)] == [True] * 3


def test_page_of_a_file_of_the_same_number_on_another_device_is_noticed():
    process = Asked(OF_A)
    process.modules.find(A)
    process.maps = (OF_A._replace(device="08:02"),)
    assert process.moved()
    process.maps = (OF_A,)
    assert process.moved()


def test_kernel_that_states_two_devices_for_a_file_is_believed():
    process = Asked(OF_A, mapping(B, "/lib/b.so", inode=2))
    process.minor = 0x2A
    process.modules.find(A)
    assert process.moved()
    assert [process.moved() for _ in range(3)] == [False] * 3
    process.maps = (ELSEWHERE, process.maps[1])
    assert process.moved()


def test_modules_of_a_process_that_has_ended_stay_as_they_were():
    process = Asked(OF_A)
    process.modules.find(A)
    process.maps = ()
    assert not process.moved()


def test_without_answers_the_maps_are_read_now_and_then(monkeypatch):
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(module_identity.time, "monotonic", lambda: clock.now)
    process = Asked(OF_A, answers=False)
    process.modules.find(A)
    assert not process.moved()
    assert process.read_count == 2

    process.maps = (OF_B,)
    assert not process.moved()
    assert process.read_count == 2
    clock.now += 0.05
    assert process.moved()

    process.modules.find(A)  # from now on, the file at A may change at any time
    process.maps = (OF_A,)
    assert process.moved()


def test_kernel_answers_what_the_maps_say():
    proc = ProcFs(os.getpid())
    try:
        code = [m for m in proc.maps() if m.executable and m.is_file]
        answers = [proc.place_at(m.start) for m in code]
        assert answers in ([m.place for m in code], [None] * len(code))  # None: before Linux 6.11
        assert proc.place_at(0) in (Place(), None)
        assert proc.maps()
        assert proc.place_at(code[0].start) == answers[0]
    finally:
        proc.close()
