"""Tests of comparing reports: real changes, noise, and how often the verdicts and intervals are wrong."""

import json
import random
from math import inf, isclose

import pytest

from sfsample.report.difference import (
    GREW,
    NOISE,
    SHRANK,
    Ordinary,
    Side,
    compare_sides,
    count,
    ratio_interval,
)
from sfsample.report.formats.difference import difference_html, difference_json, difference_text, warnings
from sfsample.report.merge import merge
from sfsample.report.report import WEIGHTS, Report, ReportBuilder, ReportThread
from sfsample.report.stats import ReportStats
from tests.builders.reports import compare, frame, from_lines, full


def timed(seconds: float, *lines: str) -> Report:
    """Return a report of folded lines, recorded for so many seconds at 100 Hz."""
    return from_lines(*lines)._replace(duration_ns=round(seconds * 1e9), rate_hz=100.0)


def wall(seconds: float, *stacks: tuple[str, int, float], **stats: object) -> Report:
    """Return a report with sleeping threads: (function, samples, CPU seconds) of each stack."""
    builder, thread = ReportBuilder(WEIGHTS), ReportThread("p", "p")
    for name, samples, cpu_s in stacks:
        builder.add(thread, [frame(name)], "outermost", (samples, samples * 10**7, round(cpu_s * 1e9)))
    return builder.finish()._replace(duration_ns=round(seconds * 1e9), rate_hz=100.0,
                                     stats=ReportStats({"mode": "wall", **stats}))  # fmt: skip


def verdicts(before: Report, after: Report) -> dict[str, str]:
    return {change.name: change.verdict for change in compare(before, after).by_self}


def test_twice_the_samples_in_twice_the_time_is_no_change():
    found = compare(timed(10, "p;a 500", "p;b 100"), timed(20, "p;a 1000", "p;b 600"))
    assert found.per_time
    by_name = {change.name: change for change in found.by_self}
    assert (by_name["a"].share_before, by_name["a"].share_after) == (0.5, 0.5)
    assert (by_name["a"].verdict, by_name["b"].verdict) == (NOISE, GREW)
    assert isclose(by_name["b"].change, 0.2)
    assert by_name["b"].low < 3 < by_name["b"].high


def test_missed_ticks_are_not_counted_as_time():
    missed = timed(10, "p;a 250")._replace(stats=ReportStats({"late_ticks": 500}))
    assert compare(missed, timed(10, "p;a 500")).by_self[0].verdict == NOISE


def test_skipped_ticks_are_not_counted_as_time():
    """They are skipped to stay below --max-overhead."""
    skipped = timed(10, "p;a 250")._replace(stats=ReportStats({"late_ticks": 100, "spared_ticks": 400}))
    assert compare(skipped, timed(10, "p;a 500")).by_self[0].verdict == NOISE


def test_ticks_are_those_that_were_taken_however_long_it_took():
    """A recording that ends while it skips ticks has skipped some that were to come after its end."""
    ended = timed(1, "p;a 4")._replace(
        stats=ReportStats({"ticks": 200, "late_ticks": 0, "spared_ticks": 196})
    )
    brief = timed(0.96, "p;a 4")._replace(
        stats=ReportStats({"ticks": 100, "late_ticks": 1, "spared_ticks": 95})
    )
    for report in (ended, brief, merge([ended, brief])):
        assert compare(report, timed(10, "p;a 1000")).by_self[0].share_before == 1.0
    part = merge([timed(10, "p;a 1000"), timed(10, "p;a 1000")._replace(stats=ReportStats({"ticks": 1000}))])
    assert count(part).ticks == 2000


def minute(cpu_s: float, **stats: object) -> Side:
    """Return a minute at 10 Hz with so much CPU time, and a sample for each 100 ms of it."""
    report = wall(60.0, ("run", round(cpu_s * 10), cpu_s), ("sleep", 1, 0.0), **stats)
    return count(report._replace(rate_hz=10.0))


