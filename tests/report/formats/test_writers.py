"""Every writer takes time in proportion to the report; work is counted in opcodes, which have no noise."""

import json
import sys
from types import FrameType
from typing import Any

import pytest

from sfsample.report.formats import FORMATS, parse
from sfsample.report.report import Report, ReportBuilder, ReportThread, ReportTimeline
from sfsample.symbolize.named_frame import NamedFrame
from tests.builders.reports import full


def opcodes(report: Report, format_name: str) -> int:
    """Return how many opcodes the writer executes."""
    count = 0

    def trace(frame: FrameType, event: str, _argument: object) -> Any:
        nonlocal count
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        count += event == "opcode"
        return trace

    FORMATS[format_name].write(report)  # imports what it needs
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        FORMATS[format_name].write(report)
    finally:
        sys.settrace(before)
    return count


def threads(count: int) -> Report:
    builder = ReportBuilder()
    for number in range(count):
        builder.add(ReportThread("p", f"t{number}", 1, number), [NamedFrame("f", "f")], "outermost", (1,))
    return builder.finish()


def timed_threads(count: int) -> Report:
    columns = [1] * count
    timeline = ReportTimeline(range(count), range(count), columns, columns, columns)
    return threads(count)._replace(timeline=timeline)


def modules(count: int) -> Report:
    builder = ReportBuilder()
    frames = [NamedFrame(f"f{number}", module=f"/m{number}", address=1) for number in range(count)]
    for frame in frames:
        builder.add(ReportThread("p", "t"), [frame], "outermost", (1,))
    return builder.finish()


def modules_in_threads(count: int) -> Report:
    builder = ReportBuilder()
    for number in range(count):
        frame = NamedFrame(f"f{number}", module=f"/m{number}", address=1)
        builder.add(ReportThread("p", f"t{number}", 1, number), [frame], "outermost", (1,))
    return builder.finish()


def deep(count: int) -> Report:
    builder = ReportBuilder()
    frames = [NamedFrame(f"f{number % 7}") for number in range(count)]
    for number in range(5):
        builder.add(ReportThread("p", "t"), [NamedFrame(f"g{number}"), *frames], "no_row", (1,))
    return builder.finish()


@pytest.mark.parametrize("format_name", FORMATS)
@pytest.mark.parametrize("make", [threads, timed_threads, modules, modules_in_threads, deep])
def test_writer_is_linear(make: Any, format_name: str) -> None:
    small, large = (opcodes(make(count), format_name) for count in (200, 400))
    assert large < 2.4 * small


def test_folded_lines_are_sorted() -> None:
    builder = ReportBuilder()
    names = ["a", "a b", "a:", "a:b", "a!", "ab", "a.b", "a<b", "é", "\N{GRINNING FACE}", "~"]
    for first in names:
        for second in names:
            builder.add(ReportThread(first, "t"), [NamedFrame(second)], "outermost", (1,))
            builder.add(ReportThread(first, "t"), [NamedFrame("c"), NamedFrame(second)], "no_row", (2,))
    lines = FORMATS["folded"].write(builder.finish()).decode().splitlines()
    texts = [line.rpartition(" ")[0] for line in lines]
    assert texts == sorted(texts)
    assert len(lines) == 2 * len(names) ** 2


def test_firefox_stacks_lead_to_the_frames_of_the_report() -> None:
    document = json.loads(FORMATS["firefox"].write(full()))
    found = {}
    for thread in document["threads"]:
        texts, funcs = thread["stringArray"], thread["funcTable"]["name"]
        for row, weight in zip(thread["samples"]["stack"], thread["samples"]["weight"], strict=True):
            names, at = [], row
            while at is not None:
                frame = thread["stackTable"]["frame"][at]
                names.append(texts[funcs[thread["frameTable"]["func"][frame]]])
                at = thread["stackTable"]["prefix"][at]
            key = thread["tid"], *names
            found[key] = found.get(key, 0) + weight
    assert found == {
        (10, "inner", "outer", "start"): 5, (10, "outer", "start"): 3,
        (11, "vfs_read", "[libc.so.6+0x1234]", "start"): 2, (11, "[0x7f00]", "[truncated: no_module]"): 1,
    }  # fmt: skip


def test_svg_shows_the_widest_boxes_of_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sfsample.report.formats.svg._MAX_BOXES", 20)
    report = parse(b"".join(b"p;a%d;b;c %d\n" % (number, 100 - number) for number in range(50)))
    text = FORMATS["svg"].write(report).decode()
    shown = text.count("<g>")
    assert 20 <= shown < 40
    assert f"; {151 - shown} boxes too narrow to show" in text
    assert "<title>a0: " in text
    assert "<title>a49: " not in text


@pytest.mark.parametrize("text", ["\ud83d", "\ud83d\ud83d\ude00", "\\ud83d", "\\\ud83d", "\\\\ud83d"])
def test_json_has_no_lone_surrogates(text: str) -> None:
    from sfsample.report.json_text import json_text

    again = json.loads(json_text({"a": text}))["a"]
    assert again.encode("utf-8")
    assert again == text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def test_json_has_no_nan() -> None:
    from sfsample.report.json_text import json_text

    with pytest.raises(ValueError, match="not JSON compliant"):
        json_text({"a": float("nan")})
