"""What a frame is called: the text rules of the folded format.

Law: one line, never empty, no `;`, and nothing that moves a terminal's cursor or changes what the text seems
to say: control characters, line separators, bidirectional controls and lone surrogates become `?`.
"""

from sfsample.symbolize.demangle import demangle

_UNSAFE = (
    *range(0x20),  # C0: newline, tab, ESC
    *range(0x7F, 0xA0),  # DEL and C1: 0x9B starts an escape sequence too
    0x061C, 0x200E, 0x200F,  # Arabic letter, left-to-right, right-to-left marks
    0x2028, 0x2029,  # line and paragraph separators: str.splitlines splits at them
    *range(0x202A, 0x202F), *range(0x2066, 0x206A),  # bidirectional embeddings, overrides, isolates
    *range(0xD800, 0xE000),  # surrogates cannot be written as UTF-8
)  # fmt: skip
_CLEAN = dict.fromkeys(_UNSAFE, "?") | {ord(";"): ":"}


def clean_name(name: str) -> str:
    """Return `name` fit for one frame of a folded line; an empty one becomes `?`."""
    if name.isascii() and name.isprintable() and ";" not in name:
        return name or "?"
    return name.translate(_CLEAN)


def frame_name(symbol_name: str | None, module_path: str | None, address: int) -> str:
    """Return the text of a frame.

    `address` is the vaddr in the module, or the run-time address where there is no module.
    """
    if symbol_name:
        return clean_name(demangle(symbol_name))
    if module_path:
        return f"[{clean_name(_basename(module_path))}+{address:#x}]"
    return f"[{address:#x}]"


def _basename(path: str) -> str:
    name = path.rstrip("/").rpartition("/")[2]
    return name[1:-1] if name[:1] == "[" and name[-1:] == "]" else name  # [vdso]
