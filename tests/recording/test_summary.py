"""The summary reports every loss, never rounded away, and nothing that did not happen."""

import pytest

from sfsample.core.snapshot import Capture
from sfsample.core.stack import Found, Frame, Stack, StopReason
from sfsample.recording.stats import Stats
from sfsample.recording.summary import summary_lines


def stats(**stacks: int) -> Stats:
    """Return statistics with a number of stacks for each reason; each stack has two frames."""
    made = Stats(99.0)
    made.duration_s, made.ticks = 10.0, 990
    frames = tuple(Frame(0, 0, None, found, exact=True) for found in (Found.CONTEXT, Found.SFRAME))
    for reason, count in stacks.items():
        for _ in range(count):
            made.count_stack(Stack(frames, StopReason(reason)))
    made.threads = 1
    return made


def line(made: Stats, start: str, **options) -> str:
    [found] = [text for text in lines(made, **options) if text.startswith(start)]
    return found


def lines(made: Stats, mode: str = "cpu", **options) -> list[str]:
    return list(summary_lines(made, mode, **options))


@pytest.mark.parametrize(
    ("lacks_priority", "late", "advised"), [(True, 100, True), (True, 99, False), (False, 100, False)]
)
def test_many_missed_ticks_name_the_permission_that_helps(lacks_priority, late, advised):
    made = stats(outermost=5)
    made.lacks_priority, made.late_ticks = lacks_priority, late

    assert lines(made)[1].startswith("missed    to miss fewer ticks, run sfsample as root") is advised


def test_first_line_counts_samples_threads_and_ticks():
    made = stats(outermost=5)
    made.late_ticks = 3

    assert lines(made)[0] == "5 samples of 1 thread in 10.0 s: 990 ticks at 99 Hz, 3 missed (98.7 Hz)"
    made.threads = 2
    assert "of 2 threads" in lines(made)[0]
    made.samples = made.ticks = 1
    assert lines(made)[0].startswith("1 sample of 2 threads in 10.0 s: 1 tick at 99 Hz")


@pytest.mark.parametrize(
    ("cpu_s", "spared", "expected"),
    [
        (0.07, 0, "0.7 % of one CPU"),
        (0.65, 0, "6.5 % of one CPU (--max-overhead limits it)"),
        (0.65, 9, "6.5 % of one CPU"),  # the limit is set; the first tick of many threads may exceed it
        (0.0001, 0, "< 0.1 % of one CPU"),
    ],
)
def test_cost_names_the_flag_that_limits_it(cpu_s, spared, expected):
    made = stats(outermost=5)
    made.sampler_cpu_s, made.spared_ticks = cpu_s, spared

    assert line(made, "cost") == f"cost      {expected}"


def test_no_samples_of_timers_mentions_no_tick():
    made = stats()
    made.timers_since_s, made.rate_hz = 0.0, 50.0
    assert lines(made)[1:] == [
        "no thread used 20 ms of CPU time, which gives one sample: idle",
        "to record sleeping threads: --mode wall, without --perf-events",
    ]
    made.timers_since_s = 0.5  # the user did not ask for timers
    assert lines(made)[2] == "to record sleeping threads: --mode wall"


def test_timers_hold_no_thread():
    made = stats(outermost=5)
    made.timers_since_s = 0.0
    assert line(made, "pause") == "pause     none: the kernel copied the stacks in timer interrupts"


@pytest.mark.parametrize(
    ("sampled_ns", "expected"),
    [
        (9_900_000_000, None),
        (9_800_000_000, "98 %"),
        (10_300_000_000, "103 %"),
    ],
)
def test_coverage_compares_sampled_and_charged_cpu_time(sampled_ns, expected):
    made = stats(outermost=5)
    made.cpu_charged_ns, made.cpu_sampled_ns = 10_000_000_000, sampled_ns
    found = [text for text in lines(made) if text.startswith("coverage")]
    assert found == ([] if expected is None else [f"coverage  {expected} of 10.00 s of CPU time"])


def test_no_samples_of_short_lived_threads_proposes_flags():
    made = Stats(99.0)
    made.timers_since_s, made.duration_s, made.ticks, made.cpu_charged_ns = 0.0, 10.0, 990, 10**9
    _, lost, why, *hints = lines(made)
    assert why == "the timers took no sample in 1000 ms of CPU time"
    assert lost == "coverage  0 % of 1.00 s of CPU time"
    assert hints == ["with a higher --rate, a thread needs less CPU time for a sample",
                     "--no-perf-events can also sample threads with less CPU time"]  # fmt: skip


@pytest.mark.parametrize(
    ("place", "is_explained"),
    [("bad_pc at /v/greenlet/_greenlet.cpython-311-x86_64-linux-gnu.so+0x15857", True),
     ("no_row at /v/greenlet/_greenlet.cpython-311-x86_64-linux-gnu.so+0x15857", False),
     ("bad_pc at /usr/bin/python3+0x15857", False)],
)  # fmt: skip
def test_stacks_that_greenlet_cut_are_explained(place, is_explained):
    made = stats(outermost=1, bad_pc=9)
    made.note(place, 9)

    assert any("another greenlet" in text for text in lines(made)) == is_explained


