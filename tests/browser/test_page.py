"""Tests of the html page in a real browser: what the user clicks, types and reads."""

import json
import random
import re
from collections import Counter

import pytest

from sfsample.report.formats import FORMATS
from sfsample.report.report import ReportBuilder, ReportThread
from sfsample.report.stats import ReportStats
from sfsample.symbolize.named_frame import NamedFrame
from tests.browser.page import REPORT, ROW, TABLE_ROWS, Page
from tests.builders.reports import compare, from_lines, full

BACKGROUND = "getComputedStyle(document.body).backgroundColor"


def test_page_opens_with_the_whole_graph(page):
    assert page.text("#title") == "p"
    assert page.text("#extent") == "10 samples"
    assert page.status.startswith("all  ·  10 samples, 100.0 % of all")
    assert page.js("document.getElementById('losses').hidden")


def test_header_says_what_was_recorded_where_and_when(browser, tmp_path):
    stats = {"mode": "wall", "recorder": "sfsample 0.1.0"}
    report = full()._replace(host="db1", stats=ReportStats(stats))
    with Page(browser, tmp_path, report, time_zone="Asia/Tokyo") as page:
        assert page.text("#origin") == "pid 10 on db1, 2026-09-21 14:13:20 UTC, by sfsample 0.1.0"
        assert page.js("document.getElementById('origin').title") == "began at 2026-09-21T14:13:20.000Z"
        assert page.text("#extent") == "11 samples, 71 ns of CPU time, 1.0 s, 100 Hz, sleeping threads too"
        assert page.text("#labels") == "team=a=b, service.name=shop"


def test_header_leaves_out_what_is_unknown(browser, tmp_path):
    builder = ReportBuilder()
    for pid in range(1, 12):
        builder.add(ReportThread("p", "p", pid, pid), [], "outermost", (1,))
    with Page(browser, tmp_path, builder.finish()) as page:
        assert page.text("#origin") == "pids 1, 2, 3, 4, 5, 6, 7, 8 and 3 more"
    with Page(browser, tmp_path, REPORT) as page:
        assert page.js("document.getElementById('origin').hidden")
        assert page.js("document.getElementById('labels').hidden")


def test_click_zooms_and_escape_returns(page):
    page.click(*page.at(3, 0.21))  # p; idle | main; hash | dict_get, write: 20 % to 80 %
    assert page.status.startswith("dict_get  ·  6 samples, 60.0 % of all; 100.0 % of what is shown")
    page.click(*page.at(4, 0.5))  # now over the whole width: hash is two thirds
    assert page.status.startswith("hash  ·  4 samples, 40.0 % of all")
    page.press("Escape")
    page.click(*page.at(3, 0.85))
    assert page.status.startswith("write  ·  2 samples")


def test_hovering_shows_the_function(page):
    page.move(*page.at(2, 0.5))
    assert page.js("document.getElementById('tip').hidden") is False
    assert page.text("#tip").startswith("main8 samples, 80.0 % of all")


def test_search_shows_the_matched_share(page):
    page.press("/")
    page.type("hash")
    assert page.text("#matched") == "60.0 % matched"
    page.type("nothing like it")
    assert page.text("#matched") == "0.00 % matched"
    page.press("Escape")
    assert page.text("#matched") == ""


def test_callers_button_shows_the_callers_of_each_function(page):
    page.click_on("#invert")
    page.click(*page.at(1, 0.3))  # hash 6 | dict_get 2 | write 2
    assert page.status.startswith("hash  ·  6 samples, 60.0 % of all")
    page.click(*page.at(2, 0.1))  # its callers: dict_get 4, idle 2
    assert page.status.startswith("dict_get  ·  4 samples, 40.0 % of all")
    page.press("i")
    assert page.js("document.getElementById('invert').getAttribute('aria-pressed')") == "false"


def test_flame_button_draws_the_root_at_the_bottom(page):
    page.press("f")
    height = page.js("document.getElementById('graph').clientHeight")
    x, top = page.at(0, 0.5)
    page.click(x, top + height - ROW)
    assert page.status.startswith("all")
    page.click(x, top + height - 3 * ROW)
    assert page.status.startswith("main")


def test_arrow_keys_move_the_selection(page):
    page.js("document.getElementById('canvas').focus()")
    keys = (("Down", "p"), ("Down", "main"), ("Down", "dict_get"), ("Right", "write"), ("Up", "main"))
    for key, function in (*keys, ("Left", "idle")):
        page.press(f"Arrow{key}")
        assert page.status.startswith(f"{function}  ·")
    page.press("Enter")
    assert "100.0 % of what is shown" in page.status


