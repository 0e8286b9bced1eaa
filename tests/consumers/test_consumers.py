"""Tests of the formats in the programs that read them: the samples by function are those of the report."""

import base64
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections import Counter
from html import unescape
from pathlib import Path

import pytest

from sfsample.report.formats import FORMATS
from sfsample.report.report import Report
from tests.browser.chromium import Tab
from tests.builders.reports import full
from tests.consumers import tools

pytestmark = pytest.mark.extended


def counts(report: Report, weight: int = 0, thread: int | None = None) -> tuple[Counter[str], Counter[str]]:
    """Return (self, total) by function, of all threads or one thread; recursion counts once."""
    own: Counter[str] = Counter()
    total: Counter[str] = Counter()
    for stack in report.stacks:
        if thread in (None, stack.thread):
            names = [report.frames[at].text for at in stack.frames]
            own[names[0]] += stack.weights[weight]
            for name in set(names):
                total[name] += stack.weights[weight]
    return own, total


# -- Google's pprof


def pprof(path: Path, *flags: str) -> str:
    return tools.run(
        [*tools.pprof(), "-nodecount=10000", "-nodefraction=0", "-edgefraction=0", *flags, str(path)]
    )


def test_pprof_shows_the_samples_of_each_function(recorded):
    report, directory = recorded
    own, total = counts(report)
    shown = {}
    for line in pprof(directory / "out.pprof", "-top", "-sample_index=samples").splitlines():
        row = re.fullmatch(r" *(\d+) +[\d.]+% +[\d.]+% +(\d+) +[\d.]+%  (.*)", line)
        if row:
            shown[row[3]] = (int(row[1]), int(row[2]))
    assert shown == {name: (own[name], total[name]) for name in total}


def test_pprof_shows_threads_as_labels(recorded):
    report, directory = recorded
    text = pprof(directory / "out.pprof", "-tags", "-sample_index=samples")
    for at, thread in enumerate(report.threads):
        samples = sum(stack.weights[0] for stack in report.stacks if stack.thread == at)
        assert re.search(rf"\b{samples}(\.0)? \([ \d.]+%\): {thread.tid}\n", text)
        assert thread.name in text


@pytest.fixture
def every_field(tmp_path):
    path = tmp_path / "full.pprof"
    path.write_bytes(FORMATS["pprof"].write(full()))
    return path


def test_pprof_shows_lines_inlined_functions_times_and_losses(every_field):
    text = pprof(every_field, "-traces", "-lines", "-sample_index=cpu")
    assert "40ns   inner src/a.cc:3 (inline)\n             outer src/a.cc:30\n             start\n" in text
    assert "0   [0x7f00]\n             [truncated: no_module]\n" in text
    assert "Time: Sep 21, 2026 at 2:13pm (UTC)\nDuration: 1s, Total samples = 71ns" in text
    assert "1 of 12 ticks missed\n2 captures failed\n" in text


def test_pprof_shows_mangled_names_and_build_ids(every_field):
    raw = pprof(every_field, "-raw")
    assert "samples/count[dflt] wall/nanoseconds cpu/nanoseconds\n" in raw
    assert "0x108 M=1 outer src/a.cc:31 s=0(_Zouter)\n" in raw
    assert f"1: 0x0/0x109/0x0 /opt/app {'bb' * 20} [FN][FL][LN][IN]\n" in raw
    assert f"2: 0x0/0x1235/0x0 /usr/lib/libc.so.6 {'aa' * 20} [FN]\n" in raw


# -- flamegraph.pl


def test_flamegraph_draws_the_samples_of_each_function(recorded):
    report, directory = recorded
    text = tools.run([*tools.flamegraph(), "--minwidth=0", str(directory / "out.folded")])
    boxes: Counter[str] = Counter()
    for name, count in re.findall(r"<title>(.*) \(([\d,]+) samples, [\d.]+%\)</title>", text):
        boxes[unescape(name)] += int(count.replace(",", ""))
    expected: Counter[str] = Counter()
    for stack in report.stacks:
        for at in stack.frames:
            expected[report.frames[at].text] += stack.weights[0]
    assert boxes.pop("all") == boxes.pop(report.threads[0].process) == report.total()
    assert boxes == expected


# -- speedscope


