"""Names for the frames of a report that have none.

Law: a frame that has a name keeps it.  `names` gives what is known of (module, build-id, offset, exact), and
may give nothing.
"""

from collections.abc import Callable, Sequence

from sfsample.report.merge import rebuild
from sfsample.report.report import Report, ReportFrame
from sfsample.symbolize.frame_text import clean_name
from sfsample.symbolize.named_frame import NamedFrame

Names = Callable[[str, str, int, bool], Sequence[NamedFrame]]
_EXACT = ("context", "signal_frame")  # their address is an instruction's; others return there


def rename(report: Report, names: Names) -> Report:
    """Return the report with the names that can be found."""
    table = {frame: _named(frame, names) for frame in report.frames}
    return rebuild(report, lambda frames: [new for frame in frames for new in table[frame]])


def _named(frame: ReportFrame, names: Names) -> tuple[ReportFrame, ...]:
    if frame.function is not None or not frame.module or not frame.build_id or frame.offset is None:
        return (frame,)
    found = names(frame.module, frame.build_id, frame.offset, frame.found in _EXACT)
    return tuple(_with_name(frame, one) for one in found if one.function is not None) or (frame,)


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
