"""Names places in Go code: function, file, line, and the calls that the compiler has inlined.

Source: Go, src/runtime/symtabinl.go (inlineUnwinder), src/runtime/symtab.go (funcline1); 1.18 to 1.27.
"""

import re
from collections.abc import Iterator
from struct import unpack_from
from typing import NamedTuple

from sfsample.errors import FormatError
from sfsample.formats.gopclntab.table import SECTION, GoFunction, GoTable

_PCDATA_INLINE_INDEX = 2  # internal/abi.PCDATA_InlTreeIndex
_FUNCDATA_INLINE_TREE = 3  # internal/abi.FUNCDATA_InlTree
_MAX_INLINED = 200  # inlined calls that are read for one pc, or for one function
WRAPPER = re.compile(r"\.gowrap\d+$")  # end of the name of a function that the compiler makes for `go f(x)`


class GoPlace(NamedTuple):
    """A function that is active at a pc: an inlined call, or the outer function."""

    function: str
    start: int  # vaddr of the outer function, which contains all inlined calls
    file: str  # "": unknown
    line: int  # 0: unknown


class _Inlined(NamedTuple):
    name: int  # offset of the function's name
    parent_pc: int  # bytes from the function's entry to an instruction on the line of the call
    parent: int = -1  # Go 1.18 and 1.19: index of the caller's record; -1: the outer function
    file: int = 0  # Go 1.18 and 1.19: index of the caller's file
    line: int = 0  # Go 1.18 and 1.19: line of the call in that file


def places_at(table: GoTable, pc: int, lookup: int) -> list[GoPlace]:
    """Return the functions at vaddr `pc`, innermost inlined call first; empty if `pc` is not in Go code.

    `lookup` is `pc`, or one less if `pc` is a return address.  The function is that of `pc`, because a return
    address may be the first address of its function (`runtime.systemstack_switch`).  Raises FormatError.
    """
    function = table.function_at(pc)
    if function is None:
        return []
    at = max(lookup, function.entry)
    places: list[GoPlace] = []
    index = table.pcdata(function, _PCDATA_INLINE_INDEX, at)
    tree = table.funcdata(function, _FUNCDATA_INLINE_TREE) if index >= 0 else None
    file, line = _line_at(table, function, at)
    while tree is not None and index >= 0 and len(places) < _MAX_INLINED:
        call = _inlined(table, tree, index)
        places.append(GoPlace(table.name(call.name), function.entry, file, line))
        if table.header.layout.has_parents:
            file, line, index = table.file_name(function, call.file), call.line, call.parent
        else:
            at = function.entry + call.parent_pc
            file, line = _line_at(table, function, at)
            index = table.pcdata(function, _PCDATA_INLINE_INDEX, at)
    return [*places, GoPlace(function.name, function.entry, file, line)]


def inlined_names(table: GoTable, function: GoFunction) -> Iterator[str]:
    """Yield the names of all functions that are inlined into a function.  Raises FormatError."""
    tree = table.funcdata(function, _FUNCDATA_INLINE_TREE)
    values = table.pcdata_values(function, _PCDATA_INLINE_INDEX) if tree is not None else 0
    last = max((index for index, _, _ in table.values(function, values)), default=-1)
    for index in range(min(last + 1, _MAX_INLINED)):
        yield table.name(_inlined(table, tree or 0, index).name)


def _line_at(table: GoTable, function: GoFunction, at: int) -> tuple[str, int]:
    file = table.value_at(function, function.file_values, at)
    line = table.value_at(function, function.line_values, at)
    return table.file_name(function, file), max(line, 0)


def _inlined(table: GoTable, tree: int, index: int) -> _Inlined:
    layout = table.header.layout
    record = table.image.loaded(tree + index * layout.inline_size, layout.inline_size)
    if record is None:
        raise FormatError(SECTION, tree - table.header.vaddr, f"inlined call {index} lies outside the file")
    if layout.has_parents:
        parent, _, file, line, name, parent_pc = unpack_from("<hHiiii", record)
        return _Inlined(name, parent_pc, parent, file, line)
    name, parent_pc = unpack_from("<ii", record, 4)
    return _Inlined(name, parent_pc)
