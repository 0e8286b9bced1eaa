"""`sfsample history`: lists, shows, exports, compares, checks and deletes the slices of `watch`."""

import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any

from sfsample.cli import watch_options as options
from sfsample.cli.diff import write_difference
from sfsample.cli.environment import history_directory
from sfsample.cli.output_file import Output, as_asked, say_written
from sfsample.cli.terminal import say, say_at
from sfsample.core.local_time import local, local_span, zone
from sfsample.core.printable import printable_lines
from sfsample.core.quantities import counted, long_time, spelled_seconds, spelled_size
from sfsample.errors import SfsampleError
from sfsample.history import questions
from sfsample.history.facts import TIERS, Gap, Selection, SliceFacts
from sfsample.history.store import History
from sfsample.report.caption import amounts, losses
from sfsample.report.difference import by_function
from sfsample.report.formats import FORMATS, html
from sfsample.report.json_text import json_text
from sfsample.report.naming import with_python_lines
from sfsample.report.report import CPU, SAMPLES, Report
from sfsample.report.waits import fold_idle, wait_lines

if TYPE_CHECKING:
    from sfsample.watching.push.pusher import Pusher

_MAX_ROWS = 20  # functions or waits in a table, unless verbose


def run(command: options.HistoryCommand) -> int:
    """Run the action; return the exit code."""
    directory = history_directory(command.history)
    if not os.path.isdir(directory):
        what = "it is no directory" if os.path.lexists(directory) else "there is no such directory"
        raise SfsampleError(f"no history: {directory}: {what}",
                            "`sfsample watch` keeps a history; --history names its directory")  # fmt: skip
    history = History(directory)
    try:
        code = _ACTIONS[type(command)](history, command)
    finally:
        history.close()
        for problem in history.problems:
            say(f"skipped: {problem}")
    return code


def _selection(history: History, command: options.HistoryQuestion, at: float | None = None) -> Selection:
    """Return the selection that the flags describe.  `at`: time that is used instead of --at."""
    begin_s, end_s = command.since or 0.0, inf
    if (at := command.at if at is None else at) is not None:
        length_s = command.length or options.CHOSEN_S
        begin_s = time.time() - length_s if at == inf else at
        end_s = begin_s + length_s
    selection = Selection(command.service, begin_s, end_s, dict(command.labels))
    return questions.with_owner(history, selection)


# -- actions


def _list(history: History, command: options.HistoryList) -> int:
    output, selection = Output(command.output.path), _selection(history, command)
    slices, gaps = history.slices(selection), history.gaps(selection)
    if command.output.format == "json":
        document = {"schema": "sfsample.history/1", "slices": [*map(_slice_json, slices)],
                    "gaps": [{"begin": gap.begin_s, "end": gap.end_s, "why": gap.why, "service": gap.service}
                             for gap in gaps]}  # fmt: skip
        output.write(json_text(document))
    else:
        if not gaps:  # without slices, `choose` raises SfsampleError
            questions.choose(history, selection, one_service=False)
        output.write(printable_lines(_table(slices, gaps, verbose=command.verbose)))
    return 0


def _slice_json(facts: SliceFacts) -> dict[str, object]:
    names = ("id", "service", "samples", "tier", "pinned", "build_id", "host", "rate_hz", "mode", "ticks",
             "late_ticks", "duration_ns", "recorder")  # fmt: skip
    return {
        "begin": facts.begin_s, "end": facts.end_s, "labels": dict(facts.labels),
        "cpu_s": facts.cpu_charged_ns / 1e9, "coverage": facts.coverage,
    } | {name: getattr(facts, name) for name in names}  # fmt: skip


def _table(slices: list[SliceFacts], gaps: list[Gap], *, verbose: bool) -> Iterator[str]:
    rows: list[SliceFacts | Gap] = [*slices, *gaps]
    rows.sort(key=lambda row: (row.begin_s, row.service))
    width = max(len(row.service) for row in rows)
    begin = f"begin ({zone(*(row.begin_s for row in rows))})"
    wide = max(len(local(row.begin_s)) for row in rows)
    yield f"{begin:{wide}}  {'length':>8}  {'service':{width}}  samples  CPU time  covered"
    for row in rows:
        length = long_time(row.end_s - row.begin_s)
        columns = f"{local(row.begin_s):{wide}}  {length:>8}  {row.service:{width}}"
        if isinstance(row, Gap):
            yield f"{columns}  gap: {row.why}"
            continue
        covered = "-" if row.coverage is None else f"{100 * row.coverage:.0f} %"
        cpu, pinned = f"{row.cpu_charged_ns / 1e9:.2f} s", "  pinned" if row.pinned else ""
        yield f"{columns}  {row.samples:7}  {cpu:>8}  {covered:>7}{pinned}"
        if verbose and row.labels:
            yield "    " + " ".join(f"{key}={value}" for key, value in row.labels.items())


def _show(history: History, command: options.HistoryShow) -> int:
    if command.output.format != "text":
        return _export(history, command)
    output, selection = Output(command.output.path), _selection(history, command)
    slices, gaps = questions.choose(history, selection), history.gaps(selection)
    report = questions.answer(selection, slices, history.report(selection))
    lines = _summary(slices, gaps, report, command)
    output.write(printable_lines(lines))
    return 0


