"""Whether modules are still what is mapped at their places.

Law: what tells one file from another (its build-id, in memory) is read of all modules of a stack in one
system call, and compared with what the files say; only if that differs is each module looked at.  dlclose(3)
and dlopen(3) can put another library at the same addresses, and nothing else would tell.
"""

from sfsample.modules.mapping import Mapping
from sfsample.modules.module import Module
from sfsample.modules.module_map import ModuleMap
from sfsample.process.vm import Pieces, read_memory

_MOST = 256  # sets of modules that are kept


class _Marks:
    """Where the marks of some modules lie, and what the files say of them."""

    def __init__(self, places: list[tuple[int, bytes]]) -> None:
        self._expected = b"".join(mark for _, mark in places)
        self._pieces = Pieces([(address, len(mark)) for address, mark in places])

    def are_there(self, tid: int) -> bool:
        """Whether all of them are in the memory of thread `tid`."""
        return self._pieces.read(tid) == self._expected


class ModuleIdentities:
    """The marks of the modules of one process."""

    def __init__(self, index: ModuleMap) -> None:
        self._index = index
        self._mappings: tuple[Mapping, ...] = ()
        self._marks: dict[frozenset[Module], _Marks] = {}  # as of these mappings

    def replaced(self, tid: int, modules: frozenset[Module]) -> bool:
        """Whether one of these modules is no longer what thread `tid` sees at its place."""
        if self._mappings is not self._index.mappings or len(self._marks) > _MOST:
            self._mappings = self._index.mappings
            self._marks.clear()
        marks = self._marks.get(modules)
        if marks is None:
            places = filter(None, map(self._place, modules))
            marks = self._marks[modules] = _Marks([*places])
        return not marks.are_there(tid) and any(self._is_replaced(tid, module) for module in modules)

    def _place(self, module: Module) -> tuple[int, bytes] | None:
        """Return the address of a module's mark, and the mark; None: its code alone was mapped elsewhere."""
        vaddr, size = module.image.fingerprint_range
        address, mark = module.address(vaddr), module.image.loaded(vaddr, size)
        mapping = self._index.any_mapping(address)
        elsewhere = self._index.is_mapped(module) if mapping is None else mapping.path != module.path
        return None if mark is None or elsewhere else (address, bytes(mark))

    def _is_replaced(self, tid: int, module: Module) -> bool:
        place = self._place(module)
        if place is None:
            return False
        address, mark = place
        found = read_memory(tid, address, len(mark))
        if found is not None:
            return found != mark
        # it has gone, perhaps for a moment only; or nobody can read it there, or the thread has ended
        self._index.refresh()
        mapping = self._index.any_mapping(address)
        gone = mapping is None or mapping.path != module.path
        return gone or read_memory(tid, address, len(mark)) is not None