@pytest.fixture
def speedscope(browser):
    """Return a function that opens a file in speedscope, offline, and returns the tab."""
    page = tools.package("speedscope") / "dist" / "release" / "index.html"
    tabs = []

    def show(path: Path, name: str) -> Tab:
        loader = path.with_suffix(".loader.js")
        data = base64.b64encode(path.read_bytes()).decode()
        loader.write_text(f'speedscope.loadFileFromBase64("{name}", "{data}")')
        tab = Tab(browser, width=1400, height=2400)
        tabs.append(tab)
        tab.open(f"file://{page}#localProfilePath={loader}", "document.title !== 'speedscope'")
        return tab

    yield show
    for tab in tabs:
        assert tab.exceptions() == []
        tab.__exit__()


def sandwich(tab: Tab) -> dict[str, tuple[int, int]]:
    """Return (self, total) by function, as speedscope's table shows the active thread."""
    tab.press("3")
    tab.wait(r"/Symbol Name\n[^]*%\)/.test(document.body.innerText)")  # the heading is there before the rows
    text = tab.js("document.body.innerText").partition("Symbol Name\n")[2]
    rows = re.findall(r"([\d,]+) \([^)]*%\)\s+([\d,]+) \([^)]*%\)\s+(.+)", text)
    return {name: (int(own.replace(",", "")), int(total.replace(",", ""))) for total, own, name in rows}


def test_speedscope_shows_the_samples_of_each_function(recorded, speedscope):
    report, directory = recorded
    tab = speedscope(directory / "out.speedscope", "out.speedscope.json")
    own, total = counts(report, thread=0)
    assert sandwich(tab) == {name: (own[name], total[name]) for name in total}
    rows = tab.js("[...document.querySelectorAll('tr')].map((r) => [...r.cells].map((c) => c.textContent))")
    shown = {row[1]: row[2] for row in rows}
    for at, thread in enumerate(report.threads):
        samples = sum(stack.weights[0] for stack in report.stacks if stack.thread == at)
        assert shown[f"{thread.name}/{thread.tid} (samples)"] == str(samples)


def test_speedscope_shows_cpu_time_and_elapsed_time(speedscope, tmp_path):
    path = tmp_path / "full.json"
    path.write_bytes(FORMATS["speedscope"].write(full()))
    tab = speedscope(path, "full.speedscope.json")
    rows = tab.js("[...document.querySelectorAll('tr')].map((r) => [...r.cells].map((c) => c.textContent))")
    shown = {row[1]: row[2] for row in rows}
    assert (shown["app/10 (CPU time)"], shown["worker/11 (CPU time)"]) == ("70.00ns", "1.00ns")
    assert (shown["app/10 (elapsed time)"], shown["worker/11 (samples)"]) == ("80.00ns", "3")


@pytest.mark.parametrize(("form", "name"), [("pprof", "out.pb.gz"), ("folded", "out.folded")])
def test_speedscope_reads_pprof_and_folded(recorded, speedscope, form, name):
    report, directory = recorded
    own, _ = counts(report)
    shown = sandwich(speedscope(directory / f"out.{form}", name))
    assert {key: value[0] for key, value in shown.items() if value[0]} == +own


# -- Mozilla's profiler


@pytest.fixture
def firefox():
    """Return a function that loads a file into Mozilla's profiler-cli and returns a function for queries."""
    command = tools.profiler_cli()
    home = tempfile.mkdtemp(prefix="sfsample-firefox-")
    environment = {**os.environ, "HOME": home}

    def load(path: Path):
        # profiler-cli gives its daemon half a second to start, and advises to try again
        for _ in range(20):
            done = subprocess.run(
                [*command, "load", str(path)], env=environment, capture_output=True, text=True, check=False
            )
            if "did not become ready" not in done.stderr:
                break
        assert done.returncode == 0, done.stderr
        return lambda *words: json.loads(tools.run([*command, *words, "--json"], env=environment))

    yield load
    tools.run([*command, "stop", "--all"], env=environment)
    shutil.rmtree(home)


def test_firefox_shows_the_samples_of_each_function(recorded, firefox, tmp_path):
    report, directory = recorded
    path = tmp_path / "out.firefox.json"
    path.write_bytes((directory / "out.firefox").read_bytes())
    query = firefox(path)
    for at in range(len(report.threads)):
        own, total = counts(report, thread=at)
        answer = query("thread", "functions", "--thread", f"t-{at}", "--limit", "0", "--include-idle")
        assert answer["friendlyThreadName"] == report.threads[at].name
        assert {row["name"]: (row["selfSamples"], row["totalSamples"]) for row in answer["functions"]} == {
            name: (own[name], total[name]) for name in total
        }
        modules = {frame.text: Path(frame.module or "").name for frame in report.frames}
        assert {row["name"]: row["library"] for row in answer["functions"]} == {
            name: modules[name] for name in total
        }
