"""Tests of reports: writing and reading, damaged files, merging and filtering; no sample is lost."""

import contextlib
import gzip
import json

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from sfsample.errors import BadInput, SfsampleError
from sfsample.report.budget import ReadingBudget
from sfsample.report.caption import extent, losses
from sfsample.report.formats import FORMATS, parse, read_report
from sfsample.report.merge import filter_stacks, focus, merge, merge_by
from sfsample.report.naming import with_python_marks
from sfsample.report.report import CPU, SAMPLES, WALL, Report, ReportBuilder, ReportThread
from sfsample.report.stats import ReportStats
from sfsample.symbolize.named_frame import NamedFrame
from tests.builders.reports import APP, from_lines, full


def lines(report: Report, *, threads: bool = False) -> list[str]:
    return FORMATS["folded"].write(report, threads=threads).decode().splitlines()


# -- written and read back


def test_json_read_back_is_the_same_report():
    assert parse(FORMATS["json"].write(full())) == full()


def test_json_has_the_documented_keys():
    """The keys are those of docs/profile-json.md."""
    document = json.loads(FORMATS["json"].write(full()))
    assert list(document) == ["schema", "started_ns", "duration_ns", "rate_hz", "host", "weights",
                              "threads", "modules", "frames", "stacks", "timeline", "labels", "target",
                              "coverage", "stats"]  # fmt: skip
    assert document["threads"][1] == {"process": "app", "name": "worker", "pid": 10, "tid": 11}
    assert document["frames"][0] == {
        "text": "inner_[i]", "function": "inner", "raw": "_Zinner_[i]", "offset": "0x100", "file": "src/a.cc",
        "line": 3, "inlined": True, "kind": "", "found": "", "module": 0,
    }  # fmt: skip
    assert document["modules"][0] == {"path": APP[0], "build_id": APP[1]}
    assert document["stacks"][0] == {"thread": 0, "frames": [0, 1, 2], "stop_reason": "outermost",
                                 "samples": 5, "wall_ns": 50, "cpu_ns": 40, "wait": None}  # fmt: skip


@pytest.mark.parametrize("threads", [False, True])
def test_folded_read_back_is_the_same_text(threads):
    text = FORMATS["folded"].write(full(), threads=threads)
    assert FORMATS["folded"].write(parse(text), threads=threads) == text


def test_pprof_read_back_has_the_same_stacks_and_weights():
    again = parse(FORMATS["pprof"].write(full()))
    assert lines(again, threads=True) == lines(full(), threads=True)
    assert [again.total(weight) for weight in (SAMPLES, WALL, CPU)] == [11, 110, 71]
    assert (again.rate_hz, again.host, again.labels) == (100, "web1", full().labels)
    assert {f.module for f in again.frames} == {f.module for f in full().frames}
    assert {(f.raw, f.file, f.line, f.inlined) for f in again.frames if f.function} == {
        (f.raw, f.file, f.line, f.inlined) for f in full().frames if f.function
    }


words = st.text(
    st.characters(codec="utf-8", exclude_categories=("Cc", "Cs", "Zl", "Zp", "Cf", "Zs")),
    min_size=1,
    max_size=8,
)


@given(st.dictionaries(st.lists(words, min_size=1, max_size=5).map(tuple), st.integers(1, 99), max_size=9))
@example({("p", "_[i]"): 1, ("p", "f_[i]"): 2, ("p", "f"): 3})  # names that look like marks
def test_any_names_survive_folded_json_and_pprof(stacks):
    builder = ReportBuilder()
    assume(not any(process.startswith("{") for process, *_ in stacks))  # such a file is taken for JSON
    for (process, *names), count in stacks.items():
        frames = [NamedFrame(name.replace(";", ":")) for name in reversed(names)]
        builder.add(ReportThread(process.replace(";", ":"), "t"), frames, "outermost", (count,))
    report = builder.finish()
    assert parse(FORMATS["json"].write(report)) == report
    assert lines(parse(FORMATS["pprof"].write(report))) == lines(report) or not stacks
    text = FORMATS["folded"].write(report)
    assert FORMATS["folded"].write(parse(text)) == text


