"""Defines a named frame, and makes the texts of frames safe for the folded format and for a terminal.

Invariant: each text is one line, is not empty, has no `;`, and does no harm to a terminal
(tests/symbolize/test_named_frame.py).  Control characters, line separators, bidirectional controls and lone
surrogates become `?`.
"""

from typing import NamedTuple

from sfsample.modules.location import PythonPlace, WaitPlace, import_path

_UNSAFE = (
    *range(0x20),  # C0: newline, tab, ESC
    *range(0x7F, 0xA0),  # DEL and C1: 0x9B also starts an escape sequence
    0x061C, 0x200E, 0x200F,  # Arabic letter, left-to-right, right-to-left marks
    0x2028, 0x2029,  # line and paragraph separators: str.splitlines splits at them
    *range(0x202A, 0x202F), *range(0x2066, 0x206A),  # bidirectional embeddings, overrides, isolates
    *range(0xD800, 0xE000),  # surrogates cannot be written as UTF-8
)  # fmt: skip
_REPLACEMENTS = dict.fromkeys(_UNSAFE, "?") | {ord(";"): ":"}


class NamedFrame(NamedTuple):
    """A function at a place in code.  Unknown fields are None or ""."""

    text: str  # text in the folded format
    function: str | None = None  # demangled name without suffix
    raw: str | None = None  # mangled symbol, as in the symbol table; for a wait: class of the wait ("lock")
    module: str | None = None  # path of the file
    build_id: str | None = None
    address: int | None = None  # vaddr in the module; the run-time address if there is no module
    file: str | None = None
    line: int | None = None
    inlined: bool = False
    kind: str = ""  # "k" kernel, "j" generated code (a JIT's), "p" Python, "w" a wait
    found: str = ""  # how the unwinder found the frame: a `Found`; for a wait: "wait", "idle" or "pool"
    symbol_offset: int | None = None  # bytes from the start of the symbol; None in reports

    @property
    def plain_text(self) -> str:
        """The text without the mark of an inlined call."""
        return self.text.removesuffix("_[i]") if self.inlined else self.text


def python_frame(place: PythonPlace, *, executed: bool = True) -> NamedFrame:
    """Return a Python frame; its text has `place.line` or, unless `executed`, the line of the definition."""
    function, file = clean_name(place.function), clean_name(place.file) if place.file else None
    line = (place.line if executed else None) or place.first_line
    where = f" ({clean_name(place.path or import_path(place.file))}:{line})" if file else ""
    return NamedFrame(f"{function}{where}", function, file=file, line=place.line, kind="p")


def wait_frame(place: WaitPlace, variable: str | None) -> NamedFrame:
    """Return the frame of a wait; `variable`: name of the lock, or None."""
    text = clean_name(place.text)
    if not place.category:
        return NamedFrame(text, text)
    text = f"[{text}{f' {variable}' if variable else ''}]"
    return NamedFrame(text, text, place.category, kind="w")


def clean_name(name: str) -> str:
    """Return `name`, made safe for one frame of a folded line; an empty name becomes `?`."""
    if name.isascii() and name.isprintable() and ";" not in name:
        return name or "?"
    return name.translate(_REPLACEMENTS)


def address_text(module_path: str | None, address: int) -> str:
    """Return the text of a frame without a symbol.  Without a module, `address` is a run-time address."""
    if not module_path:
        return f"[{address:#x}]"
    name = module_path.rstrip("/").rpartition("/")[2]
    if name.startswith("[") and name.endswith("]"):  # [vdso]
        name = name[1:-1]
    return f"[{clean_name(name)}+{address:#x}]"
