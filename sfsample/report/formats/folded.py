"""`-f folded`: one line for each distinct stack, root first: `process;frame;...;frame count`.

The output is sorted UTF-8 text; stacks with the same text make one line.  The first frame of a line is the
process (or `name/TID`).  The reader also accepts folded stacks of other tools, and addresses in modules.

Invariant: reading and writing folded text gives the same text (tests/report/test_report.py).
"""

import re
from collections import Counter
from functools import cache
from io import BytesIO

from sfsample.errors import BadInput
from sfsample.report.budget import ReadingBudget
from sfsample.report.report import OUTERMOST, Report, ReportBuilder, ReportThread
from sfsample.report.stack_paths import stack_paths
from sfsample.symbolize.named_frame import NamedFrame, clean_name

_LINE = re.compile(r"(.*\S)\s+(\d{1,19})(?:\.\d+)?\s*", re.ASCII)
_THREAD = re.compile(r"(.+)/(\d{1,10})", re.ASCII)
_TRUNCATED = re.compile(r"\[truncated: (\w+)\]")
_UNNAMED = re.compile(r"\[(?:(.+)\+)?0x([0-9a-f]{1,16})\]")
_SUFFIX = re.compile(r"(.+)_\[([kijp])\]")
_MAX_LINE_BYTES = 4 << 20
_LINE_COST, _REFERENCE_COST, _FRAME_COST = 700, 24, 1000  # see report/budget.py


def write(report: Report, *, threads: bool) -> bytes:
    """Return the file.  `threads`: the first frame is `name/TID`."""
    labels, _, paths = stack_paths(report, threads=threads)
    # Sorting the frames gives the same order as sorting the lines, if each frame except the last has its ";".
    texts = sorted({text for label in labels for text in (label.text, f"{label.text};")})
    rank = {text: at for at, text in enumerate(texts)}
    inner, last = [rank[f"{label.text};"] for label in labels], [rank[label.text] for label in labels]
    merged: Counter[tuple[int, ...]] = Counter()
    for path, stack in zip(paths, report.stacks, strict=True):
        merged[*[inner[at] for at in path[:-1]], last[path[-1]]] += stack.weights[0]
    out = BytesIO()
    for row in sorted(merged):
        out.write(f"{''.join([texts[at] for at in row])} {merged[row]}\n".encode())
    return out.getvalue()


def read(data: bytes, budget: ReadingBudget) -> Report:
    """Return the report.  Raises BadInput."""
    builder = ReportBuilder()

    @cache
    def frame(text: str) -> int:
        budget.charge(_FRAME_COST + len(text))
        return builder.number(frame_of(clean_name(text)))

    budget.place = "line"
    for number, packed in enumerate(BytesIO(data), 1):
        budget.number = number
        budget.charge(_LINE_COST + packed.count(b";") * _REFERENCE_COST)
        if len(packed) > _MAX_LINE_BYTES:
            raise BadInput(f"line {number}: longer than {_MAX_LINE_BYTES >> 20} MiB")
        line = packed.decode("utf-8", "replace").rstrip("\n")
        parts = _LINE.fullmatch(line)
        if parts is None:
            if not line.strip() or line.startswith("#"):
                continue
            raise BadInput(f"line {number}: not `frame;frame;... count`: {line[:60]}")
        root, *texts = parts[1].split(";")
        mark = _TRUNCATED.fullmatch(texts[0]) if texts else None
        row = map(frame, reversed(texts[1:] if mark else texts))
        root = clean_name(root)
        named = _THREAD.fullmatch(root)  # "name/7": a thread, or a process of this name
        thread = ReportThread(root, named[1], None, int(named[2])) if named else ReportThread(root, root)
        builder.add_row(thread, row, mark[1] if mark else OUTERMOST, (int(parts[2]),))
    return builder.finish()


def frame_of(text: str) -> NamedFrame:
    """Return the frame of a text: an address in a module, or a function with its kind."""
    unnamed = _UNNAMED.fullmatch(text)
    if unnamed:
        return NamedFrame(text, module=unnamed[1], address=int(unnamed[2], 16))
    suffix = _SUFFIX.fullmatch(text)
    if suffix is None:
        return NamedFrame(text, text)
    letter = suffix[2]
    return NamedFrame(text, suffix[1], inlined=letter == "i", kind="" if letter == "i" else letter)