# -- damaged and hostile files


def test_folded_stacks_of_other_tools_are_read():
    report = from_lines("# comment", "", "a;b;c 3", "a;b 2.5", "comm/7;x_[k] 1", "p;[truncated: no_row];f 4")
    assert lines(report) == ["a;b 2", "a;b;c 3", "comm/7;x_[k] 1", "p;[truncated: no_row];f 4"]
    assert [f.kind for f in report.frames if f.text == "x_[k]"] == ["k"]


def test_python_functions_are_marked_once_and_the_mark_is_read():
    report = with_python_marks(from_lines("p;native;f (a.py:1)_[p] 3"))
    assert lines(report) == ["p;native;f (a.py:1)_[p] 3"]
    assert [frame.kind for frame in report.frames] == ["p", ""]
    bare = tuple(frame._replace(text=frame.text.removesuffix("_[p]")) for frame in report.frames)
    assert lines(with_python_marks(report._replace(frames=bare))) == lines(report)


@pytest.mark.parametrize(
    ("data", "where"),
    [
        (b"{}", "schema"),
        (b'{"', "not JSON"),
        (b"[" * 100_000, "line 1"),
        (b'{"schema": ' + b"[" * 100_000, "not JSON"),
        (b'{"schema": "other/1"}', "schema"),
        (b"not folded at all", "line 1"),
        (FORMATS["html"].write(full()), "a picture"),
        (FORMATS["svg"].write(full()), "a picture"),
        (b"a;b 1\nc;d\n", "line 2"),
        (b"\x1f\x8bxx", "gzip"),
        (gzip.compress(b"a;b 1\n", mtime=0)[:-9], "gzip ends too early"),
        (b"\x0a\x05\x08", "pprof"),
        (b"\x00\x01\x02", "pprof"),
        (b"\x0a\x00", "string table"),
    ],
)
def test_file_that_is_no_profile_is_an_error_with_its_place(data, where):
    with pytest.raises(BadInput, match=where):
        parse(data)


def set_at(document, path, value):
    *keys, last = path
    for key in keys:
        document = document[key]
    document[last] = value


@pytest.mark.parametrize(
    ("path", "value", "where"),
    [
        (("stacks", 1, "frames", 0), 99, r"stacks\[1\]\.frames\[0\]"),
        (("stacks", 1, "frames"), {}, r"stacks\[1\]\.frames: not a list"),
        (("stacks", 0, "samples"), -1, r"stacks\[0\]\.samples"),
        (("stacks", 0, "samples"), True, r"stacks\[0\]\.samples"),
        (("stacks", 0, "thread"), 2, r"stacks\[0\]\.thread"),
        (("frames", 2, "text"), None, r"frames\[2\]\.text: not a text"),
        (("frames", 2, "offset"), "0xzz", r"frames\[2\]\.offset"),
        (("frames", 2, "offset"), "0x" + "f" * 17, r"frames\[2\]\.offset"),
        (("frames", 2, "module"), 9, r"frames\[2\]\.module"),
        (("threads", 0, "pid"), "x", r"threads\[0\]\.pid"),
        (("threads",), 5, "threads: not a list"),
        (("weights",), ["cpu_ns"], "weights"),
        (("timeline", "at_ns"), [], "timeline: not columns of one length"),
        (("timeline", "stack", 0), 99, r"timeline\.stack\[0\]"),
        (("rate_hz",), float("nan"), "rate_hz"),
        (("stats",), [], "stats"),
    ],
)
def test_damaged_json_is_an_error_with_its_place(path, value, where):
    document = json.loads(FORMATS["json"].write(full()))
    set_at(document, path, value)
    with pytest.raises(BadInput, match=where):
        parse(json.dumps(document).encode())


@given(st.binary(max_size=200))
def test_any_bytes_are_a_profile_or_an_error(data):
    with contextlib.suppress(BadInput):
        parse(data)


PPROF = gzip.decompress(FORMATS["pprof"].write(full()))


