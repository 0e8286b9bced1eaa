"""`-f svg`: a static flame graph, for a ticket or a README.

The file has no script, no links and nothing from outside.  The outermost function is at the bottom.  Boxes
narrower than a third of a pixel are left out, and a note counts them.

Invariant: every name is escaped, in a text or a title (tests/report/formats/test_svg.py).
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple
from xml.sax.saxutils import escape

from sfsample.report.caption import duration, extent, losses, sample_count
from sfsample.report.report import CPU, SAMPLES, Report
from sfsample.report.stack_paths import Label, stack_paths

_WIDTH, _ROW, _MARGIN, _TOP = 1200, 17, 10, 44  # pixels
_LETTER_WIDTH = 6.6  # pixels, of the 11 px monospaced font
_MIN_BOX_WIDTH = 0.33  # pixels
_TRUNCATED_COLOR = "#b0b0b0"
_STYLE = (
    "text{font:11px ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace;fill:#1b1b1b}"
    ".h{font:14px system-ui,sans-serif}.s{font:11px system-ui,sans-serif;fill:#555}"
    "rect{stroke:#fff;stroke-width:.5}"
)


class _Node:
    """A function on one path of calls; its samples and CPU time are those with what it called."""

    def __init__(self) -> None:
        self.samples = self.cpu_ns = 0
        self.callees: dict[int, _Node] = {}  # by label


class _Box(NamedTuple):
    text: str
    module: str | None
    depth: int
    left: float  # pixels
    width: float
    samples: int
    cpu_ns: int  # 0 where CPU time was not measured


def write(report: Report, *, threads: bool) -> bytes:
    """Return the file.  `threads`: each thread has a root of its own."""
    labels, _, paths = stack_paths(report, threads=threads)
    root, count = _build_tree(report, paths)
    total = report.total()
    boxes = list(_boxes(root, labels, (_WIDTH - 2 * _MARGIN) / total if total else 0.0))
    return "".join(_lines(report, boxes, count - len(boxes))).encode("utf-8", "replace")


def _build_tree(report: Report, paths: Iterable[Iterable[int]]) -> tuple[_Node, int]:
    """Return the root of the call tree, and how many nodes are below it."""
    root, count = _Node(), 0
    for path, samples, cpu_ns in zip(paths, report.column(SAMPLES), report.column(CPU), strict=True):
        node = root
        for label in path:
            if label not in node.callees:
                node.callees[label] = _Node()
                count += 1
            node = node.callees[label]
            node.samples += samples
            node.cpu_ns += cpu_ns
    return root, count


def _boxes(root: _Node, labels: Sequence[Label], scale: float) -> Iterator[_Box]:
    """Yield the boxes that are wide enough; siblings are in the order of their names."""
    todo = [(root, -1, -1, float(_MARGIN))]
    while todo:
        node, label, depth, left = todo.pop()
        if node is not root:
            yield _Box(*labels[label], depth, left, node.samples * scale, node.samples, node.cpu_ns)
        for callee in sorted(node.callees):
            width = node.callees[callee].samples * scale
            if width >= _MIN_BOX_WIDTH:
                todo.append((node.callees[callee], callee, depth + 1, left))
            left += width


def _lines(report: Report, boxes: list[_Box], hidden: int) -> Iterator[str]:
    rows = max((box.depth for box in boxes), default=0) + 1
    height = _TOP + rows * _ROW + _MARGIN
    name = report.process_names() or "nothing"
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
        yield _box_xml(box, height - _MARGIN - (box.depth + 1) * _ROW, report.total())
    yield "</svg>\n"


def _box_xml(box: _Box, top: int, total: int) -> str:
    module = f" ({box.module})" if box.module else ""
    cpu = f", {duration(box.cpu_ns)} of CPU time" if box.cpu_ns else ""
    tooltip = f"{box.text}{module}: {sample_count(box.samples)}, {100 * box.samples / total:.2f} %{cpu}"
    room = int((box.width - 4) / _LETTER_WIDTH)  # letters
    shown = box.text if len(box.text) <= room else box.text[: room - 1] + "…"
    text = f'<text x="{box.left + 3:.1f}" y="{top + 12}">{_xml(shown)}</text>' if room >= 3 else ""
    return (
        f'<g><title>{_xml(tooltip)}</title><rect x="{box.left:.1f}" y="{top}" width="{box.width:.1f}" '
        f'height="{_ROW}" rx="1" fill="{_color(box)}"/>{text}</g>\n'
    )


def _color(box: _Box) -> str:
    """Return a warm colour that depends on the module only, so that it is the same in every graph."""
    if box.text.startswith("[truncated: "):
        return _TRUNCATED_COLOR
    mix = 0
    for letter in (box.module or "").rpartition("/")[2] or box.text[:1]:
        mix = (mix * 31 + ord(letter)) & 0xFFFF
    hue = 190 if box.text.endswith("_[k]") else 10 + mix % 45
    return f"hsl({hue},{62 + mix // 64 % 20}%,{66 + mix // 4096 % 10}%)"


def _xml(text: str) -> str:
    """Escape a text, and drop the characters that XML 1.0 cannot hold."""
    return escape("".join(letter for letter in text if letter >= " " and letter not in "\ufffe\uffff"))
