"""Names PLT stubs: `printf@plt`.

A stub jumps through a GOT slot, the slot has a relocation, and the relocation has a symbol.  The first stub
of a lazy `.plt`, which calls the dynamic linker, has no name.  Lazy stubs with endbr64 have no name either,
because such a stub uses no slot, and runs only once.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from operator import itemgetter

from sfsample.formats.elf.dynamic import Dynamic, Relocation
from sfsample.formats.elf.image import ElfImage, Section
from sfsample.formats.machine_code.calls import stub_slot
from sfsample.symbolize.symbol_table import Symbol

_SECTIONS = (".plt", ".plt.sec", ".plt.got", ".plt.bnd", ".iplt")
_EM_S390, _EM_X86_64, _EM_AARCH64 = 22, 62, 183
_IRELATIVE = {_EM_S390: 61, _EM_X86_64: 37, _EM_AARCH64: 1032}
_MAX_SECTION_BYTES = 1 << 20  # bytes of a section of stubs; the largest known has 30 KB
_MAX_STUB_BYTES = 16  # bytes of a stub, up to its jump
_STEP = {_EM_S390: 2, _EM_X86_64: 8, _EM_AARCH64: 4}  # bytes; stubs begin at multiples of this number
# AArch64: stp x2, x3, [sp, #-16]!, the first instruction of the TLS resolver, which follows the stubs
_TLSDESC = b"\xe2\x0f\xbf\xa9"

Resolve = Callable[[int], str | None]  # function: vaddr -> name of the function there


def stub_sections(image: ElfImage) -> list[Section]:
    """Return the sections of PLT stubs; a linker makes at most one section of each name."""
    return [section for section in image.sections if section.name in _SECTIONS][: len(_SECTIONS)]


def is_stub(sections: Iterable[Section], vaddr: int) -> bool:
    """Return True if `vaddr` is in one of `sections`."""
    return any(section.vaddr <= vaddr < section.vaddr + section.size for section in sections)


class PltStubs:
    """The PLT stubs of one image.  `resolve` names an indirect function by the vaddr of its resolver."""

    def __init__(self, image: ElfImage, resolve: Resolve) -> None:
        self._image, self._resolve = image, resolve
        self._dynamic = dynamic = Dynamic(image)
        relocations = chain(dynamic.relocations(), dynamic.plt_relocations())
        self._by_slot = {relocation.slot: relocation for relocation in relocations}
        stubs = chain.from_iterable(map(self._stubs_of, stub_sections(image)))
        self._stubs = sorted(stubs, key=itemgetter(0))

    def find(self, vaddr: int) -> Symbol | None:
        """Return the stub at `vaddr`, with the name of the function to which the stub leads; or None."""
        position = bisect_right(self._stubs, vaddr, key=itemgetter(0)) - 1
        if position < 0:
            return None
        start, end, relocation = self._stubs[position]
        name = self._name(relocation) if vaddr < end and relocation else None
        return Symbol(f"{name}@plt", start, end - start) if name else None

    def _stubs_of(self, section: Section) -> Iterator[tuple[int, int, Relocation | None]]:
        """Yield start, end and relocation of each stub.  A stub ends at the next stub or section end."""
        code = bytes(self._image.contents(section)[:_MAX_SECTION_BYTES])
        if section.size > _MAX_SECTION_BYTES:
            self._image.note_problem(f"{section.name}: only stubs in the first MiB have names")
        relocations: dict[int, Relocation | None] = {section.vaddr: None}  # start of the stub -> relocation
        last = None
        for at in range(0, len(code), _STEP.get(self._image.machine, _MAX_SECTION_BYTES)):
            vaddr, stub = section.vaddr + at, code[at : at + _MAX_STUB_BYTES]
            slot = stub_slot(self._image.machine, stub, vaddr)
            relocation = None if slot is None else self._by_slot.get(slot)
            if stub.startswith(_TLSDESC):
                relocations[vaddr] = None
            elif relocation is not None and relocation is not last:  # same relocation: same stub
                relocations[vaddr] = last = relocation
        starts = [*relocations]
        for start, end in zip(starts, [*starts[1:], section.vaddr + section.size], strict=True):
            yield start, end, relocations[start]

    def _name(self, relocation: Relocation) -> str | None:
        if relocation.type == _IRELATIVE.get(self._image.machine):
            return self._resolve(relocation.addend)
        return self._dynamic.symbol_name(relocation.symbol) or None
