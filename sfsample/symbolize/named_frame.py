"""Combines the symbol of a location with what DWARF adds to it: file, line, inlined functions.

The outermost function at a location is named by its symbol, or by DWARF where there is no symbol.
"""

import os
from typing import Literal, NamedTuple

from sfsample.symbolize.dwarf_lines import SourcePlace
from sfsample.symbolize.frame_text import clean_name
from sfsample.symbolize.options import SymbolOptions
from sfsample.symbolize.spelling import simplify, spell

Kind = Literal["", "k", "j"]  # of a frame: native code, kernel code, generated code (a JIT's)


class NamedFrame(NamedTuple):
    """A function at a location.  All text except `raw` may be written to a terminal.

    `text`: what the folded format shows.  `function`: the demangled name without suffix, or None.  `raw`: the
    symbol as its table has it, or None.  `offset`: bytes from the start of the symbol, or None.
    """

    text: str
    function: str | None
    raw: str | None
    offset: int | None
    file: str | None = None
    line: int | None = None
    inlined: bool = False
    kind: Kind = ""


def with_places(
    frame: NamedFrame, places: list[SourcePlace], options: SymbolOptions
) -> tuple[NamedFrame, ...]:
    """Return the frames at a location, the most inlined first.  `places`: what DWARF has there."""
    if not places:
        return (frame,)
    *inlined, outer = places
    if frame.function is None and outer.symbol:
        function = _function_name(outer, options)
        frame = frame._replace(text=function, function=function, raw=outer.symbol)
    frames = [_inlined(place, options) for place in inlined] if options.inlines else []
    return (*frames, _with_line(frame, outer, options))


def _function_name(place: SourcePlace, options: SymbolOptions) -> str:
    """Return the name of a function, which DWARF may have mangled or not."""
    text = spell(place.symbol, options)
    if options.simplify and place.is_cxx and text == place.symbol and not text.startswith("_Z"):
        text = simplify(text)
    return clean_name(text)


def _inlined(place: SourcePlace, options: SymbolOptions) -> NamedFrame:
    function = _function_name(place, options)
    return _with_line(NamedFrame(function, function, place.symbol, None, inlined=True), place, options)


def _with_line(frame: NamedFrame, place: SourcePlace, options: SymbolOptions) -> NamedFrame:
    """Add file and line to the fields and to the text; the text of an inlined frame ends with `_[i]`."""
    text = frame.text
    if options.lines and place.file and place.line:
        file = clean_name(place.file)
        text = f"{text} ({os.path.basename(file)}:{place.line})"
        frame = frame._replace(file=file, line=place.line)
    return frame._replace(text=f"{text}_[i]" if frame.inlined else text)
