"""`-f firefox`: a processed profile for https://profiler.firefox.com.

The format is version 49 (docs-developer/CHANGELOG-formats.md in firefox-devtools/profiler; the profiler
upgrades older versions when it loads them).  Each thread has its tables, a table is a set of columns, and a
stack is a chain of prefixes.  With a timeline, samples are at their times; without, one follows the other.
"""

from typing import Any

from sfsample.report.caption import extent, losses
from sfsample.report.json_text import json_text
from sfsample.report.report import CPU, SAMPLES, Report, ReportFrame, ReportStack, truncation_mark

_VERSION = 49
_USER, _KERNEL, _JIT, _TRUNCATED = range(4)  # indexes of _CATEGORIES
_CATEGORIES = [
    {"name": name, "color": color, "subcategories": ["Other"]}
    for name, color in (("User", "yellow"), ("Kernel", "orange"), ("JIT", "green"), ("Truncated", "grey"))
]
_BY_KIND = {"k": _KERNEL, "j": _JIT}


def write(report: Report, *, threads: bool) -> bytes:  # noqa: ARG001 - the file always has the threads
    """Return the file."""
    libs: dict[tuple[str, str | None], int] = {}
    tables = [_ThreadTables(report, number, libs) for number in range(len(report.threads))]
    document = {
        "meta": _meta(report),
        "libs": [_lib(path, build_id) for path, build_id in libs],
        "threads": [table.as_json() for table in tables],
        "pages": [],
        "counters": [],
        "profilerOverhead": [],
    }
    return json_text(document).encode()


