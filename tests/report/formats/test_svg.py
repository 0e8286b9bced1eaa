"""Tests of the svg flame graph: it is well-formed, widths are samples, and notes state what is shown."""

import re
from collections import Counter
from xml.etree import ElementTree as ET

from hypothesis import given
from hypothesis import strategies as st

from sfsample.report.formats import FORMATS
from sfsample.report.report import Report, ReportBuilder, ReportThread
from sfsample.symbolize.named_frame import NamedFrame
from tests.builders.reports import from_lines, full

NS = "{http://www.w3.org/2000/svg}"


def svg(report: Report, *, threads: bool = False) -> ET.Element:
    return ET.fromstring(FORMATS["svg"].write(report, threads=threads))  # noqa: S314 - sfsample wrote it


def boxes(root: ET.Element) -> list[tuple[str, float, float, float]]:
    """Return (title, left, top, width) of each box."""
    found = []
    for group in root.iter(f"{NS}g"):
        rect = group.find(f"{NS}rect")
        found.append((group.findtext(f"{NS}title"), *(float(rect.get(key)) for key in ("x", "y", "width"))))
    return found


def test_notes_state_the_unit_of_width_the_extent_and_the_losses():
    name, notes, *_ = [text.text for text in svg(full()).iter(f"{NS}text")]
    assert name == "app"
    assert notes.split("; ") == [
        "width is samples: 11 samples, 71 ns of CPU time, 1.0 s, 100 Hz, 2026-09-21 14:13:20 UTC",
        "1 of 11 samples have a truncated stack",
        "1 of 12 ticks missed",
        "2 captures failed",
    ]


def test_tooltip_states_samples_share_and_cpu_time():
    titles = [title for title, *_ in boxes(svg(full()))]
    assert "outer (/opt/app): 8 samples, 72.73 %, 70 ns of CPU time" in titles
    assert "[truncated: no_module]: 1 sample, 9.09 %" in titles
    threads = [title for title, *_ in boxes(svg(full(), threads=True))]
    assert "worker/11: 3 samples, 27.27 %, 1 ns of CPU time" in threads


def test_box_width_is_its_samples_and_siblings_are_sorted_by_name():
    found = boxes(svg(from_lines("p;b;x 1", "p;a 2", "p;b 1", "p;c;x 4")))
    rows = {top: sorted((left, title.partition(":")[0]) for title, left, top_, _ in found if top_ == top)
            for _, _, top, _ in found}  # fmt: skip
    assert [[name for _, name in rows[top]] for top in sorted(rows, reverse=True)] == [
        ["p"], ["a", "b", "c"], ["x", "x"]
    ]  # fmt: skip
    widths = {title.partition(" (")[0]: width for title, _, _, width in found}
    assert widths["p: 8 samples, 100.00 %"] == 1180
    assert widths["c: 4 samples, 50.00 %"] == 590


def test_too_narrow_boxes_are_counted():
    root = svg(from_lines("p;a 1000000", "p;b;c 1"))
    assert "; 2 boxes too narrow to show" in "".join(root.itertext())
    assert len(boxes(root)) == 2


def test_empty_report_is_a_valid_svg():
    assert boxes(svg(from_lines())) == []


@given(st.text(st.characters(exclude_categories=["Cs"])), st.text(st.characters(exclude_categories=["Cs"])))
def test_any_name_is_written_as_text(name, module):
    builder = ReportBuilder()
    builder.add(ReportThread(name, name, 1, 1), [NamedFrame(name, name, name, module)], "no_row", (3,))
    root = svg(builder.finish())
    tags = ("svg", "title", "style", "rect", "text", "g")
    assert {element.tag for element in root.iter()} <= {f"{NS}{tag}" for tag in tags}
    titles = Counter(re.sub(r".*: ", "", title, flags=re.DOTALL) for title, *_ in boxes(root))
    assert titles == {"3 samples, 100.00 %": 3}
