"""Builds reports: small ones from folded lines, and one with every field filled."""

from sfsample.report.difference import Difference, compare_sides, count
from sfsample.report.formats import parse
from sfsample.report.report import WEIGHTS, Report, ReportBuilder, ReportThread, ReportTimeline
from sfsample.report.stats import ReportStats
from sfsample.symbolize.named_frame import NamedFrame

LIBC, APP = ("/usr/lib/libc.so.6", "aa" * 20), ("/opt/app", "bb" * 20)


def from_lines(*lines: str) -> Report:
    """Return the report that folded lines describe."""
    return parse("\n".join(lines).encode())


def compare(before: Report, after: Report, *, relative: bool = False) -> Difference:
    """Return what changed between two reports."""
    return compare_sides(count(before), count(after), relative=relative)


def frame(
    text: str, module: tuple[str, str | None] = APP, offset: int = 0x100, **fields: object
) -> NamedFrame:
    """Return a frame with the fields that a symbolizer fills."""
    known = {
        "function": text.removesuffix("_[i]").removesuffix("_[k]"),
        "raw": f"_Z{text}",
        "file": "src/a.cc",
        "line": 7,
    }
    return NamedFrame(text, module=module[0], build_id=module[1], address=offset, **{**known, **fields})  # type: ignore[arg-type]


def full() -> Report:
    """Return a report in which every field of every table is used."""
    main, worker = ReportThread("app", "app", 10, 10), ReportThread("app", "worker", 10, 11)
    start = frame("start", LIBC, 0x40, file=None, line=None, found="eh_frame")
    inner, outer = frame("inner_[i]", line=3, inlined=True), frame("outer", line=30, found="sframe")
    unnamed = NamedFrame("[libc.so.6+0x1234]", None, None, *LIBC, 0x1234, found="context")
    kernel = frame("vfs_read_[k]", ("[kernel]", None), 0xFFFF, raw="vfs_read", file=None, line=None, kind="k")
    lost = NamedFrame("[0x7f00]", address=0x7F00)
    builder = ReportBuilder(WEIGHTS)
    rows = [
        (main, [inner, outer, start], "outermost", (5, 50, 40)),
        (main, [frame("outer", line=31, offset=0x108, found="sframe"), start], "outermost", (3, 30, 30)),
        (worker, [kernel, unnamed, start], "outermost", (2, 20, 1)),
        (worker, [lost], "no_module", (1, 10, 0)),
    ]
    stacks = [builder.add(*row) for row in rows]
    samples = [
        (at, n) for at, (_, _, _, weights) in zip(stacks, rows, strict=True) for n in range(weights[0])
    ]
    timeline = ReportTimeline(
        at_ns=[1_000_000 * at for at in range(len(samples))],
        stack=[at for at, _ in samples],
        samples=[1] * len(samples),
        wall_ns=[10] * len(samples),
        cpu_ns=[rows[at][3][2] if n == 0 else 0 for at, n in samples],
    )
    stats = {"ticks": 12, "late_ticks": 1, "captures": {"failed": 2}}
    return builder.finish()._replace(
        started_ns=1_790_000_000 * 10**9,
        duration_ns=10**9,
        rate_hz=100.0,
        timeline=timeline,
        stats=ReportStats(stats),
        host="web1",
        labels={"service.name": "shop", "team": "a=b"},
        target={
            "exe": "/opt/app",
            "build_id": APP[1],
            "unit": "app.service",
            "container": "c" * 64,
            "started": 1_789_990_000.25,
        },
    )
