"""Finds the deferred calls in the stack frame of a Go function, and the locks that deferred calls unlock.

For each "open-coded" defer, the frame has a closure and a bit, which is 1 while the call is pending.
FUNCDATA has the offsets of these bits and closures.  The goroutine has a list of all other deferred calls.

Source: Go, src/runtime/panic.go (nextFrame; up to 1.21: addOneOpenDeferFrame),
src/cmd/compile/internal/ssagen/ssa.go (emitOpenDeferInfo).
"""

from collections.abc import Iterator

from sfsample.errors import FormatError
from sfsample.formats.gopclntab.places import inlined_names
from sfsample.formats.gopclntab.table import GoFunction, GoTable
from sfsample.formats.machine_code.calls import call_target, longest_call

_FUNCDATA_OPEN_DEFERS = 4  # internal/abi.FUNCDATA_OpenCodedDeferInfo
_CONTIGUOUS_SINCE = 22  # first minor version of Go with contiguous closures
_MAX_DEFERS = 8  # open-coded defers of a function: a byte has a bit for each defer
_INFO_BYTES = 50  # ten varints of five bytes
_MAX_CODE_BYTES = 1 << 12  # bytes of a deferred function that are searched for calls
# end of the name of a called or inlined function -> operation on the lock; the first match counts
UNLOCKS = {"(*RWMutex).RUnlock": "RUnlock", "(*RWMutex).Unlock": "write Unlock", "(*Mutex).Unlock": "Unlock"}


def open_defers(table: GoTable, vaddr: int) -> tuple[int, tuple[int, ...]] | None:
    """Return the offset of the byte with the defer bits, and the offsets of the closures, in a stack frame.

    Offsets are bytes below varp (CFA - 16; on AArch64, CFA - 8).  Bit `i` belongs to closure `i`.
    None: no defers.
    """
    try:
        function = table.function_at(vaddr)
        at = table.funcdata(function, _FUNCDATA_OPEN_DEFERS) if function is not None else None
    except FormatError:
        return None
    data = None if at is None else table.image.loaded(at, _INFO_BYTES)
    if data is None:
        return None
    numbers = _varints(bytes(data))
    bits, second = next(numbers, 0), next(numbers, 0)
    if (table.minor or 0) >= _CONTIGUOUS_SINCE:
        return bits, tuple(second - 8 * index for index in range(_MAX_DEFERS))
    closures = [next(numbers, 0) for _ in range(min(second, _MAX_DEFERS))]
    return bits, tuple(reversed(closures))


def _varints(data: bytes) -> Iterator[int]:
    value = shift = 0
    for byte in data:
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            yield value
            value = shift = 0


def unlocked_by(table: GoTable, vaddr: int, *, is_entry: bool) -> str:
    """Return how the function at `vaddr` unlocks a lock: "RUnlock"; "": it does not, or begins elsewhere."""
    try:
        function = table.function_at(vaddr)
        if function is None or (is_entry and function.entry != vaddr):
            return ""
        names = {*inlined_names(table, function), *_called_names(table, function)}
    except FormatError:
        return ""
    return next(
        (text for end, text in UNLOCKS.items() if any(name.endswith(f"sync.{end}") for name in names)), ""
    )


def _called_names(table: GoTable, function: GoFunction) -> Iterator[str]:
    """Yield the names of the functions that `function` calls directly."""
    code = bytes(
        table.image.loaded(function.entry, min(function.end - function.entry, _MAX_CODE_BYTES)) or b""
    )
    machine, size = table.image.machine, longest_call(table.image.machine)
    for end in range(size, len(code) + 1):
        target = call_target(machine, code[end - size : end], function.entry + end)
        called = table.function_at(target) if target is not None else None
        if called is not None and called.entry == target:
            yield called.name