def test_table_sorts_and_searches(page):
    page.press("t")
    assert page.table()[0][:3] == ["60.0 %", "60.0 %", "hash"]
    page.click_on("th:nth-child(2) button")
    shares = [float(row[1].split()[0]) for row in page.table()]
    assert shares == sorted(shares, reverse=True)
    assert [row[2] for row in page.table()][:2] == ["p", "main"]
    page.click_on("tbody tr:nth-child(3)")
    assert page.text("#matched") == "60.0 % matched"


def test_row_of_the_table_selects_exactly_its_function(browser, tmp_path):
    """A longer name that contains it is another function (`call` once showed the sum of `call_site`, too)."""
    with Page(browser, tmp_path, from_lines("p;call;x 7", "p;call_site 2", "p;recall 1")) as page:
        page.press("t")
        rows = page.table()
        row = next(at for at, cells in enumerate(rows, 1) if cells[2] == "call")
        page.click_on(f"tbody tr:nth-child({row})")
        assert page.text("#matched") == "70.0 % matched"
        assert page.js("document.getElementById('search').value") == '"call"'


@pytest.mark.parametrize(
    ("typed", "shown"),
    [("call", "100.0 % matched"), ('"call"', "70.0 % matched"), ("/^call/", "90.0 % matched"),
     ("/^CALL/", "0.00 % matched"), ("/^CALL/i", "90.0 % matched"), ("/(/", "not a regular expression: "),
     ("/", "0.00 % matched"), ("/call", "0.00 % matched")],
)  # fmt: skip
def test_search_knows_parts_names_and_regular_expressions(browser, tmp_path, typed, shown):
    with Page(browser, tmp_path, from_lines("p;call;x 7", "p;call_site 2", "p;recall 1")) as page:
        page.press("/")
        page.type(typed)
        assert page.text("#matched").startswith(shown)
        page.press("Escape")
        assert page.text("#matched") == ""


def test_thread_and_weight_selects_change_the_sums(browser, tmp_path):
    with Page(browser, tmp_path, full()) as page:
        assert (
            page.text("#losses")
            == "1 of 11 samples have a truncated stack; 1 of 12 ticks missed; 2 captures failed"
        )
        page.choose("#thread", "worker/11")
        assert page.status.startswith("all  ·  3 samples")
        page.choose("#weight", "CPU time")
        assert page.status.startswith("all  ·  1.00 ns")
        page.choose("#thread", "all")
        assert page.status.startswith("all  ·  71.0 ns")
        page.choose("#colour", "how it was found")
        assert page.exceptions() == []


def test_search_and_placeholder_fit_their_places(browser, tmp_path):
    with Page(browser, tmp_path, full()) as page:
        height, field = "document.getElementById('bar').clientHeight", "document.getElementById('search')"
        pen, font = "document.createElement('canvas').getContext('2d')", f"getComputedStyle({field}).font"
        text = f"Object.assign({pen}, {{ font: {font} }}).measureText({field}.placeholder)"
        assert page.js(f"{text}.width < {field}.clientWidth - 16")
        before = page.js(height)
        page.press("/")
        page.type("out")
        assert page.text("#matched").endswith(" matched")
        assert page.js(height) == before


def test_header_has_readable_labels_and_counts_others(browser, tmp_path):
    labels = {
        "comm": "x",
        "process.linux.cgroup": "/a",
        "host.name": "db1",
        "service.name": "shop",
        "team": "a",
    }
    with Page(browser, tmp_path, full()._replace(labels=labels)) as page:
        assert page.text("#labels") == "team=a, service.name=shop and 3 labels"
        assert "process.linux.cgroup=/a" in page.js("document.getElementById('labels').title")


PYTHON_FILES = {
    "/srv/app/app.py": ("app.py", "mine"),
    "/srv/app/views/app.py": ("views/app.py", "mine"),
    "/srv/app/venv/lib/python3.12/site-packages/flask/app.py": ("flask/app.py", "packages"),
    "/usr/lib/python3.12/json/decoder.py": ("json/decoder.py", "standard library"),
    "<frozen runpy>": ("<frozen runpy>", "standard library"),
}