def measured(cpu_s: float) -> Side:
    """Return a minute whose CPU time the kernel has measured."""
    return minute(cpu_s, cpu_charged_ns=round(cpu_s * 1e9))


@pytest.mark.parametrize(
    ("after_s", "usual_s", "expected"),
    [
        (0.0096, 1.0, SHRANK),  # a tenth of a sample instead of 11
        (3.0, 1.0, GREW),
        (1.3, 1.0, NOISE),  # ordinary times differ more
        (1.05, 1.12, NOISE),  # seven ticks of the kernel's clock
    ],
)
def test_measured_cpu_time_has_no_chance_of_sampling(after_s, usual_s, expected):
    pairs = tuple((measured(1.12), measured(usual_s)) for _ in range(3))
    found = compare_sides(measured(1.12), measured(after_s), ordinary=Ordinary(pairs, "days")).overall
    assert found.verdict == expected
    assert (found.low <= 1 <= found.high) == (expected == NOISE)


def test_cpu_time_of_samples_has_the_chance_of_sampling():
    pairs = tuple((minute(1.12), minute(1.12)) for _ in range(3))
    found = compare_sides(minute(1.12), minute(0.0096), ordinary=Ordinary(pairs, "days"))
    assert found.overall.verdict == NOISE


def test_cpu_time_is_compared_although_no_thread_ran_after():
    """Then the report has no column of CPU time, and all its samples are of sleeping threads."""
    busy = wall(10.0, ("run", 500, 5.0), ("sleep", 1000, 0.0), cpu_charged_ns=5 * 10**9)
    stats = ReportStats({"mode": "wall", "cpu_charged_ns": 10**6})
    found = compare(busy, timed(10, "p;sleep 1500")._replace(stats=stats))
    assert found.overall.verdict == SHRANK
    assert [change.name for change in found.by_self] == ["run"]


def test_relative_compares_shares_although_rates_are_known():
    idle, busy = timed(10, "p;a 100", "p;b 100"), timed(10, "p;a 400", "p;b 400")
    assert verdicts(idle, busy) == {"a": GREW, "b": GREW}
    found = compare(idle, busy, relative=True)
    assert (found.per_time, found.exposures) == (False, (200, 800))
    assert {change.verdict for change in found.by_self} == {NOISE}
    assert list(difference_text(found))[2].startswith("compared: shares of all samples (--relative); ")


def test_shares_are_of_all_samples_without_a_duration():
    found = compare(from_lines("p;a 300", "p;b 300"), timed(5, "p;a 30", "p;b 30"))
    assert not found.per_time
    assert {change.share_after for change in found.by_self} == {0.5}
    assert {change.verdict for change in found.by_self} == {NOISE}


def test_few_samples_are_noise_and_many_are_a_change():
    assert verdicts(timed(10, "p;a 4"), timed(10, "p;a 8")) == {"a": NOISE}
    assert verdicts(timed(10, "p;a 400"), timed(10, "p;a 800")) == {"a": GREW}
    assert verdicts(timed(10, "p;a 400"), timed(10, "p;b 400")) == {"a": SHRANK, "b": GREW}


def test_callers_change_with_their_callees():
    found = compare(timed(10, "p;main;a 100", "p;main;b 900"), timed(10, "p;main;a 600", "p;main;b 900"))
    assert {c.name: c.verdict for c in found.by_total} == {"a": GREW, "main": GREW, "b": NOISE}
    assert {c.name: (c.before, c.after) for c in found.by_total}["main"] == (1000, 1500)


def test_recursion_counts_once():
    [change] = [c for c in compare(from_lines("p;f;f;f 5"), from_lines("p;f 5")).by_total if c.name == "f"]
    assert (change.before, change.after) == (5, 5)


def test_unnamed_addresses_are_compared_by_module():
    assert verdicts(from_lines("p;[libc.so.6+0x10] 99"), from_lines("p;[libc.so.6+0x20] 99")) == {
        "[libc.so.6]": NOISE
    }


