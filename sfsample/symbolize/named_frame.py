"""A place with its name, and what DWARF adds to it.

Law: pure.  The function whose code is at the place is named by its symbol; DWARF adds its file and line and
the functions that are inlined there.  Where there is no symbol, DWARF's name is taken.
"""

import os
from typing import Literal, NamedTuple

from sfsample.symbolize.dwarf_lines import SourcePlace
from sfsample.symbolize.frame_text import clean_name
from sfsample.symbolize.options import SymbolOptions
from sfsample.symbolize.spelling import simplify, spell

Kind = Literal["", "k", "j"]  # of a frame: native code, the kernel, code that the target has generated


class NamedFrame(NamedTuple):
    """A place with its name.  All text but `raw` is fit for a line of a terminal.

    `text` is what the folded format shows; `function` the demangled name, without suffix, or None; `raw` the
    symbol as its table states it; `offset` from its start.
    """

    text: str
    function: str | None
    raw: str | None
    offset: int | None
    file: str | None = None
    line: int | None = None
    inlined: bool = False
    kind: Kind = ""


def kernel_frame(name: str) -> NamedFrame:
    """Return the frame of a function of the kernel."""
    function = clean_name(name)
    return NamedFrame(f"{function}_[k]", function, name, None, kind="k")


def with_places(
    frame: NamedFrame, places: list[SourcePlace], naming: SymbolOptions
) -> tuple[NamedFrame, ...]:
    """Return the frames at a place, the most inlined first: `places` are what DWARF says of it."""
    if not places:
        return (frame,)
    *inlined, outer = places
    if frame.function is None and outer.symbol:
        function = _function(outer, naming)
        frame = frame._replace(text=function, function=function, raw=outer.symbol)
    found = [_inlined(place, naming) for place in inlined] if naming.inlines else []
    return (*found, _with_line(frame, outer, naming))


def _function(place: SourcePlace, naming: SymbolOptions) -> str:
    """Return the name of a function, which DWARF may give mangled or not."""
    text = spell(place.symbol, naming)
    if naming.simplify and place.is_cxx and text == place.symbol and not text.startswith("_Z"):
        text = simplify(text)
    return clean_name(text)


def _inlined(place: SourcePlace, naming: SymbolOptions) -> NamedFrame:
    function = _function(place, naming)
    return _with_line(NamedFrame(function, function, place.symbol, None, inlined=True), place, naming)


def _with_line(frame: NamedFrame, place: SourcePlace, naming: SymbolOptions) -> NamedFrame:
    """Add file and line, to the text as well; `_[i]` ends the text of an inlined frame."""
    text = frame.text
    if naming.lines and place.file and place.line:
        file = clean_name(place.file)
        text = f"{text} ({os.path.basename(file)}:{place.line})"
        frame = frame._replace(file=file, line=place.line)
    return frame._replace(text=f"{text}_[i]" if frame.inlined else text)
