"""`-f svg`: a static flame graph, without script and links, for a ticket or a README.

Invariant: every name is escaped, in a text or a title (tests/report/formats/test_svg.py).
"""

import re
from collections.abc import Iterator
from typing import NamedTuple
from xml.sax.saxutils import escape

from sfsample.core.printable import fit
from sfsample.core.quantities import counted
from sfsample.report.caption import duration, extent, losses
from sfsample.report.report import CPU, SAMPLES, Report
from sfsample.report.stack_paths import StackPaths, common_prefix_length, stack_paths

_WIDTH, _ROW, _MARGIN, _TOP = 1200, 17, 10, 44  # pixels
_LETTER_WIDTH = 6.6  # pixels in the 11 px monospaced font
_MIN_BOX_WIDTH = 0.33  # pixels
_MAX_BOXES = 50_000  # boxes; up to twice as many are written, which a browser shows within seconds
_MAX_NAME = 500  # letters of a name in a tooltip
_TRUNCATED_COLOR = "#b0b0b0"
_NOT_XML = re.compile("[\0-\x1f\ufffe\uffff]")
_STYLE = (
    "text{font:11px ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace;fill:#1b1b1b}"
    ".h{font:14px system-ui,sans-serif}.s{font:11px system-ui,sans-serif;fill:#555}"
    "rect{stroke:#fff;stroke-width:.5}"
)


class _Box(NamedTuple):
    text: str
    module: str | None
    depth: int
    left: float  # pixels
    width: float
    samples: int
    cpu_ns: int  # 0: CPU time was not measured


def write(report: Report, *, threads: bool) -> bytes:
    """Return the file.  `threads`: each thread has its own root."""
    boxes, hidden = _boxes(report, stack_paths(report, threads=threads))
    return "".join(_lines(report, boxes, hidden)).encode("utf-8", "replace")


def _boxes(report: Report, paths: StackPaths) -> tuple[list[_Box], int]:
    """Return the boxes, siblings in the order of their names, and the number of boxes that were left out."""
    total, end = report.total(), len(paths.labels)
    scale = (_WIDTH - 2 * _MARGIN) / total if total else 0.0
    rows = sorted(zip(((*path, end) for path in paths.paths), report.column(SAMPLES), report.column(CPU),
                      strict=True))  # fmt: skip
    boxes, hidden = list[_Box](), 0
    opened: list[tuple[int, int]] = []  # samples and CPU time to the left of each box of the current path
    before: tuple[int, ...] = ()
    samples = cpu_ns = 0
    for path, more_samples, more_cpu_ns in [*rows, ((), 0, 0)]:
        shared = common_prefix_length(before, path)
        for depth in range(len(opened) - 1, shared - 1, -1):
            first, first_cpu_ns = opened.pop()
            own = samples - first
            if own * scale < _MIN_BOX_WIDTH:
                hidden += 1
                continue
            left, label = _MARGIN + first * scale, paths.labels[before[depth]]
            boxes.append(_Box(*label, depth, left, own * scale, own, cpu_ns - first_cpu_ns))
        opened += [(samples, cpu_ns)] * (len(path) - 1 - shared)
        before = path[:-1]
        samples += more_samples
        cpu_ns += more_cpu_ns
        if len(boxes) > 2 * _MAX_BOXES:
            boxes.sort(key=lambda box: (-box.width, box.depth))  # callers before callees
            hidden += len(boxes) - _MAX_BOXES
            del boxes[_MAX_BOXES:]
    return boxes, hidden


def _lines(report: Report, boxes: list[_Box], hidden: int) -> Iterator[str]:
    rows = max((box.depth for box in boxes), default=0) + 1
    height = _TOP + rows * _ROW + _MARGIN
    name, total = report.process_names() or "nothing", report.total()
    notes = [f"width is samples: {extent(report)}", *losses(report)]
    if hidden:
        notes.append(f"{hidden} boxes too narrow to show")
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" '
        f'height="{height}" role="img"><title>Flame graph of {_xml(name)}</title><style>{_STYLE}</style>'
        f'<rect width="100%" height="100%" fill="#fff"/>'
        f'<text class="h" x="{_MARGIN}" y="20">{_xml(name)}</text>'
        f'<text class="s" x="{_MARGIN}" y="36">{_xml("; ".join(notes))}</text>\n'
    )
    for box in boxes:
        yield _box_xml(box, height - _MARGIN - (box.depth + 1) * _ROW, total)
    yield "</svg>\n"


def _box_xml(box: _Box, top: int, total: int) -> str:
    module = f" ({box.module[:_MAX_NAME]})" if box.module else ""
    cpu = f", {duration(box.cpu_ns)} of CPU time" if box.cpu_ns else ""
    share = f"{100 * box.samples / total:.2f} %"
    tooltip = f"{box.text[:_MAX_NAME]}{module}: {counted(box.samples)}, {share}{cpu}"
    room = int((box.width - 4) / _LETTER_WIDTH)  # letters
    shown = fit(box.text, room, "…")
    text = f'<text x="{box.left + 3:.1f}" y="{top + 12}">{_xml(shown)}</text>' if room >= 3 else ""
    return (
        f'<g><title>{_xml(tooltip)}</title><rect x="{box.left:.1f}" y="{top}" width="{box.width:.1f}" '
        f'height="{_ROW}" rx="1" fill="{_color(box)}"/>{text}</g>\n'
    )


def _color(box: _Box) -> str:
    """Return a warm colour for a module; it is the same in every graph."""
    if box.text.startswith("[truncated: "):
        return _TRUNCATED_COLOR
    mix = 0
    for letter in (box.module or "").rpartition("/")[2][:_MAX_NAME] or box.text[:1]:
        mix = (mix * 31 + ord(letter)) & 0xFFFF
    hue = 190 if box.text.endswith("_[k]") else 10 + mix % 45
    return f"hsl({hue},{62 + mix // 64 % 20}%,{66 + mix // 4096 % 10}%)"


def _xml(text: str) -> str:
    """Escape a text, and drop the characters that XML 1.0 does not allow."""
    return escape(_NOT_XML.sub("", text))