@given(st.integers(0, len(PPROF) - 1), st.integers(0, 255))
def test_any_damaged_pprof_is_a_profile_or_an_error(at, byte):
    with contextlib.suppress(BadInput):
        parse(PPROF[:at] + bytes([byte]) + PPROF[at + 1 :])


@given(st.recursive(st.none() | st.booleans() | st.floats() | st.integers() | st.text(), st.lists),
       st.sampled_from(sorted(json.loads(FORMATS["json"].write(full())))))  # fmt: skip
def test_any_value_in_json_is_a_profile_or_an_error(value, key):
    document = json.loads(FORMATS["json"].write(full()))
    document[key] = value
    with contextlib.suppress(BadInput):
        parse(json.dumps(document).encode())


def test_names_in_files_are_cleaned_of_control_characters():
    document = json.loads(FORMATS["json"].write(full()))
    document["frames"][0]["text"] = document["threads"][0]["process"] = "\x1b[2Jx;y"
    text = "\n".join(lines(parse(json.dumps(document).encode())))
    assert "\x1b" not in text
    assert "?[2Jx:y;" in text


def test_error_names_the_file_that_cannot_be_read(tmp_path):
    with pytest.raises(SfsampleError, match=r"cannot read: .*nothing\.json: No such file"):
        read_report(str(tmp_path / "nothing.json"))
    (tmp_path / "bad.json").write_text('{"')
    with pytest.raises(SfsampleError, match=r"cannot read: .*bad\.json: not JSON"):
        read_report(str(tmp_path / "bad.json"))


# -- merging and filtering


def test_merge_adds_weights_and_durations():
    both = merge([full(), full()])
    assert [both.total(weight) for weight in (SAMPLES, WALL, CPU)] == [22, 220, 142]
    assert (both.duration_ns, len(both.stacks)) == (2 * 10**9, len(full().stacks))


def test_merge_is_charged_for_new_rows_only():
    budget = ReadingBudget(0)
    budget.left = 10_000
    assert merge([full()] * 100, budget).total() == 1100
    new = (from_lines(f"p;f{n} 1") for n in range(100))
    with pytest.raises(BadInput, match=r"^file \d+: more stacks and names than fit into memory"):
        merge(new, budget)


def test_merge_keeps_the_host_that_all_reports_have():
    assert merge([full(), full()]).host == "web1"
    assert merge([full(), full()._replace(host="web2")]).host is None


def test_merge_keeps_the_labels_and_the_target_that_all_reports_have():
    other = full()._replace(labels={"team": "a=b", "service.name": "x"}, target={"unit": "app.service"})
    assert (merge([full(), full()]).labels, merge([full(), full()]).target) == (full().labels, full().target)
    both = merge([full(), other])
    assert (both.labels, both.target) == ({"team": "a=b"}, {"unit": "app.service"})
    none = merge([other, from_lines("p;a 1"), full()])
    assert (none.labels, none.target) == (None, None)


@pytest.mark.parametrize(("stats", "coverage"), [
    ({"cpu_charged_ns": 300, "cpu_sampled_ns": 100}, 0.3333),
    ({"cpu_charged_ns": 3, "cpu_sampled_ns": 9}, 1.0),
    ({"cpu_charged_ns": 0, "cpu_sampled_ns": 0}, None), ({"cpu_charged_ns": "x", "cpu_sampled_ns": 1}, None),
    ({"cpu_charged_ns": 3, "cpu_sampled_ns": -9}, 0.0), (None, None),
])  # fmt: skip
def test_coverage_is_the_share_of_the_cpu_time_that_has_samples(stats, coverage):
    assert (
        json.loads(FORMATS["json"].write(full()._replace(stats=ReportStats(stats or {}))))["coverage"]
        == coverage
    )


@pytest.mark.parametrize("change", [
    {"labels": []}, {"labels": {"a": 1}}, {"labels": {"a": None}}, {"target": []}, {"target": {"exe": 1}},
    {"target": {"started": "x"}}, {"target": {"started": 1e301}},
], ids=str)  # fmt: skip
def test_labels_or_target_of_another_type_are_refused(change):
    document = json.loads(FORMATS["json"].write(full())) | change
    with pytest.raises(BadInput, match=f"^{next(iter(change))}"):
        parse(json.dumps(document).encode())


