"""Names those frames of a report that have no name, by module and build-id.

A frame that already has a name keeps it.
"""

from collections.abc import Callable, Sequence

from sfsample.report.merge import rebuild
from sfsample.report.report import Report, ReportFrame
from sfsample.symbolize.frame_text import clean_name
from sfsample.symbolize.named_frame import NamedFrame

# (module path, build-id, vaddr, whether the address is exact and not a return address) -> frames, or none
FindNames = Callable[[str, str, int, bool], Sequence[NamedFrame]]
_EXACT = ("context", "signal_frame")  # frames found so are at an instruction; all others at a return address


def symbolize_report(report: Report, find_names: FindNames) -> Report:
    """Return the report with the names that `find_names` knows; an inlined function becomes a frame."""
    table = {frame: _symbolize(frame, find_names) for frame in report.frames}
    return rebuild(report, lambda frames: [new for frame in frames for new in table[frame]])


def _symbolize(frame: ReportFrame, find_names: FindNames) -> tuple[ReportFrame, ...]:
    if frame.function is not None or not frame.module or not frame.build_id or frame.offset is None:
        return (frame,)
    found = find_names(frame.module, frame.build_id, frame.offset, frame.found in _EXACT)
    return tuple(_with_name(frame, named) for named in found if named.function is not None) or (frame,)


def _with_name(frame: ReportFrame, named: NamedFrame) -> ReportFrame:
    return frame._replace(
        text=named.text,
        function=named.function,
        raw=None if named.raw is None else clean_name(named.raw),
        file=named.file,
        line=named.line,
        inlined=named.inlined,
        kind=named.kind,
    )