def test_python_is_coloured_by_mine_packages_and_standard_library(browser, tmp_path):
    builder = ReportBuilder()
    for file, (path, _) in PYTHON_FILES.items():
        frame = NamedFrame(f"f ({path}:1)", "f", file=file, kind="p", found="python")
        builder.add(ReportThread("p", "p"), [frame], "outermost", (1,))
    builder.add(ReportThread("p", "p"), [NamedFrame("c", "c", module="/lib/libc.so.6")], "outermost", (5,))
    with Page(browser, tmp_path, builder.finish()) as page:
        lines = "[...document.getElementById('legend').children].map((line) => line.textContent)"
        assert {*page.js(lines)} == {
            "native code 50.0 %", "mine 20.0 %", "packages 10.0 %", "standard library 20.0 %"
        }  # fmt: skip
        page.choose("#colour", "module")
        assert {line.rsplit(" ", 2)[0] for line in page.js(lines)} == {
            "libc.so.6", *(path for path, _ in PYTHON_FILES.values())
        }  # fmt: skip
        page.js(
            "[...document.querySelectorAll('#legend button')]"
            ".find((button) => button.textContent.startsWith('views/')).click()"
        )
        assert page.text("#matched") == "10.0 % matched"


GO_FUNCTIONS = {
    "runtime.mallocgc": "Go runtime", "internal/runtime/maps.(*Map).getWithKey": "Go runtime",
    "net/http.(*conn).serve": "standard library", "fmt.Println": "standard library",
    "github.com/prometheus/client_golang/prometheus.(*Registry).Gather": "packages",
    "main.work": "mine", "shop/orders.(*Cart).total": "mine", "cspin": "native code",
}  # fmt: skip


def test_legend_has_owners_that_only_call_others(browser, tmp_path):
    builder, path = ReportBuilder(), "/srv/venv/lib/python3.12/site-packages/flask/app.py"
    flask = NamedFrame("f (flask/app.py:1)", "f", file=path, kind="p", found="python")
    builder.add(
        ReportThread("p", "p"), [NamedFrame("c", "c", module="/lib/libc.so.6"), flask], "outermost", (1,)
    )
    with Page(browser, tmp_path, builder.finish()) as page:
        lines = "[...document.getElementById('legend').children].map((line) => line.textContent)"
        assert page.js(lines) == ["native code 100.0 %", "packages 0.00 %"]


def test_go_is_coloured_by_runtime_standard_library_packages_and_mine(browser, tmp_path):
    builder, go = ReportBuilder(), {"module": "/srv/shop", "found": "gopclntab"}
    for name in GO_FUNCTIONS:
        caller = NamedFrame("main.main", "main.main", **go)
        builder.add(
            ReportThread("p", "p"), [NamedFrame(name, name, module="/srv/shop"), caller], "outermost", (1,)
        )
    with Page(browser, tmp_path, builder.finish()) as page:
        assert page.js("document.getElementById('colour').value") == "owner"
        lines = "[...document.getElementById('legend').children].map((line) => line.textContent)"
        assert {*page.js(lines)} == {
            "Go runtime 25.0 %", "standard library 25.0 %", "packages 12.5 %", "mine 25.0 %",
            "native code 12.5 %",
        }  # fmt: skip


def test_waits_are_coloured_by_their_cause(browser, tmp_path):
    builder, main = ReportBuilder(), NamedFrame("main", "main")
    lock, disk = (NamedFrame(f"[{name}]", f"[{name}]", kind, kind="w", found="wait")
                  for name, kind in (("mutex m", "lock"), ("disk: fsync", "disk")))  # fmt: skip
    idle = NamedFrame("[idle: w]", "[idle: w]", "sleep", kind="w", found="idle")
    held = [disk, NamedFrame("flush", "flush"), NamedFrame("[held by]w", "[held by]w"), lock, main]
    for frames, count in (([main], 5), ([lock, main], 2), (held, 2), ([disk, main], 1), ([idle], 10)):
        builder.add(ReportThread("p", "p"), frames, "outermost", (count,))
    with Page(browser, tmp_path, builder.finish()) as page:
        page.choose("#colour", "cause of the wait")
        lines = "[...document.getElementById('legend').children].map((line) => line.textContent)"
        assert page.js(lines) == ["idle 50.0 %", "no wait 25.0 %", "lock 20.0 %", "disk 5.00 %"], (
            "the holder's is no wait of its own"
        )
        colours = page.js("[...document.querySelectorAll('#legend i')].map((s) => s.style.background)")
        assert len(set(colours)) == 3
    with Page(browser, tmp_path, REPORT) as page:
        assert "cause of the wait" not in page.text("#colour")