@pytest.mark.parametrize(
    ("before", "after"), [((), ()), ((), ("p;a 3",)), (("p;a 3",), ()), (("p 3",), ("p 3",))]
)
def test_empty_reports_are_compared(before, after):
    found = compare(from_lines(*before), from_lines(*after))
    assert all(change.verdict == NOISE for change in found.by_self)
    assert list(difference_text(found))
    assert json.loads(difference_json(found), parse_constant=pytest.fail)["self"] is not None
    assert difference_html(from_lines(*before), from_lines(*after), found)


# -- functions with the very same samples


def test_functions_with_the_very_same_samples_are_one_row_the_innermost_first():
    before, after = (timed(10, f"p;main;run;loop;a {n}", f"p;main;run;loop;b {n // 2}") for n in (100, 800))
    lines = list(difference_text(compare(before, after)))
    assert [line.split(maxsplit=7)[-1] for line in lines[-3:]] == ["loop, run, main", "a", "b"]
    document = json.loads(difference_json(compare(before, after)))
    assert [row["name"] for row in document["total"]] == ["loop", "run", "main", "a", "b"]


def test_names_that_are_many_are_counted():
    before, after = (timed(10, f"p;a;b;c;d;e {n}") for n in (100, 800))
    assert list(difference_text(compare(before, after)))[-1].endswith(" e, d, c and 2 more")


def test_equal_samples_with_another_ratio_before_are_two_rows():
    before, after = timed(10, "p;x;f 50", "p;x 50"), timed(10, "p;x;f 500")
    lines = list(difference_text(compare(before, after)))
    assert [line.split()[-1] for line in lines[-2:]] == ["f", "x"]


# -- reasons to doubt


def test_inputs_of_different_modes_or_processes_are_a_warning():
    cpu, all_threads = (
        timed(60, "p;a 4000")._replace(stats=ReportStats({"mode": mode})) for mode in ("cpu", "wall")
    )
    assert warnings(compare(cpu, all_threads)) == [
        "before has --mode cpu and after --mode wall: only wall has the threads that sleep"
    ]
    assert warnings(compare(all_threads, all_threads)) == warnings(compare(cpu, timed(60, "p;a 4000"))) == []
    assert "shares of one thread's time" in list(difference_text(compare(all_threads, all_threads)))[2]
    assert warnings(compare(timed(60, "p;a 4000"), timed(60, "q;a 4000"))) == [
        "the processes differ: p before, q after"
    ]
    assert warnings(compare(timed(60, "p;a 4000"), timed(60, "q;a 400", "p;a 4000"))) == []


# -- how often the verdicts are wrong


def poisson(rng: random.Random, mean: float) -> int:
    """Return a random number of the Poisson distribution."""
    count, time = 0, rng.expovariate(mean)
    while time < 1:
        count += 1
        time += rng.expovariate(mean)
    return count


@pytest.mark.parametrize("mean", [2, 10, 100])
@pytest.mark.parametrize("ratio", [0.5, 1.0, 3.0])
def test_interval_contains_the_true_ratio_as_often_as_stated(mean, ratio):
    rng = random.Random(f"{mean} {ratio}")  # noqa: S311 - the same every time
    inside = 0
    for _ in range(2000):
        low, high = ratio_interval(poisson(rng, mean), poisson(rng, mean * ratio * 2), (1.0, 2.0))
        inside += low <= ratio <= high
    assert inside / 2000 > 0.93


def test_interval_is_finite_for_any_counts():
    for before in (1, 7, 1 << 60):
        low, high = ratio_interval(before, (1 << 62), (1.0, 1.0))
        assert 0 < low < (1 << 62) / before < high < 10 * (1 << 62) / before


def test_interval_is_unbounded_without_samples_before():
    low, high = ratio_interval(0, 50, (1.0, 1.0))
    assert low > 5
    assert high == inf
    assert ratio_interval(50, 0, (1.0, 1.0))[0] == 0.0