def test_texts_of_labels_and_target_are_cleaned():
    change = {"labels": {"a\n;": "\x1b[31m"}, "target": {"exe": "/a\tb", "later": 1}}
    again = parse(json.dumps(json.loads(FORMATS["json"].write(full())) | change).encode())
    assert (again.labels, again.target) == ({"a?:": "?[31m"}, {"exe": "/a?b"})


def test_caption_says_how_much_of_the_cpu_time_was_sampled():
    document = {"cpu_charged_ns": 284, "cpu_sampled_ns": 71}
    report = full()._replace(stats=ReportStats(document), rate_hz=None)
    assert extent(report).startswith("11 samples, 71 ns of 284 ns of CPU time, ")
    assert losses(report)[0] == "samples stand for 25 % of the CPU time: shares may be wrong"
    merged = merge([report, report])
    assert extent(merged).startswith("22 samples, 142 ns of 568 ns of CPU time")
    whole = report._replace(stats=ReportStats({"cpu_charged_ns": 71, "cpu_sampled_ns": 71}))
    assert extent(whole).startswith("11 samples, 71 ns of CPU time, ")
    assert "CPU time" not in str(losses(whole))


@pytest.mark.parametrize("value", [None, "x", [], -1, 1.5, 0])
def test_caption_survives_statistics_of_another_program(value):
    report = full()._replace(stats=ReportStats({"cpu_charged_ns": value, "cpu_sampled_ns": value}))
    assert extent(report).startswith("11 samples, 71 ns of CPU time, ")
    assert "CPU time" not in str(losses(report))


def test_merge_adds_losses():
    merged = merge([full(), from_lines("a;b 1"), full()])
    assert losses(merged) == [
        "2 of 23 samples have a truncated stack", "2 of 24 ticks missed", "4 captures failed"
    ]  # fmt: skip
    odd = full()._replace(stats=ReportStats({"ticks": "x", "captures": 5, "problems": 3}))
    assert losses(merge([odd, odd])) == ["2 of 22 samples have a truncated stack"]


def test_merge_keeps_the_weights_that_all_reports_have():
    assert merge([full(), from_lines("a;b 1")]).weights == (SAMPLES,)


def test_merge_by_function_keeps_the_fields_that_frames_share():
    merged = merge_by(full(), "function")
    [outer] = [f for f in merged.frames if f.text == "outer"]
    assert (outer.module, outer.found, outer.line, outer.address) == (APP[0], "sframe", None, None)
    assert lines(merged) == lines(full())
    assert merged.timeline is not None
    assert len(merged.timeline.stack) == 11


def test_merge_by_module_joins_adjacent_frames():
    assert lines(merge_by(full(), "module")) == [
        "app;[libc.so.6];[app] 8", "app;[libc.so.6];[kernel] 2", "app;[truncated: no_module];[unknown] 1",
    ]  # fmt: skip


def test_merge_by_address_keeps_addresses_apart():
    assert "app;start 0x40;outer 0x108 3" in lines(merge_by(full(), "address"))


def test_filter_and_focus_select_stacks():
    report = from_lines("p;a;b;c 1", "p;a;c 2", "p;d 4")
    has = {"b": lambda f: f.text == "b", "a": lambda f: f.text == "a"}
    assert lines(filter_stacks(report, has["b"])) == ["p;a;b;c 1"]
    assert lines(filter_stacks(report, has["a"], keep=False)) == ["p;d 4"]
    assert lines(focus(report, lambda f: f.text in "bc")) == ["p;b;c 1", "p;c 2"]


def test_filter_keeps_the_timeline_of_the_chosen_stacks():
    chosen = filter_stacks(full(), lambda f: f.text == "outer")
    assert chosen.timeline is not None
    assert chosen.total() == sum(chosen.timeline.samples) == 8
    assert set(chosen.timeline.stack) == set(range(len(chosen.stacks)))
