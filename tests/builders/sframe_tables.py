"""Gives SFrame tables, built or of real assemblers, and short forms of rules."""

import json
from pathlib import Path

import pytest

from sfsample.core.rule import CFA, Rule
from sfsample.formats.sframe import SFrameTable
from tests.builders.sframe_builder import (
    AMD64,
    Function,
    section,
)

SP, FP, R10 = 7, 6, 10
ADDRESS, START = 0x2000, 0x1000
VERSIONS = pytest.mark.parametrize("version", [1, 2, 3])
VECTORS = json.loads((Path(__file__).parents[1] / "data" / "sframe-vectors.json").read_text())


def vector(name: str) -> SFrameTable:
    """Return a table of a real assembler."""
    found = next(v for v in VECTORS if v["name"] == name)
    return SFrameTable(bytes.fromhex(found["hex"]), found["section_addr"])


def reg(number: int, offset: int = 0) -> Rule:
    """Return the rule: register + offset."""
    return Rule(number, offset, deref=False)


def at_reg(number: int, offset: int) -> Rule:
    """Return the rule: the word at register + offset."""
    return Rule(number, offset, deref=True)


def slot(offset: int) -> Rule:
    """Return the rule: the word at CFA + offset."""
    return Rule(CFA, offset, deref=True)


def table(version: int, functions: list[Function], **options) -> SFrameTable:
    return SFrameTable(section(version, functions, address=ADDRESS, **options), ADDRESS)


def only_rows(version: int, *rows, size: int = 0x20, abi: int = AMD64, flexible: bool = False, **options):
    """Return the decoded rows of a section with one function."""
    made = table(version, [Function(START, size, list(rows), flexible=flexible)], abi=abi, **options)
    [fde] = made.fdes()
    return made.rows(fde)


def rules(fre) -> tuple[Rule | None, Rule | None, Rule | None]:
    """Return the rules of CFA, RA and FP of a valid row."""
    assert fre.problem is None
    return fre.cfa, fre.ra, fre.fp