def _meta(report: Report) -> dict[str, Any]:
    return {
        "version": 24,
        "preprocessedProfileVersion": _VERSION,
        "product": report.process_names() or "sfsample",
        "importedFrom": "sfsample",
        "interval": _interval_ms(report),
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


def _interval_ms(report: Report) -> float:
    return 1000 / report.rate_hz if report.rate_hz else 1.0


def _lib(path: str, build_id: str | None) -> dict[str, Any]:
    name = path.rpartition("/")[2]
    return {"name": name, "path": path, "debugName": name, "debugPath": path, "arch": None,
            "breakpadId": "", "codeId": build_id}  # fmt: skip


class _ThreadTables:
    """Builds the tables of one thread.  `libs` is shared by all threads: (path, build-id) -> index."""

    def __init__(self, report: Report, number: int, libs: dict[tuple[str, str | None], int]) -> None:
        self._report = report
        self._libs = libs
        self._strings: dict[str, int] = {}
        self._resources: dict[int, int] = {}  # index of the lib -> row
        self._funcs: dict[tuple[str, int, str | None], int] = {}  # name, resource, file
        self._frames: dict[tuple[ReportFrame, int], int] = {}  # with the depth of inlining
        self._stacks: dict[tuple[int | None, int], int] = {}  # row of the prefix, row of the frame
        self._thread = report.threads[number]
        self._samples = self._sample_table(number)

    def _sample_table(self, number: int) -> dict[str, Any]:
        report = self._report
        stack_rows = {
            at: self._stack_row(stack) for at, stack in enumerate(report.stacks) if stack.thread == number
        }
        timeline = report.timeline
        if timeline is not None and not timeline.dropped:
            times_ms = (at_ns / 1e6 for at_ns in timeline.at_ns)
            samples = zip(timeline.stack, times_ms, timeline.samples, timeline.cpu_ns, strict=True)
            rows = [row for row in samples if row[0] in stack_rows]
        else:
            rows = self._rows_without_times(list(stack_rows))
        return {
            "length": len(rows),
            "stack": [stack_rows[at] for at, *_ in rows],
            "time": [time_ms for _, time_ms, *_ in rows],
            "weight": [weight for *_, weight, _ in rows],
            "weightType": "samples",
            **({"threadCPUDelta": [cpu for *_, cpu in rows]} if CPU in report.weights else {}),
        }

    def _rows_without_times(self, stacks: list[int]) -> list[tuple[int, float, int, int]]:
        """Return (stack, time in ms, samples, CPU time in ns); each stack begins where the last one ends."""
        rows, time_ms = [], 0.0
        samples, cpu_ns = self._report.column(SAMPLES), self._report.column(CPU)
        for at in stacks:
            rows.append((at, time_ms, samples[at], cpu_ns[at]))
            time_ms += samples[at] * _interval_ms(self._report)
        return rows

    def _stack_row(self, stack: ReportStack) -> int | None:
        """Add the stack and its prefixes to the stack table; return its row, None without frames."""
        mark = truncation_mark(stack)
        frames = [self._report.frames[at] for at in reversed(stack.frames)]
        row, depth = None, 0
        for frame in [ReportFrame(mark), *frames] if mark else frames:
            depth = depth + 1 if frame.inlined else 0
            number = self._frames.setdefault((frame, depth), len(self._frames))
            row = self._stacks.setdefault((row, number), len(self._stacks))
        return row

    def _string(self, text: str) -> int:
        return self._strings.setdefault(text, len(self._strings))

    def _resource(self, frame: ReportFrame) -> int:
        if frame.module is None:
            return -1
        lib = self._libs.setdefault((frame.module, frame.build_id), len(self._libs))
        return self._resources.setdefault(lib, len(self._resources))

    def _func(self, frame: ReportFrame) -> int:
        key = (frame.function or frame.text, self._resource(frame), frame.file)
        return self._funcs.setdefault(key, len(self._funcs))

    def as_json(self) -> dict[str, Any]:
        """Return the thread object."""
        thread = self._thread
        frames, stacks = self._frame_table(), self._stack_table()
        funcs, resources = self._func_table(), self._resource_table()
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
            "stackTable": stacks,
            "frameTable": frames,
            "funcTable": funcs,
            "resourceTable": resources,
            "nativeSymbols": _table("libIndex", "address", "name", "functionSize"),
            "markers": _table("data", "name", "startTime", "endTime", "phase", "category"),
            "stringArray": list(self._strings),
        }

    def _stack_table(self) -> dict[str, Any]:
        categories = [_category(frame) for frame, _ in self._frames]
        return _table(
            prefix=[prefix for prefix, _ in self._stacks],
            frame=[frame for _, frame in self._stacks],
            category=[categories[frame] for _, frame in self._stacks],
            subcategory=[0] * len(self._stacks),
        )

    def _frame_table(self) -> dict[str, Any]:
        frames = self._frames
        nulls = [None] * len(frames)
        return _table(
            address=[-1 if frame.offset is None else frame.offset for frame, _ in frames],
            inlineDepth=[depth for _, depth in frames],
            category=[_category(frame) for frame, _ in frames],
            subcategory=[0] * len(frames),
            func=[self._func(frame) for frame, _ in frames],
            nativeSymbol=nulls,
            innerWindowID=nulls,
            implementation=nulls,
            line=[frame.line for frame, _ in frames],
            column=nulls,
        )

    def _func_table(self) -> dict[str, Any]:
        nulls, falses = [None] * len(self._funcs), [False] * len(self._funcs)
        return _table(
            name=[self._string(name) for name, _, _ in self._funcs],
            isJS=falses,
            relevantForJS=falses,
            resource=[resource for _, resource, _ in self._funcs],
            fileName=[None if file is None else self._string(file) for _, _, file in self._funcs],
            lineNumber=nulls,
            columnNumber=nulls,
        )

    def _resource_table(self) -> dict[str, Any]:
        paths = [path for path, _ in self._libs]
        return _table(
            lib=list(self._resources),
            name=[self._string(paths[lib].rpartition("/")[2]) for lib in self._resources],
            host=[None] * len(self._resources),
            type=[1] * len(self._resources),  # 1: a library
        )


def _category(frame: ReportFrame) -> int:
    return _TRUNCATED if frame.text.startswith("[truncated: ") else _BY_KIND.get(frame.kind, _USER)


def _table(*empty: str, **columns: list[Any]) -> dict[str, Any]:
    """Return a table: its length, empty columns by name, and columns with values."""
    length = len(next(iter(columns.values()), []))
    return {"length": length, **{name: [] for name in empty}, **columns}
