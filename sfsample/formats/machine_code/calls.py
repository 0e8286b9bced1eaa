"""Recognizes the call before a return address, its target, and the slot through which a PLT stub jumps.

If `ends_in_call` returns True, this is no proof: the bytes may be the end of another instruction.  False is
certain: the address after the bytes is no return address.  `machine` is e_machine, the key of `_TABLE`.

Source: Intel SDM volume 2 (CALL, ModR/M and SIB tables); Arm ARM C6.2 (BL, BLR, BLRA*, ADRP, LDR);
z/Architecture Principles of Operation (BASR, BRAS, BRASL, LARL), with r14 for the return address as the
s390x ELF ABI says.  Stubs: x86-64 psABI, "Procedure Linkage Table" (as ld, gold, lld and mold write it); ELF
for the Arm 64-bit Architecture, same title; s390x ELF ABI.
"""

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

# endbr64; mov $number,%r11d (mold); bnd jmp *x(%rip)
_STUB = re.compile(rb"(?:\xf3\x0f\x1e\xfa)?(?:\x41\xbb.{4})?\xf2?\xff\x25(....)", re.DOTALL)
_INDIRECT_CALL_SIZES = range(7, 1, -1)  # bytes of ff /2, ModRM, SIB and displacement


class _CallCode(NamedTuple):
    longest: int  # bytes of the longest call
    ends_in_call: Callable[[bytes], bool]
    target: Callable[[bytes, int], int | None]
    slot: Callable[[bytes, int], int | None]
    direct: re.Pattern[bytes]  # pattern of bytes in each direct call; s390x: only in brasl with r14
    direct_to_end: int  # bytes from the start of a match of `direct` to the end of the call
    alignment: int  # bytes; instruction addresses are multiples of this number


def longest_call(machine: int) -> int:
    """Return the number of bytes before a return address that `ends_in_call` needs; 0: unknown machine."""
    return _TABLE[machine].longest if machine in _TABLE else 0


def ends_in_call(machine: int, code: bytes) -> bool:
    """Return True if `code`, the `longest_call` bytes before an address, ends in a call."""
    return _TABLE[machine].ends_in_call(code)


def call_target(machine: int, code: bytes, address: int) -> int | None:
    """Return the target of the call that ends at `address`; None: `code` does not end in a direct call."""
    return _TABLE[machine].target(code, address)


def calls_of(machine: int, code: bytes, address: int, target: int) -> Iterator[int]:
    """Yield the return addresses of the direct calls to `target` in `code`, which lies at `address`."""
    calls = _TABLE[machine]
    for match in calls.direct.finditer(code):
        end = match.start() + calls.direct_to_end
        return_address = address + end
        if not calls.longest <= end <= len(code) or return_address % calls.alignment:
            continue
        if calls.target(code[end - calls.longest : end], return_address) == target:
            yield return_address


def stub_slot(machine: int, code: bytes, address: int) -> int | None:
    """Return the slot through which the PLT stub `code` at `address` jumps; None: no known stub."""
    return _TABLE[machine].slot(code, address) if machine in _TABLE else None


def _signed(value: int, bits: int) -> int:
    return value - ((value & 1 << bits - 1) << 1)


def _amd64_ends_in_call(code: bytes) -> bool:
    if code[-5] == 0xE8:  # call rel32
        return True
    # call r/m64 is ff /2; prefixes (REX, notrack, bnd) precede ff, and do not matter
    sizes = (size for size in _INDIRECT_CALL_SIZES if code[-size] == 0xFF)
    return any(_is_indirect_call(size, code[-size + 1], code[-size + 2]) for size in sizes)


def _amd64_target(code: bytes, address: int) -> int | None:
    return address + int.from_bytes(code[-4:], "little", signed=True) if code[-5] == 0xE8 else None


def _amd64_slot(code: bytes, address: int) -> int | None:
    jump = _STUB.match(code)
    return address + jump.end() + int.from_bytes(jump[1], "little", signed=True) if jump else None


def _is_indirect_call(size: int, modrm: int, sib: int) -> bool:
    """Return True if ff with this ModRM byte is a call of `size` bytes; `sib`: byte after ModRM."""
    mod, operation, rm = modrm >> 6, modrm >> 3 & 7, modrm & 7
    if operation != 2:
        return False
    if mod == 3:
        return size == 2
    has_sib = rm == 4
    no_base = mod == 0 and (sib & 7 if has_sib else rm) == 5  # address: disp32, or rip + disp32
    return size == 2 + has_sib + (4 if no_base else (0, 1, 4)[mod])


def _aarch64_ends_in_call(code: bytes) -> bool:
    word = int.from_bytes(code, "little")  # instruction: little endian even if data is big endian
    return (
        word & 0xFC00_0000 == 0x9400_0000  # bl
        or word & 0xFFFF_FC1F == 0xD63F_0000  # blr
        or word & 0xFFFF_F81F == 0xD63F_081F  # blraaz, blrabz
        or word & 0xFFFF_F800 == 0xD73F_0800  # blraa, blrab
    )


def _aarch64_target(code: bytes, address: int) -> int | None:
    word = int.from_bytes(code, "little")
    is_bl = word & 0xFC00_0000 == 0x9400_0000
    return address - 4 + 4 * _signed(word & 0x03FF_FFFF, 26) if is_bl else None


def _aarch64_slot(code: bytes, address: int) -> int | None:
    """Return the slot of a stub: [bti c]; adrp x16, PAGE; ldr x17, [x16, N]; or None."""
    landing = 4 if code[:4] == b"\x5f\x24\x03\xd5" else 0
    adrp, ldr = (int.from_bytes(code[at : at + 4], "little") for at in (landing, landing + 4))
    if adrp & 0x9F00001F != 0x90000010 or ldr & 0xFFC003FF != 0xF9400211:
        return None
    page = _signed((adrp >> 5 & 0x7FFFF) << 2 | adrp >> 29 & 3, 21)
    return (address + landing & -4096) + (page << 12) + ((ldr >> 10 & 0xFFF) << 3)


def _s390x_ends_in_call(code: bytes) -> bool:
    basr = code[-2] == 0x0D and code[-1] >> 4 == 14 and code[-1] & 0x0F != 0  # register 0: no branch
    return basr or _s390x_target(code, 0) is not None


def _s390x_target(code: bytes, address: int) -> int | None:
    if code[-6] == 0xC0 and code[-5] & 0x0F == 5:  # brasl
        return address - 6 + 2 * int.from_bytes(code[-4:], "big", signed=True)
    is_bras = code[-4] == 0xA7 and code[-3] & 0x0F == 5
    return address - 4 + 2 * int.from_bytes(code[-2:], "big", signed=True) if is_bras else None


def _s390x_slot(code: bytes, address: int) -> int | None:
    """Return the slot of a stub: larl %r1,SLOT; lg %r1,0(%r1); or None."""
    is_stub = code[:2] == b"\xc0\x10" and code[6:12] == b"\xe3\x10\x10\0\0\x04"
    return address + 2 * int.from_bytes(code[2:6], "big", signed=True) if is_stub else None


_TABLE = {
    62: _CallCode(7, _amd64_ends_in_call, _amd64_target, _amd64_slot, re.compile(b"\xe8"), 5, 1),
    183: _CallCode(
        4, _aarch64_ends_in_call, _aarch64_target, _aarch64_slot, re.compile(rb"[\x94-\x97]"), 1, 4
    ),
    22: _CallCode(6, _s390x_ends_in_call, _s390x_target, _s390x_slot, re.compile(b"\xc0\xe5"), 6, 2),
}
