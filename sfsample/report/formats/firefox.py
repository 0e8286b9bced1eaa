"""`-f firefox`: a processed profile for https://profiler.firefox.com.

The format is version 49 (docs-developer/CHANGELOG-formats.md in firefox-devtools/profiler; the profiler also
loads older versions).  Each thread has its own tables of columns.  A row of the stack table has the innermost
frame, and the row of the caller's stack.  Without a timeline, samples follow each other without gaps.
"""

from collections.abc import Iterator
from itertools import accumulate
from typing import Any

from sfsample.report.caption import extent, losses
from sfsample.report.json_text import json_text
from sfsample.report.report import CPU, SAMPLES, Numbers, Report, ReportStack, ReportThread, truncation_mark
from sfsample.symbolize.named_frame import NamedFrame

_VERSION = 49
_RATE_HZ = 1000  # rate to assume if a report has none
_USER, _KERNEL, _JIT, _TRUNCATED, _PYTHON = range(5)  # indexes into _CATEGORIES
_COLORS = {"User": "yellow", "Kernel": "orange", "JIT": "green", "Truncated": "grey", "Python": "blue"}
_CATEGORIES = [{"name": name, "color": color, "subcategories": ["Other"]} for name, color in _COLORS.items()]
_BY_KIND = {"k": _KERNEL, "j": _JIT, "p": _PYTHON}
_Row = tuple[int, float, int, int]  # a sample: index of its stack, time in ms, samples, CPU time in ns
_Module = tuple[str, str | None]  # path and build-id


def write(report: Report, *, threads: bool) -> bytes:  # noqa: ARG001 - the file always has the threads
    """Return the file."""
    libs = Numbers[_Module]()
    tables = [_ThreadTables(report, libs, *rows).as_json() for rows in _rows_by_thread(report)]
    document = {
        "meta": _meta(report),
        "libs": [{"name": (name := path.rpartition("/")[2]), "path": path, "debugName": name,
                  "debugPath": path, "arch": None, "breakpadId": "", "codeId": build_id}
                 for path, build_id in libs],
        "threads": tables,
        "pages": [],
        "counters": [],
        "profilerOverhead": [],
    }  # fmt: skip
    return json_text(document).encode()


def _meta(report: Report) -> dict[str, Any]:
    return {
        "version": 24,
        "preprocessedProfileVersion": _VERSION,
        "product": report.process_names() or "sfsample",
        "importedFrom": "sfsample",
        "interval": 1000 / (report.rate_hz or _RATE_HZ),
        "startTime": (report.started_ns or 0) / 1e6,
        "processType": 0,
        "categories": _CATEGORIES,
        "markerSchema": [],
        "symbolicated": True,
        "debug": False,
        "usesOnlyOneStackType": True,
        "doesNotUseFrameImplementation": True,
        "sourceCodeIsNotOnSearchfox": True,
        "sampleUnits": {"time": "ms", "eventDelay": "ms", "threadCPUDelta": "ns"},
        "extra": [{"label": label, "entries": [
            {"label": text, "format": "string", "value": text} for text in texts]}
            for label, texts in (("Recording", [extent(report)]), ("Losses", losses(report)))],
        "extensions": {"length": 0, "id": [], "name": [], "baseURL": []},
    }  # fmt: skip


def _rows_by_thread(report: Report) -> Iterator[tuple[ReportThread, list[int], list[_Row]]]:
    """Yield each thread, its stacks and its samples; without times, samples follow each other."""
    stacks: list[list[int]] = [[] for _ in report.threads]
    for at, stack in enumerate(report.stacks):
        stacks[stack.thread].append(at)
    timeline = report.timeline
    if timeline is None or timeline.dropped:
        samples, cpu_ns = report.column(SAMPLES), report.column(CPU)
        interval_ms = 1000 / (report.rate_hz or _RATE_HZ)
        for thread, own in zip(report.threads, stacks, strict=True):
            ends_ms = accumulate((samples[at] * interval_ms for at in own), initial=0.0)
            rows = [(at, ms, samples[at], cpu_ns[at]) for at, ms in zip(own, ends_ms, strict=False)]
            yield thread, own, rows
        return
    timed: list[list[_Row]] = [[] for _ in report.threads]
    times_ms = (at_ns / 1e6 for at_ns in timeline.at_ns)
    for row in zip(timeline.stack, times_ms, timeline.samples, timeline.cpu_ns, strict=True):
        timed[report.stacks[row[0]].thread].append(row)
    yield from zip(report.threads, stacks, timed, strict=True)


