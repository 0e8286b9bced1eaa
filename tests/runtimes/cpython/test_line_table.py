"""Lines are those that CPython itself gives for its own standard library."""

import json
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

from sfsample.runtimes.cpython.code_objects import Code
from sfsample.runtimes.cpython.line_table import decode

MODULES = ("dataclasses", "enum", "inspect", "json/decoder", "asyncio/tasks", "_pydecimal", "typing")


def nested(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from nested(constant)


@pytest.mark.parametrize("module", MODULES)
def test_lines_are_those_of_cpython(module):
    path = Path(json.__file__).parents[1] / f"{module}.py"
    for code in nested(compile(path.read_text(encoding="utf-8"), str(path), "exec")):
        units = len(code.co_code) // 2
        table = Code(b"", "", "", (code.co_linetable, code.co_firstlineno, units))
        expected = [line for begin, end, line in code.co_lines() for _ in range(begin // 2, end // 2)]
        assert [table.line(unit) for unit in range(units)] == expected
        assert table.line(-1) == code.co_firstlineno
        assert table.line(units) is table.line(-2) is None


@pytest.mark.parametrize(
    ("table", "units", "why"),
    [
        (b"\x80\x00", 2, "1 units instead of 2"),
        (b"\x80", 1, "cut off"),
        (b"\x00\x00", 1, "no entry begins at byte 0"),
        (b"\xe8\x40\x40", 1, "does not end"),
        (b"\xe8" + b"\x7f" * 40, 1, "does not end"),
        (b"", 1, "0 units"),
    ],
)
def test_damaged_table_is_refused(table, units, why):
    with pytest.raises(ValueError, match=why):
        decode(table, 1, units)
    assert Code(b"", "", "", (table, 1, units)).line(0) is None
