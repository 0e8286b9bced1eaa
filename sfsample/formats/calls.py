"""Whether the instruction that ends where some code bytes end is a call.

Law: bytes in, truth out, one table row for each architecture.  "Yes" is evidence, not proof: the bytes may be
the tail of something else.  "No" is certain: no return address points behind them.

Source: Intel SDM volume 2 (CALL, ModR/M and SIB tables); Arm ARM C6.2 (BL, BLR, BLRA*); z/Architecture
Principles of Operation (BASR, BRAS, BRASL), with r14 for the return address as its ELF ABI says.
"""

import re
from collections.abc import Callable
from typing import NamedTuple


class _Calls(NamedTuple):
    longest: int  # bytes to look at
    ends_in_call: Callable[[bytes], bool]


def longest_call(machine: int) -> int:
    """Return how many bytes before a return address `ends_in_call` wants; 0 where calls are not known."""
    return _TABLE[machine].longest if machine in _TABLE else 0


def ends_in_call(machine: int, code: bytes) -> bool:
    """Whether `code`, the `longest_call` bytes before an address, ends in a call; `machine` is e_machine."""
    return _TABLE[machine].ends_in_call(code)


def call_target(machine: int, code: bytes, address: int) -> int | None:
    """Return where the call that ends at `address` leads; None where that does not stand in the code."""
    if machine == _AMD64 and code[-5] == _CALL:
        return address + int.from_bytes(code[-4:], "little", signed=True)
    return None


def may_share_function(machine: int, code: bytes) -> bool:
    """Whether the first byte of `code` and what follows it may be one function: no return before padding."""
    return machine == _AMD64 and _END.search(code) is None


def is_stub(machine: int, code: bytes) -> bool:
    """Whether `code` begins as a linkage stub: a jump through a table."""
    return machine == _AMD64 and _STUB.match(code) is not None


def stub_slot(machine: int, code: bytes, address: int) -> int | None:
    """Return where the address stands to which the linkage stub at `address`, of these bytes, jumps."""
    jump = _STUB.match(code) if machine == _AMD64 else None
    if jump is None:
        return None
    end = jump.end() + 4
    return address + end + int.from_bytes(code[jump.end() : end], "little", signed=True)


_AMD64, _CALL = 62, 0xE8
_END = re.compile(rb"\xc3(?:[\xcc\x90\x66]|\x0f\x1f)|\xcc\xcc")  # ret, and what assemblers pad with
_STUB = re.compile(rb"(?:\xf3\x0f\x1e\xfa)?\xf2?\xff\x25")  # endbr64; bnd jmp *x(%rip)


def _amd64(code: bytes) -> bool:
    if code[-5] == 0xE8:  # call rel32
        return True
    # call r/m64 is ff /2; prefixes (REX, notrack, bnd) come before and do not matter
    return any(code[-size] == 0xFF and _is_call_of(size, code[-size + 1], code[-size + 2]) for size in _SIZES)


_SIZES = range(7, 1, -1)


def _is_call_of(size: int, modrm: int, sib: int) -> bool:
    """Whether ff, ModRM and what it asks for (`sib` counts only then) take `size` bytes and are a call."""
    mod, operation, rm = modrm >> 6, modrm >> 3 & 7, modrm & 7
    if operation != 2:
        return False
    if mod == 3:
        return size == 2
    has_sib = rm == 4
    no_base = mod == 0 and (sib & 7 if has_sib else rm) == 5  # disp32 alone, or relative to rip
    return size == 2 + has_sib + (4 if no_base else (0, 1, 4)[mod])


def _aarch64(code: bytes) -> bool:
    word = int.from_bytes(code, "little")  # instructions are, also where data are big endian
    return (
        word & 0xFC00_0000 == 0x9400_0000  # bl
        or word & 0xFFFF_FC1F == 0xD63F_0000  # blr
        or word & 0xFFFF_F81F == 0xD63F_081F  # blraaz, blrabz
        or word & 0xFFFF_F800 == 0xD73F_0800  # blraa, blrab
    )


def _s390x(code: bytes) -> bool:
    brasl = code[-6] == 0xC0 and code[-5] & 0x0F == 5
    bras = code[-4] == 0xA7 and code[-3] & 0x0F == 5
    basr = code[-2] == 0x0D and code[-1] >> 4 == 14 and code[-1] & 0x0F != 0  # register 0: does not branch
    return brasl or bras or basr


_TABLE = {62: _Calls(7, _amd64), 183: _Calls(4, _aarch64), 22: _Calls(6, _s390x)}