def test_incomplete_stacks_of_timers_propose_stops():
    made = stats(outermost=5, stack_copy_ended=5)
    assert "50 % stack_copy_ended (--stack-bytes allows more)" in line(made, "stacks")
    made.timers_since_s = 0.0
    assert "50 % stack_copy_ended (--no-perf-events copies all)" in line(made, "stacks")


def test_unknown_cost_is_not_printed():
    assert not any(text.startswith("cost") for text in lines(stats(outermost=5)))


@pytest.mark.parametrize(
    ("whole", "lost", "share", "loss"),
    [
        (10, 0, "100 %", None),
        (9, 1, "90 %", "10 %"),
        (999, 1, "99.9 %", "0.1 %"),
        (1999, 1, "> 99.9 %", "< 0.1 %"),
        (99_999, 1, "> 99.9 %", "< 0.1 %"),
        (1, 1999, "< 0.1 %", "> 99.9 %"),
        (0, 3, "0 %", "100 %"),
    ],
)
def test_100_percent_means_all(whole, lost, share, loss):
    made = stats()
    made.samples = whole + lost
    made.stacks.update({StopReason.OUTERMOST: whole, StopReason.NO_ROW: lost})
    text = line(made, "stacks")

    assert text.startswith(f"stacks    {share} reached the outermost frame")
    if loss is not None:
        assert text.endswith(f", {loss} no_row")


@pytest.mark.parametrize(
    ("reason", "text"),
    [(StopReason.MAX_FRAMES, "max_frames (--max-frames allows more)"),
     (StopReason.STACK_COPY_ENDED, "stack_copy_ended (--stack-bytes allows more)"),
     (StopReason.NO_ROW, "no_row")],
)  # fmt: skip
def test_incomplete_stacks_name_the_flag_that_allows_more(reason, text):
    made = stats()
    made.samples, made.stacks[reason] = 1, 1

    assert line(made, "stacks") == f"stacks    0 % reached the outermost frame, 100 % {text}"


def test_callers_are_shares_of_steppers():
    made = stats(outermost=3)
    made.frames.update({Found.EH_FRAME: 1, Found.CONTEXT: 5})

    assert line(made, "callers") == "callers   75 % by sframe, 25 % by eh_frame"


def test_pause_has_percentiles():
    made = stats(outermost=1)
    assert not any(text.startswith("pause") for text in lines(made))
    for pause in (61_400, 61_400, 20_000_000):
        made.pauses.add(pause)

    assert line(made, "pause") == "pause     p50 61 µs, p99 20 ms, max 20 ms (3 stops)"


@pytest.mark.parametrize("ended_by", ["target", "duration", "signal"])
def test_end_of_the_target_is_said(ended_by):
    made = stats(outermost=1)
    made.ended_by = ended_by
    assert ("ended     with the target" in lines(made)) == (ended_by == "target")


def test_pause_is_without_the_time_that_threads_waited_for_a_cpu():
    made = stats(outermost=1)
    for held in [60_000] * 200 + [20_000_000]:
        made.pauses.add(20_000_000)
        made.held.add(held)

    assert line(made, "pause") == "pause     p50 60 µs, p99 60 µs, max 20 ms (201 stops)"


def test_failed_captures_and_interrupted_calls_are_counted():
    made = stats(outermost=1)
    made.captures[Capture.FAILED], made.eintr_prone_stops = 1, 2
    text = lines(made)

    assert text[1] == "failed    1 capture"
    assert any(t.startswith("EINTR     2 stops interrupted") for t in text)


def test_modules_are_counted_by_table():
    made = stats(outermost=1)
    made.module_paths += [("/bin/x", True), ("/lib/libc.so.6", False)]

    assert not any(text.startswith("modules") for text in lines(made))  # there is nothing to do about them
    verbose = lines(made, verbose=True)
    assert "modules   1 with SFrame, 1 without" in verbose
    assert "          sframe    /bin/x" in verbose
    made.module_paths.clear()
    assert "modules   0 with SFrame, 0 without" in lines(made, verbose=True)


def test_problems_are_counted_and_cut():
    made = stats(outermost=1)
    made.problems.update({f"problem {n}": n for n in range(1, 8)})
    text = lines(made)

    assert "problem   problem 7 (7 times)" in text
    assert text[-1] == "          and 2 more (-v shows all)"
    assert "problem   problem 1" in lines(made, verbose=True)
    assert not any("more (" in t for t in lines(made, verbose=True))


def test_no_samples_of_idle_threads_proposes_wall_mode():
    made = stats()
    made.late_ticks, made.spared_ticks = 90, 500
    text = lines(made)

    assert text[0].endswith(" s: 40.0 Hz instead of 99 Hz, to stay below --max-overhead")
    assert text[1:] == [
        "no thread ran at any of the 400 ticks taken: idle",
        "to record sleeping threads: --mode wall",
    ]


