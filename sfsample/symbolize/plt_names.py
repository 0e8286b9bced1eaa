"""Names PLT stubs: `printf@plt`.

A stub is recognized by what it does: it jumps through a GOT slot, the slot has a relocation, and the
relocation has a symbol.  A lazy stub with endbr64 jumps through no slot; it pushes the number of its
relocation.  The first stub of a lazy `.plt`, which calls the dynamic linker, has no name.

Instructions: x86-64 psABI, "Procedure Linkage Table" (as ld, gold, lld and mold write it); the same in ELF
for the Arm 64-bit Architecture (adrp x16; ldr x17); s390x ELF ABI (larl %r1; lg %r1,0(%r1)).
"""

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator
from itertools import chain, islice, pairwise
from operator import itemgetter
from struct import unpack_from

from sfsample.formats.elf.dynamic import Dynamic, Relocation
from sfsample.formats.elf.image import ElfImage, Section
from sfsample.formats.machine_code.calls import aarch64_slot
from sfsample.symbolize.symbol_table import Symbol

_SECTIONS = (".plt", ".plt.sec", ".plt.got", ".plt.bnd", ".iplt")
_EM_S390, _EM_X86_64, _EM_AARCH64 = 22, 62, 183
_IRELATIVE = {_EM_S390: 61, _EM_X86_64: 37, _EM_AARCH64: 1032}
_MAX_RELOCATIONS = 1 << 20
_MAX_SECTION_BYTES = 1 << 22

_JUMP = re.compile(rb"\xff\x25(....)", re.DOTALL)  # jmp *disp(%rip)
_PUSH = re.compile(rb"\xf3\x0f\x1e\xfa\x68(....)", re.DOTALL)  # endbr64; push $number
_LARL = re.compile(rb"\xc0\x10(....)\xe3\x10\x10\x00\x00\x04\x07\xf1", re.DOTALL)  # and br %r1
_TLSDESC = 0xA9BF0FE2  # stp x2, x3, [sp, #-16]!: begins the code after the stubs that resolves TLS

Resolve = Callable[[int], str | None]  # the name of the function at a vaddr


def is_stub(image: ElfImage, vaddr: int) -> bool:
    """Whether `vaddr` is in a section of PLT stubs."""
    return any(s.vaddr <= vaddr < s.vaddr + s.size for s in image.sections if s.name in _SECTIONS)


class PltStubs:
    """The PLT stubs of one image.  `resolve` names an indirect function by its resolver's vaddr."""

    def __init__(self, image: ElfImage, resolve: Resolve) -> None:
        self._image, self._resolve = image, resolve
        self._dynamic = dynamic = Dynamic(image)
        self._plt_relocations = dynamic.plt_relocations()[:_MAX_RELOCATIONS]
        others = islice(dynamic.relocations(), _MAX_RELOCATIONS)
        self._by_slot = {relocation.slot: relocation for relocation in (*others, *self._plt_relocations)}
        sections = (section for section in image.sections if section.name in _SECTIONS)
        stubs = chain.from_iterable(map(self._stubs_of, sections))
        self._stubs = sorted(stubs, key=itemgetter(0))

    def find(self, vaddr: int) -> Symbol | None:
        """Return the stub at `vaddr`, named after the function to which it leads; or None."""
        position = bisect_right(self._stubs, vaddr, key=itemgetter(0)) - 1
        if position < 0:
            return None
        start, end, relocation = self._stubs[position]
        name = self._name(relocation) if vaddr < end and relocation else None
        return Symbol(f"{name}@plt", start, end - start) if name else None

    def _stubs_of(self, section: Section) -> Iterator[tuple[int, int, Relocation | None]]:
        """Yield start, end and relocation of each stub; a stub ends at the next, or with the section."""
        code = bytes(self._image.contents(section)[:_MAX_SECTION_BYTES])
        scan = _SCAN.get(self._image.machine)
        relocations = dict(scan(self, code, section)) if scan else {}
        starts = sorted({section.vaddr, *relocations})
        for start, end in zip(starts, [*starts[1:], section.vaddr + section.size], strict=True):
            yield start, end, relocations.get(start)

    def _x86(self, code: bytes, section: Section) -> Iterator[tuple[int, Relocation]]:
        stub_bytes = 8 if section.name == ".plt.got" else 16
        for match in _JUMP.finditer(code):
            slot = section.vaddr + match.end() + int.from_bytes(match[1], "little", signed=True)
            if slot in self._by_slot:
                yield section.vaddr + match.start() // stub_bytes * stub_bytes, self._by_slot[slot]
        for match in _PUSH.finditer(code):
            number = int.from_bytes(match[1], "little")
            if number < len(self._plt_relocations):
                yield section.vaddr + match.start(), self._plt_relocations[number]

    def _aarch64(self, code: bytes, section: Section) -> Iterator[tuple[int, Relocation | None]]:
        words = unpack_from(f"<{len(code) // 4}I", code)
        for at, (adrp, ldr) in enumerate(pairwise(words)):
            if adrp == _TLSDESC:
                yield section.vaddr + 4 * at, None
            vaddr = section.vaddr + 4 * at
            slot = aarch64_slot(adrp, ldr, vaddr)
            landing_pad = 4 * (at > 0 and words[at - 1] == 0xD503245F)  # bti c
            if slot in self._by_slot:
                yield vaddr - landing_pad, self._by_slot[slot]

    def _s390x(self, code: bytes, section: Section) -> Iterator[tuple[int, Relocation]]:
        for match in _LARL.finditer(code):
            vaddr = section.vaddr + match.start()
            slot = vaddr + 2 * int.from_bytes(match[1], "big", signed=True)
            if slot in self._by_slot:
                yield vaddr, self._by_slot[slot]

    def _name(self, relocation: Relocation) -> str | None:
        if relocation.type == _IRELATIVE.get(self._image.machine):
            return self._resolve(relocation.addend)
        return self._dynamic.symbol_name(relocation.symbol) or None


_SCAN = {
    _EM_S390: PltStubs._s390x,  # noqa: SLF001 - of this file
    _EM_X86_64: PltStubs._x86,  # noqa: SLF001
    _EM_AARCH64: PltStubs._aarch64,  # noqa: SLF001
}