def test_unchanged_functions_almost_never_get_a_false_verdict():
    rng = random.Random(7)  # noqa: S311 - the same every time
    false_verdicts = 0
    for _ in range(20):
        both = [timed(10, *(f"p;f{n} {poisson(rng, 1 + n % 60)}" for n in range(400))) for _ in range(2)]
        false_verdicts += sum(verdict != NOISE for verdict in verdicts(*both).values())
    assert false_verdicts <= 2  # of 8,000


def test_at_most_one_of_twenty_unchanged_pairs_has_a_false_verdict():
    """This is the false discovery rate of 5 %; the second recording is three times as long."""
    rng = random.Random(5)  # noqa: S311 - the same every time
    false_pairs = 0
    for _ in range(200):
        means = [rng.choice((0.3, 2, 8, 30, 100)) for _ in range(12)]
        before, after = (
            timed(10 * times, *(f"p;f{n} {poisson(rng, times * mean)}" for n, mean in enumerate(means)))
            for times in (1, 3)
        )
        false_pairs += any(verdict != NOISE for verdict in verdicts(before, after).values())
    assert false_pairs <= 10


# -- text and JSON


def test_text_states_the_base_and_the_largest_differences_whatever_the_verdict():
    before, after = timed(10, "p;a 100", "p;b 100", "p;c 7"), timed(10, "p;a 400", "p;b 100", "p;c 9")
    lines = list(difference_text(compare(before, after)))
    assert lines[:3] == [
        "before: 10 s, 100 Hz, 207 samples (not known: host, time)",
        "after: 10 s, 100 Hz, 509 samples (not known: host, time)",
        "compared: samples, in shares of one CPU's time; ratios with their 95 % interval",
    ]
    assert lines[5].split()[:6] == ["grew", "20.70", "%", "->", "50.90", "%"]
    rows = [line.split() for line in lines]
    assert ["grew", "10.00", "%", "->", "40.00", "%", "x3.21..4.98", "a"] in rows
    assert [row[0] for row in rows if row[-1:] in (["b"], ["c"])] == ["noise"] * 4


def test_rows_are_ten_and_what_is_left_out_is_counted_by_verdict():
    rest = [f"p;n{at} {at}" for at in range(1, 31)]
    before, after = timed(10, "p;a 100", *rest), timed(10, "p;a 400", *rest)
    lines = list(difference_text(compare(before, after)))
    assert lines[lines.index("functions by own time:") + 11] == "  and 21 functions: 21 noise (-v shows all)"
    every = list(difference_text(compare(before, after), verbose=True))
    assert sum(" n" in line for line in every) == 2 * 30


def test_function_without_samples_before_is_new_and_one_without_samples_after_is_gone():
    lines = list(difference_text(compare(timed(10, "p;a 400"), timed(10, "p;b 123456"))))
    assert [line.split()[-2] for line in lines if line.endswith((" a", " b"))] == ["new", "gone"] * 2


def test_cpu_time_is_compared_if_there_are_sleeping_threads():
    busy = wall(10, ("serve", 400, 4.0), ("epoll_wait", 600, 0.0))
    idle = wall(20, ("serve", 2, 0.02), ("epoll_wait", 1998, 0.0))
    found = compare(busy, idle)
    assert {change.name: change.verdict for change in found.by_self} == {"serve": SHRANK}
    assert (found.overall.share_before, found.overall.share_after) == (0.4, pytest.approx(0.001))
    lines = list(difference_text(found))
    assert lines[0].startswith("before: 4 s of CPU time in 10 s, 100 Hz, 1,000 samples")
    assert lines[2].startswith("compared: CPU time, in shares of one CPU's time;")
    by_samples = compare_sides(*(count(report, mode="wall") for report in (busy, idle)))
    assert {change.name for change in by_samples.by_self} == {"serve", "epoll_wait"}
    assert json.loads(difference_json(found))["compared"] == "cpu_time"