def test_no_samples_of_waiting_threads_proposes_wall_mode():
    made = stats()
    made.waiting_for_cpu = 60

    assert line(made, "skipped") == "skipped   60 samples: waiting for a CPU"
    assert lines(made)[-2:] == [
        "no thread was on a CPU at any of the 990 ticks taken",
        "to record threads that wait for a CPU: --mode wall",
    ]


def test_no_samples_of_brief_threads_proposes_perf_events():
    made = stats()
    made.waiting_for_cpu, made.cpu_charged_ns = 60, 100_000_000
    assert lines(made)[-2:] == [
        "to record threads that wait for a CPU: --mode wall",
        "to record threads that run for microseconds at a time: --perf-events",
    ]


@pytest.mark.parametrize("mode", ["cpu", "wall"])
def test_samples_without_the_gil_are_counted_and_explain_an_empty_profile(mode):
    made = stats()
    made.without_gil = 60
    assert line(made, "left out", mode=mode) == "left out  60 samples of threads without the GIL"
    assert lines(made, mode)[-1] == "no thread held the GIL in any of 60 samples"


def test_failed_captures_and_wall_mode_are_not_called_idle():
    failed = stats()
    failed.captures[Capture.FAILED] = 4
    for text in (lines(failed), lines(stats(), "wall")):
        assert not any("no thread ran" in t for t in text)
        assert not any(t.startswith(("stacks", "callers")) for t in text)


def test_children_include_those_that_were_lost():
    made = stats(outermost=1)
    made.subprocesses.watched = 1
    assert line(made, "children") == "children  1 subprocess followed"
    made.subprocesses.watched, made.subprocesses.short_lived, made.subprocesses.refused = 5, 2, 1
    expected = "children  5 subprocesses followed, 2 ended before they could be opened, 1 could not be opened"
    assert line(made, "children") == expected
    assert not [text for text in lines(stats(outermost=1)) if text.startswith("children")]


def test_timers_that_would_have_been_better_are_named_with_what_was_in_the_way():
    made = stats(outermost=5)
    made.engine_why = "no CPU was free, but timers are not permitted"
    assert not any(text.startswith("timers") for text in summary_lines(made, "cpu"))
    made.lacks_timers = True
    expected = "timers    kernel timers not used: no CPU was free, but timers are not permitted"
    assert line(made, "timers") == expected


def test_permission_is_advised_only_where_it_is_what_lacks():
    made = stats(outermost=50)
    made.cpu_charged_ns, made.lacks_timers = 100_000_000_000, True  # the target runs Python
    assert not any("as root" in text for text in summary_lines(made, "cpu"))
    made.timers_refused = True
    assert any("as root" in text for text in summary_lines(made, "cpu"))


def test_coverage_is_the_share_of_the_cpu_time_that_samples_stand_for():
    made = stats()
    made.cpu_charged_ns = 0
    assert made.as_json()["coverage"] is None
    made.cpu_charged_ns, made.cpu_sampled_ns = 4_000_000, 3_000_000
    assert made.as_json()["coverage"] == 0.75
    made.cpu_sampled_ns = 5_000_000  # the last period began before the recording
    assert made.as_json()["coverage"] == 1.0


def test_timers_say_since_when_and_why():
    made = stats(outermost=5, bad_memory=5)
    made.timers_since_s, made.engine_why = 0.54, "no CPU was free"
    expected = "kernel timers sampled from 0.5 s on, because no CPU was free; they stop no thread"
    assert line(made, "timers") == f"timers    {expected}"
    assert "50 % bad_memory (--no-perf-events may copy more)" in line(made, "stacks")
    made.sampler_cpu_s = 0.65
    assert "--perf-events" not in line(made, "cost")


def test_no_samples_of_an_idle_master_names_its_children():
    made = stats()
    made.waiting_for_cpu, made.cpu_charged_ns = 1, 1_000_000
    made.why_idle = ("idle, while its 3 children run", "to sample them too: -s")

    assert lines(made)[1:] == [
        "skipped   1 sample: waiting for a CPU",
        "no thread ran at any of the 990 ticks taken: idle, while its 3 children run",
        "to sample them too: -s",
    ]


def test_headline_without_samples_counts_no_threads():
    assert lines(stats())[0] == "0 samples in 10.0 s: 990 ticks at 99 Hz, 0 missed"


def test_low_coverage_comes_first_in_a_short_recording_too():
    made = stats(outermost=14)
    made.rate_hz, made.cpu_charged_ns, made.cpu_sampled_ns = 99, 190_000_000, 140_000_000
    assert lines(made)[0] == "coverage  73.7 % of 0.19 s of CPU time: shares may be wrong"


def test_low_coverage_is_no_doubt_if_the_samples_show_sleep():
    made = stats(outermost=5362)
    made.rate_hz, made.cpu_charged_ns, made.cpu_sampled_ns = 99, 140_000_000, 114_000_000
    assert "coverage  81.4 % of 0.14 s of CPU time" in lines(made)[1:]