class _ThreadTables:
    """Builds the tables of one thread.  All threads share `libs`."""

    def __init__(self, report: Report, libs: Numbers[_Module], thread: ReportThread,
                 stacks: list[int], rows: list[_Row]) -> None:  # fmt: skip
        self._report = report
        self._libs = libs
        self._strings = Numbers[str]()
        self._resources = Numbers[tuple[int, str]]()  # index of the lib, and its path
        self._funcs = Numbers[tuple[str, int, str | None]]()  # name, resource, file
        self._frames = Numbers[tuple[int | str, int]]()  # frame, or a mark of truncation; depth of inlining
        self._stacks = Numbers[tuple[int | None, int]]()  # row of the caller's stack, innermost frame
        self._thread = thread
        stack_rows = {at: self._stack_row(report.stacks[at]) for at in stacks}
        self._samples = {
            "length": len(rows),
            "stack": [stack_rows[at] for at, *_ in rows],
            "time": [time_ms for _, time_ms, *_ in rows],
            "weight": [weight for *_, weight, _ in rows],
            "weightType": "samples",
            **({"threadCPUDelta": [cpu for *_, cpu in rows]} if CPU in report.weights else {}),
        }

    def _stack_row(self, stack: ReportStack) -> int | None:
        """Return the row of a stack in the stack table; None: it has no frames."""
        mark, depth = truncation_mark(stack), 0
        row = self._stacks[None, self._frames[mark, 0]] if mark else None
        for at in reversed(stack.frames):
            depth = depth + 1 if self._report.frames[at].inlined else 0
            row = self._stacks[row, self._frames[at, depth]]
        return row

    def as_json(self) -> dict[str, Any]:
        """Return the thread object."""
        thread, frames = self._thread, self._frame_table()  # called first: it fills functions and resources
        funcs = self._func_table()
        resources = _table(
            lib=[lib for lib, _ in self._resources],
            name=[self._strings[path.rpartition("/")[2]] for _, path in self._resources],
            host=[None] * len(self._resources),
            type=[1] * len(self._resources),  # 1: a library
        )
        return {
            "name": thread.name,
            "processName": thread.process,
            "processType": "default",
            "isMainThread": thread.tid is not None and thread.tid == thread.pid,
            "pid": str(thread.pid or 0),
            "tid": thread.tid or 0,
            "registerTime": 0,
            "unregisterTime": None,
            "processStartupTime": 0,
            "processShutdownTime": None,
            "pausedRanges": [],
            "samples": self._samples,
            "stackTable": _table(
                prefix=[prefix for prefix, _ in self._stacks],
                frame=[frame for _, frame in self._stacks],
                category=[frames["category"][frame] for _, frame in self._stacks],
                subcategory=[0] * len(self._stacks),
            ),
            "frameTable": frames,
            "funcTable": funcs,
            "resourceTable": resources,
            "nativeSymbols": _table("libIndex", "address", "name", "functionSize"),
            "markers": _table("data", "name", "startTime", "endTime", "phase", "category"),
            "stringArray": list(self._strings),
        }

    def _frame_table(self) -> dict[str, Any]:
        all_frames = self._report.frames
        rows = [
            (NamedFrame(at) if isinstance(at, str) else all_frames[at], depth) for at, depth in self._frames
        ]
        nulls, functions = [None] * len(rows), []
        for frame, _ in rows:
            path = frame.module
            resource = -1 if path is None else self._resources[self._libs[path, frame.build_id], path]
            functions.append(self._funcs[frame.function or frame.text, resource, frame.file])
        categories = [_TRUNCATED if frame.text.startswith("[truncated: ") else _BY_KIND.get(frame.kind, _USER)
                      for frame, _ in rows]  # fmt: skip
        return _table(
            address=[-1 if frame.address is None else frame.address for frame, _ in rows],
            inlineDepth=[depth for _, depth in rows],
            category=categories,
            subcategory=[0] * len(rows),
            func=functions,
            nativeSymbol=nulls,
            innerWindowID=nulls,
            implementation=nulls,
            line=[frame.line for frame, _ in rows],
            column=nulls,
        )

    def _func_table(self) -> dict[str, Any]:
        nulls, falses = [None] * len(self._funcs), [False] * len(self._funcs)
        return _table(
            name=[self._strings[name] for name, _, _ in self._funcs],
            isJS=falses,
            relevantForJS=falses,
            resource=[resource for _, resource, _ in self._funcs],
            fileName=[None if file is None else self._strings[file] for _, _, file in self._funcs],
            lineNumber=nulls,
            columnNumber=nulls,
        )


def _table(*empty: str, **columns: list[Any]) -> dict[str, Any]:
    length = len(next(iter(columns.values()), []))
    return {"length": length, **{name: [] for name in empty}, **columns}
