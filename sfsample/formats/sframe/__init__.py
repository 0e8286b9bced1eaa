"""Reads SFrame sections, V1 to V3: the tables, and the row for an address.

Users import it as `sfsample.sframe` (docs/sframe.md).
"""

from sfsample.formats.sframe.section import (
    ABIS,
    HEADER_SIZE,
    SECTION,
    Flag,
    SFrameAbi,
    SFrameFde,
    SFrameFre,
    SFrameTable,
    SFrameTables,
    read_tables,
)

__all__ = [
    "ABIS",
    "HEADER_SIZE",
    "SECTION",
    "Flag",
    "SFrameAbi",
    "SFrameFde",
    "SFrameFre",
    "SFrameTable",
    "SFrameTables",
    "read_tables",
]