def test_cpu_time_without_samples_belongs_to_functions_by_their_shares():
    half = wall(10, ("a", 30, 0.3), ("b", 10, 0.1), cpu_charged_ns=2 * 10**9, cpu_sampled_ns=4 * 10**8)
    found = compare(half, half)
    assert {change.name: change.share_after for change in found.by_self} == {"a": 0.15, "b": 0.05}
    assert warnings(found)[0] == "before: samples stand for 20 % of the CPU time"


def test_page_says_low_coverage_once():
    half = wall(10, ("a", 30, 0.3), cpu_charged_ns=2 * 10**9, cpu_sampled_ns=4 * 10**8)
    page = difference_html(half, half, compare(half, half)).decode()
    data = json.loads(page.partition('id="profile">')[2].partition("</script>")[0])
    worth = "samples stand for 20 % of the CPU time: shares may be wrong"
    assert data["losses"] == [f"before: {worth}", f"after: {worth}"]


def test_page_has_the_widths_of_the_larger_side_and_shares_of_cpu_time():
    busy, idle = wall(10, ("serve", 400, 4.0)), wall(10, ("serve", 400, 0.1))
    page = difference_html(busy, idle, compare(busy, idle)).decode()
    data = json.loads(page.partition('id="profile">')[2].partition("</script>")[0])
    assert data["widest"] == 1
    widths = [scale * weights[0] for scale, weights in
              zip(data["scales"], data["stacks"]["weights"], strict=True)]  # fmt: skip
    assert widths == [pytest.approx(1.0), pytest.approx(40.0)]


def test_text_names_both_inputs_and_never_invents():
    found = compare_sides(count(full(), "old.json"), count(from_lines("p;a 3"), "new", files=12))
    lines = list(difference_text(found))
    assert lines[0] == (
        "before: old.json, 71 ns of CPU time in 1 s, 100 Hz, 11 samples, host web1, 2026-09-21 14:13:20 UTC"
    )
    assert lines[1] == (
        "after: new (12 files), 3 samples (not known, or not equal in all files: duration, rate, host, time)"
    )
    assert lines[2].startswith(
        "compared: shares of all samples, as the duration or rate of after is not known;"
    )


def test_page_names_what_vanished():
    before, after = timed(60, "p;gone;deep 4000", "p;a 40"), timed(60, "p;a 40", "p;b 9")
    page = difference_html(before, after, compare(before, after)).decode()
    assert r"; vanished, and shown with Width \"before\": deep, gone" in page
    assert "vanished" not in difference_html(after, after, compare(after, after)).decode()


def test_page_has_one_box_for_a_function_whose_module_has_moved():
    def report(samples: int) -> Report:
        builder = ReportBuilder()
        places = {"f": f"/opt/app-{samples}/lib.so", "main": f"/opt/app-{samples}/app"}
        row = [frame(name, (path, None)) for name, path in places.items()]
        builder.add(ReportThread("app", "app"), row, "outermost", (samples,))
        return builder.finish()

    page = difference_html(report(300), report(400), compare(report(300), report(400))).decode()
    data = json.loads(page.partition('id="profile">')[2].partition("</script>")[0])
    assert sorted(data["frames"]["text"]) == ["app", "f", "main"]
    assert data["stacks"]["weights"] == [[400], [300]]
    assert {*data["modules"]} == {None, "/opt/app-400/app", "/opt/app-400/lib.so"}


def test_json_has_what_the_text_has():
    document = json.loads(difference_json(compare(full(), full())))
    assert document["schema"] == "sfsample.diff/1"
    assert document["shares_of"] == "cpu"
    assert document["all"]["before"] == document["all"]["after"] == 11
    assert {row["verdict"] for row in document["self"]} == {"noise"}
    assert document["relative"] is False
    assert [side["host"] for side in document["inputs"]] == ["web1", "web1"]
    assert document["warnings"] == []