def test_functions_have_colours_if_no_module_is_known(browser, tmp_path):
    with Page(browser, tmp_path, REPORT) as page:
        lines = "[...document.getElementById('legend').children].map((line) => line.textContent)"
        assert page.js(lines)[0] == "hash 60.0 %"
        page.click_on("#legend button")
        assert page.text("#matched") == "60.0 % matched"


def test_legend_explains_the_colours(browser, tmp_path):
    with Page(browser, tmp_path, full()) as page:
        lines = "[...document.getElementById('legend').children].map((line) => line.textContent)"
        assert page.js(lines) == ["app 72.7 %", "[kernel] 18.2 %", "no module 9.09 %", "libc.so.6 0.00 %"]
        colours = page.js(
            "[...document.querySelectorAll('#legend i')].map((swatch) => swatch.style.background)"
        )
        assert len(set(colours)) == 4
        page.click_on("#legend button")
        assert page.text("#matched") == "72.7 % matched"
        page.choose("#colour", "how it was found")
        ways = dict(line.rsplit(" ", 2)[:2] for line in page.js(lines))
        assert ways == {"eh_frame": "50.0", "sframe": "40.0", "context": "10.0"}


@pytest.mark.parametrize("names", [3, 100, 5000])  # numbers of one, two and three letters
def test_tree_of_random_paths_has_the_right_sums(browser, tmp_path, names):
    """The sums by node are the sums over the stacks."""
    rng = random.Random(names)  # noqa: S311 - the same every time
    stacks = Counter(
        tuple(f"f{rng.randrange(names)}" for _ in range(rng.randint(1, 6))) for _ in range(3 * names)
    )  # also: recursion, and stacks that are the beginning of others
    report = from_lines(*(f"p;{';'.join(stack)} {count}" for stack, count in stacks.items()))
    own, total = Counter(), Counter()
    for stack, count in stacks.items():
        own[stack[-1]] += count
        for name in {"p", *stack}:
            total[name] += count
    with Page(browser, tmp_path, report) as page:
        page.press("t")
        row = "(r) => [r.cells[2].textContent.trim(), r.cells[0].title, r.cells[1].title]"
        shown = page.js(f"[...document.querySelectorAll('tbody tr')].map({row})")
        counts = {name: (int(self.split()[0]), int(whole.split()[0])) for name, self, whole in shown}
        assert len(counts) == min(len(total), 500)
        assert counts.items() <= {name: (own[name], total[name]) for name in total}.items()


HOSTILE = ["<script>alert(1)</script>", "</script><img src=x onerror=window.broken=1>", "<!--", "]]>",
           "&lt;b&gt;", "\u202ename", "${window.broken=1}", "'\"`", "__proto__", "constructor",
           "/*{{profile}}*/", "\u2028"]  # fmt: skip


def test_names_are_text_and_never_markup(browser, tmp_path):
    builder = ReportBuilder()
    for name in HOSTILE:
        frame = NamedFrame(name, name, name, name, None, 1, found=name)
        builder.add(ReportThread(name, name, 1, 1), [frame], name, (1,))
    with Page(browser, tmp_path, builder.finish()) as page:
        page.press("t")
        shown = " ".join(row[-1] for row in page.table())
        assert all(name.strip() in shown for name in HOSTILE if name != "\u2028")
        page.move(*page.at(1, 0.5))
        assert page.js("window.broken") is None
        assert page.js("document.querySelectorAll('img, script:not([type])').length") == 1
        assert page.exceptions() == []


@pytest.mark.parametrize("dark", [False, True])
def test_theme_follows_the_system(browser, tmp_path, dark):
    with Page(browser, tmp_path, REPORT, dark=dark) as page:
        assert page.js(BACKGROUND) == ("rgb(22, 24, 27)" if dark else "rgb(255, 255, 255)")
        page.press("d")
        assert page.js(BACKGROUND) == ("rgb(255, 255, 255)" if dark else "rgb(22, 24, 27)")