def _summary(
    slices: list[SliceFacts], gaps: list[Gap], report: Report, command: options.HistoryShow
) -> Iterator[str]:
    last = max(facts.end_s for facts in slices)
    times = local_span(slices[0].begin_s, last)
    yield f"{slices[0].service}: {counted(len(slices), 'slice')}, {times}"
    yield ", ".join(amounts(report))
    builds = [*dict.fromkeys(facts.build_id for facts in slices if facts.build_id)]
    yield from (f"build-id {build}" for build in builds)
    yield from ("lost: " * (not loss.startswith(questions.COVER_ONLY)) + loss for loss in losses(report))
    yield from (f"gap: {local_span(gap.begin_s, gap.end_s)}: {gap.why}" for gap in gaps)
    if command.waits:
        yield ""
        yield from wait_lines(*fold_idle(report), limit=len(report.stacks) if command.verbose else _MAX_ROWS)
        return
    weight, what = (CPU, "CPU time") if report.total(CPU) else (SAMPLES, "samples")
    by_self, by_total = by_function(report, weight)
    for title, counts in (("own time", by_self), ("time with callees", by_total)):
        yield ""
        yield f"functions by {title} (share of {what}):"
        shown = counts.most_common(None if command.verbose else _MAX_ROWS)
        yield from (f"  {100 * number / report.total(weight):6.2f} %  {name}" for name, number in shown)
        if len(counts) > len(shown):
            yield f"  and {len(counts) - len(shown)} more (-v shows all)"


def _export(history: History, command: options.HistoryExport) -> int:
    how = command.output
    output, selection = Output(how.path), _selection(history, command)
    chosen = questions.choose(history, selection)
    write: Callable[..., bytes] = FORMATS[how.format].write
    if how.format == "html":
        report, slices = history.time_slices(selection)
        write = partial(html.write, time_slices=slices)
    else:
        report = history.report(selection)
    report = questions.answer(selection, chosen, report)
    if command.lines:
        report = with_python_lines(report)
    output.write(write(as_asked(report, how), threads=how.threads))
    for missing in report.stats.texts("missing"):
        say(f"warning: {missing}")
    say_written(how, output, quiet=command.quiet)
    return 0


def _diff(history: History, command: options.HistoryDiff) -> int:
    output, is_page = Output(command.output.path), command.output.format == "html"
    selections = _compared(history, command)
    compared = questions.compare(history, selections, keep_reports=is_page, mode=command.mode)
    return write_difference(command, output, compared.sides, compared.reports, compared.ordinary)


def _compared(history: History, command: options.HistoryDiff) -> list[Selection]:
    before, length_s = _selection(history, command), command.length or options.CHOSEN_S
    if command.deploy is not None:
        before, after = questions.deploy(history, before, command.deploy, length_s)
        at = f"{local(after.begin_s)} {zone(after.begin_s)}"
        say(f"deployed {at}: build-id {before.build_id} -> {after.build_id}")
        return [before, after]
    if isinstance(command.other, str):
        build = before._replace(begin_s=0.0, end_s=inf, build_id=command.other)
        begin_s = questions.choose(history, build)[0].begin_s
        return [before, build._replace(begin_s=begin_s, end_s=begin_s + length_s)]
    return [before, _selection(history, command, command.other)]


def _prune(history: History, command: options.HistoryPrune) -> int:
    before, keep_for, keep_bytes = history.slices(), command.retention.keep_for, command.retention.keep_bytes
    history.tidy(time.time(), keep_for, keep_bytes)
    after = history.slices()
    kept = {(facts.service, facts.tier, facts.begin_s // TIERS[facts.tier]) for facts in after}
    deleted = sum(not any((facts.service, tier, facts.begin_s // length_s) in kept
                          for tier, length_s in TIERS.items()) for facts in before)  # fmt: skip
    merged = len(before) - deleted - len(after)
    say(f"{counted(deleted, 'slice')} deleted, {merged:,} merged into others, {len(after):,} kept",
        f"limits: {spelled_seconds(keep_for)} and {spelled_size(keep_bytes)}; the last day always stays",
        *questions.contents(history))  # fmt: skip
    return 0


def _check(history: History, command: options.HistoryCheck) -> int:
    findings = list(history.findings())
    number, count = len(findings), counted(len(history.slices()), "slice")
    outcome = counted(number, "problem") if number else "every slice can be read"
    text = [*findings, f"{history.directory}: {count}: {outcome}"]
    Output(command.path).write(printable_lines(text))
    history.problems.clear()  # the findings contain the problems
    return 1 if findings else 0


def _push(history: History, command: options.HistoryPush) -> int:
    from sfsample.watching.push.backend import check_credentials
    from sfsample.watching.push.pusher import Pusher, follow  # http.client takes long to import

    push = command.push
    pushers = [Pusher(history, backend, push.auth_file, say_at) for backend in push.backends]
    if command.follow:
        follow(pushers)
        return 0
    check_credentials(push)
    return max([_push_all(pusher) for pusher in pushers])


def _push_all(pusher: "Pusher") -> int:
    """Send the slices to one backend; print how many were sent; return the exit code."""
    mark = pusher.mark
    sent, dropped = mark.sent, mark.dropped.copy()
    pusher.push()
    left = sum(1 for _ in pusher.unsent())
    lost = [f", {count} dropped ({why})" for why, count in sorted((mark.dropped - dropped).items())]
    say(f"{pusher.backend.text}: {mark.sent - sent} slices sent{''.join(lost)}, {left} left")
    return 1 if lost or left else 0


_ACTIONS: dict[type[options.HistoryCommand], Callable[[History, Any], int]] = {
    options.HistoryList: _list, options.HistoryShow: _show, options.HistoryExport: _export,
    options.HistoryDiff: _diff, options.HistoryPrune: _prune, options.HistoryCheck: _check,
    options.HistoryPush: _push,
}  # fmt: skip
