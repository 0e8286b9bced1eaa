"""Reports, slices and histories for tests: small ones, and what a report holds by stack.

Times are in units of TIME_UNIT_NS, as a history keeps them.
"""

from collections import Counter
from contextlib import closing

from sfsample.history.facts import Selection, Slice
from sfsample.history.files import HistoryFile
from sfsample.history.paths import file_names
from sfsample.history.store import History
from sfsample.report.report import OUTERMOST, WEIGHTS, Report, ReportBuilder, ReportThread
from sfsample.report.stats import ReportStats
from sfsample.report.time_slices import TIME_UNIT_NS
from sfsample.symbolize.named_frame import NamedFrame

DAY_S = 86400
MIDNIGHT_S = 20_000 * DAY_S  # some day, 00:00 UTC


def report(*rows: tuple[str, int, int, int], tid: int = 7, rate_hz: float = 19.0) -> Report:
    """Return a report of rows such as ("main;work", samples, wall time, CPU time)."""
    builder = ReportBuilder(WEIGHTS)
    for text, samples, *times in rows:
        frames = [NamedFrame(name, function=name, module="/usr/bin/app", build_id="ab12", address=16)
                  for name in reversed(text.split(";"))]  # fmt: skip
        builder.add(ReportThread("app", "worker", tid, tid), frames, OUTERMOST,
                    (samples, *(time * TIME_UNIT_NS for time in times)))  # fmt: skip
    samples, cpu_ns = sum(row[1] for row in rows), sum(row[3] for row in rows)
    stats = {"mode": "wall", "ticks": 1140, "late_ticks": 3, "samples": samples, "problems": ["one"],
             "cpu_charged_ns": 2 * cpu_ns, "cpu_sampled_ns": cpu_ns, "captures": {"failed": 2}}  # fmt: skip
    return builder.finish()._replace(
        duration_ns=60 * 10**9, rate_hz=rate_hz, host="web1", stats=ReportStats(stats)
    )


def minute(at: int, *rows: tuple[str, int, int, int], service: str = "redis",
           labels: dict[str, str] | None = None, build_id: str | None = None) -> Slice:  # fmt: skip
    """Return the slice of a minute of the day."""
    begin_s = MIDNIGHT_S + 60.0 * at
    of = report(*(rows or [("main;work", 5, 50, 40)]))._replace(labels=labels, target={"build_id": build_id})
    return Slice(begin_s, begin_s + 60, service, of)


def sums(of: Report) -> Counter[tuple[object, ...]]:
    """Return the weights of each stack by what it is: process, thread, frames, why it ends."""
    found: Counter[tuple[object, ...]] = Counter()
    for stack in of.stacks:
        thread = of.threads[stack.thread]
        frames = tuple(of.frames[at] for at in stack.frames)
        for name, weight in zip(of.weights, stack.weights, strict=True):
            found[thread.process, thread.name, frames, stack.stop_reason, name] += weight
    return found


def by_service(history: History) -> dict[str, Counter[tuple[object, ...]]]:
    """Return the sums of each service."""
    services = {facts.service for facts in history.slices()}
    return {service: sums(history.report(Selection(service))) for service in services}


def delete(history: History, selection: Selection) -> int:
    """Delete slices, as a history does that is too large; return how many."""
    count = 0
    for name in file_names(history.directory):
        with closing(HistoryFile(name.path, write=True)) as file, file.writing():
            chosen = [*filter(selection.has, file.facts())]
            file.delete(chosen)
            count += len(chosen)
    return count