@pytest.mark.parametrize("width", [360, 400])
def test_page_fits_the_width_of_a_phone(browser, tmp_path, width):
    with Page(browser, tmp_path, full(), width=width, height=640) as page:
        page.select("Down", "Down", "Down")
        page.press("s")  # which adds a line above the graph
        assert page.js("document.documentElement.scrollWidth") == width
        assert page.js("document.getElementById('graph').clientHeight") > 150
        outside = f"(e) => {{ const r = e.getBoundingClientRect(); return r.left < 0 || r.right > {width}; }}"
        controls = "[...document.querySelectorAll('#bar *, footer *')].filter((e) => e.checkVisibility())"
        assert page.js(f"{controls}.filter({outside}).length") == 0
        cut = "(e) => e.scrollWidth > e.clientWidth + 1"
        assert page.js(f"[...document.querySelectorAll('button')].filter({cut}).map((e) => e.id)") == []
        page.click(*page.at(0, 0.5))
        assert page.status.startswith("[truncated: no_module]") or page.status.startswith("app")


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("short", "short"),
        ("outer::inner::Class<std::pair<int, long>>::method(std::string const&, int) const", "method"),
        ("outer::inner::Class<std::pair<int, long>>::a_method_with_a_name_that_is_very_long(int)",
         "a_method_with_a_name_that"),
        ("<alloc::vec::Vec<T, A> as core::ops::drop::Drop>::drop", "drop"),
        ("(anonymous namespace)::parse_header(char const*, unsigned)", "(anonymous namespace)::parse_header"),
        ("std::function<void (int, std::vector<int>)>::operator()(int) const", "operator()"),
        ("net/http.(*connReader).backgroundRead", "net/http.(*connReader)"),
        ("[libsomething_with_a_long_name.so.1+0x123456]", "[libsomething_with_a_long"),
    ],
)  # fmt: skip
def test_label_of_a_narrow_box_keeps_the_name(browser, tmp_path, name, label):
    """Arguments and namespaces go first: a box 250 pixels wide has room for some 35 letters."""
    with Page(browser, tmp_path, from_lines(f"p;{name} 250", "p;zzz 150"), width=400) as page:
        shown = next(text for row, text, _ in page.boxes() if row == 2)
        assert shown == label or (shown.startswith(label) and shown.endswith("…"))


def test_empty_report_is_a_valid_page(browser, tmp_path):
    with Page(browser, tmp_path, from_lines()) as page:
        assert page.text("#extent") == "0 samples"
        page.press("t")
        page.press("i")
        assert page.exceptions() == []


def test_data_has_the_sums_of_the_report():
    page = FORMATS["html"].write(full()).decode()
    found = re.search(r'<script type="application/json" id="profile">(.*?)</script>', page, re.DOTALL)
    assert found
    data = json.loads(found[1])
    assert [sum(column) for column in data["stacks"]["weights"]] == [11, 110, 71]
    assert data["paths"]["shared"][0] == 0
    assert data["threads"] == ["app/10", "worker/11"]


def test_difference_is_shown_in_table_and_status(browser, tmp_path):
    from sfsample.report.formats.difference import difference_html

    before, after = from_lines("p;a 100", "p;b 100"), from_lines("p;a 100", "p;b 400", "p;c 4")
    path = tmp_path / "diff.html"
    path.write_bytes(difference_html(before, after, compare(before, after)))
    with Page(browser, path) as page:
        page.press("t")
        rows = page.js(TABLE_ROWS)
        assert rows[0][2:] == ["-30.16 % of all samples", "a"]
        assert rows[1][2:] == ["+29.37 % of all samples", "b"]
        assert ["noise, +0.79 % of all samples", "c"] in [row[2:] for row in rows]
        assert (
            page.text("#status")
            == "all  ·  100.00 % of all samples, 100.0 % of all; change 0.00 % of all samples"
        )
        page.click_on("tbody tr:nth-child(2)")
        page.press("s")
        assert page.boxes()[-1][1] == "b"
        page.press("h")
        assert "hidden: b" in page.text("#edits")
        with page.copy(browser) as copy:
            assert copy.shown() == page.shown()
        assert page.exceptions() == []


def test_page_opens_with_fifty_thousand_stacks(browser, tmp_path):
    """scripts/bench/page measures how long that takes."""
    builder = ReportBuilder()
    names = [NamedFrame(f"ns{n % 7}::function_{n}(int)", module=f"/lib/{n % 5}.so") for n in range(37)]
    for n in range(50_000):
        deep = [names[(n // 37**depth) % 37] for depth in range(3)]
        builder.add(ReportThread("p", "p"), [*deep, *names[: n % 9]], "outermost", (1,))
    with Page(browser, tmp_path, builder.finish()) as page:
        assert page.text("#extent") == "50,000 samples"
        page.press("/")
        page.type("function_3(")
        assert page.text("#matched").endswith("% matched")
        page.js("document.getElementById('canvas').focus()")
        page.press("i")
        page.press("t")
        assert len(page.table()) >= 1
        assert page.exceptions() == []
