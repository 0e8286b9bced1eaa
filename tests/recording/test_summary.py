"""The summary: nothing that was lost is rounded away, and nothing is said that did not happen."""

import pytest

from sfsample.core.snapshot import Capture
from sfsample.core.stack import Found, Frame, Stack, StopReason
from sfsample.recording.stats import Stats, Timers
from sfsample.recording.summary import summary_lines


def stats(**stacks: int) -> Stats:
    """Return statistics with so many stacks of each reason, each of a context and an SFrame frame."""
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


def test_the_first_line_says_what_was_missed():
    made = stats(outermost=5)
    made.late_ticks = 3

    assert lines(made)[0] == "5 samples of 1 thread in 10.0 s: 990 ticks at 99 Hz, 3 missed (98.7 Hz)"
    made.threads = 2
    assert "of 2 threads" in lines(made)[0]
    made.samples = made.ticks = 1
    assert lines(made)[0].startswith("1 sample of 2 threads in 10.0 s: 1 tick at 99 Hz")


@pytest.mark.parametrize(
    ("cpu_s", "spared", "said"),
    [
        (0.07, 0, "0.7 % of one processor"),
        (0.65, 0, "6.5 % of one processor (--perf-events costs less, --max-overhead limits it)"),
        (0.65, 9, "6.5 % of one processor"),  # it has: the first look at many threads may be more than that
        (0.0001, 0, "< 0.1 % of one processor"),
    ],
)
def test_what_the_sampler_took_for_itself(cpu_s, spared, said):
    made = stats(outermost=5)
    made.sampler_cpu_s, made.spared_ticks = cpu_s, spared

    assert line(made, "cost") == f"cost      {said}"


def test_where_no_timer_has_run_out_no_tick_is_told_of():
    made = stats()
    made.timers, made.rate_hz = Timers(), 50.0
    assert lines(made)[1:] == [
        "no thread used the 20 ms of CPU time that a sample stands for;",
        "sleeping threads are recorded with: --mode wall, without --perf-events",
    ]


def test_perf_events_are_proposed_only_where_they_can_be_had():
    made = stats(outermost=5)
    made.sampler_cpu_s = 0.65
    assert line(made, "cost", mode="wall") == "cost      6.5 % of one processor (--max-overhead limits it)"
    made.frames[Found.SFRAME] = 5 * 1000
    assert line(made, "cost") == "cost      6.5 % of one processor (--max-overhead limits it)"
    made.frames.clear()
    made.timers = Timers()
    assert line(made, "cost") == "cost      6.5 % of one processor (--max-overhead limits it)"
    assert line(made, "pause") == "pause     none: copied by the kernel in timer interrupts"


@pytest.mark.parametrize(
    ("sampled_ns", "said"),
    [
        (9_900_000_000, None),
        (9_800_000_000, "no sample stands for 2 % of it"),
        (10_300_000_000, "the samples stand for 3 % more"),
    ],
)
def test_what_the_samples_stand_for_is_compared_with_what_was_charged(sampled_ns, said):
    made = stats(outermost=5)
    made.cpu_charged_ns, made.cpu_sampled_ns = 10_000_000_000, sampled_ns
    found = [text for text in lines(made) if text.startswith("CPU time")]
    assert found == ([] if said is None else [f"CPU time  10.00 s; {said}"])


def test_of_threads_that_lived_too_shortly_it_is_said_who_sees_them():
    made = Stats(99.0)
    made.timers, made.duration_s, made.ticks, made.cpu_charged_ns = Timers(), 10.0, 990, 10**9
    _, lost, _, hint = lines(made)
    assert lost == "CPU time  1.00 s; no sample stands for 100 % of it"
    assert hint == "a higher --rate needs less; threads that live shorter are seen with --no-perf-events"


def test_of_what_no_interrupt_copies_it_is_said_who_does():
    made = stats(outermost=5, stack_copy_ended=5)
    assert "50 % stack_copy_ended (--stack-bytes allows more)" in line(made, "stacks")
    made.timers = Timers()
    assert "50 % stack_copy_ended (--no-perf-events copies all)" in line(made, "stacks")


def test_nothing_is_said_of_a_cost_that_is_not_known():
    assert not any(text.startswith("cost") for text in lines(stats(outermost=5)))


@pytest.mark.parametrize(
    ("whole", "lost", "said", "loss"),
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
def test_100_percent_means_all(whole, lost, said, loss):
    made = stats()
    made.samples = whole + lost
    made.stacks.update({StopReason.OUTERMOST: whole, StopReason.NO_ROW: lost})
    text = line(made, "stacks")

    assert text.startswith(f"stacks    {said} reached the outermost frame")
    if loss is not None:
        assert text.endswith(f", {loss} no_row")


@pytest.mark.parametrize(
    ("reason", "said"),
    [(StopReason.MAX_FRAMES, "max_frames (--max-frames allows more)"),
     (StopReason.STACK_COPY_ENDED, "stack_copy_ended (--stack-bytes allows more)"),
     (StopReason.NO_ROW, "no_row")],
)  # fmt: skip
def test_what_can_be_done_about_a_stack_that_is_cut(reason, said):
    made = stats()
    made.samples, made.stacks[reason] = 1, 1

    assert line(made, "stacks") == f"stacks    0 % reached the outermost frame, 100 % {said}"


def test_callers():
    made = stats(outermost=3)
    made.frames.update({Found.EH_FRAME: 1, Found.CONTEXT: 5})

    assert line(made, "callers") == "callers   75 % by sframe, 25 % by eh_frame"


def test_pauses():
    made = stats(outermost=1)
    assert not any(text.startswith("pause") for text in lines(made))
    for pause in (61_400, 61_400, 20_000_000):
        made.pauses.add(pause)

    assert line(made, "pause") == "pause     p50 61 µs, p99 20 ms, max 20 ms (3 stops)"


@pytest.mark.parametrize(("held", "told"), [(60_000, True), (9_900_000, True), (10_000_000, False)])
def test_what_a_thread_waited_for_a_processor_in_a_pause_is_told_apart(held, told):
    made = stats(outermost=1)
    made.pauses.add(20_000_000)
    made.held.add(held)
    text = lines(made)
    after = text[text.index("pause     p50 20 ms, p99 20 ms, max 20 ms (1 stop)") + 1]

    assert after.endswith("without their own waits for a processor to stop on") == told
    assert after.startswith(f"          p50 {held // 1000} µs, ") == told


def test_one_long_pause_does_not_hide_that_the_others_were_waits():
    made = stats(outermost=1)
    for held in [60_000] * 200 + [20_000_000]:
        made.pauses.add(20_000_000)
        made.held.add(held)

    told = "p50 60 µs, p99 60 µs, max 20 ms without their own waits for a processor to stop on"
    assert f"          {told}" in lines(made)


def test_failed_captures_and_system_calls():
    made = stats(outermost=1)
    made.captures[Capture.FAILED], made.eintr_prone_stops = 1, 2
    text = lines(made)

    assert text[1] == "failed    1 capture"
    assert any(t.startswith("EINTR     2 stops interrupted") for t in text)


def test_modules():
    made = stats(outermost=1)
    made.module_paths += [("/bin/x", True), ("/lib/libc.so.6", False)]

    assert line(made, "modules") == "modules   1 with SFrame (x), 1 without"
    verbose = lines(made, verbose=True)
    assert "          sframe    /bin/x" in verbose
    assert "          eh_frame  /lib/libc.so.6" in verbose
    made.module_paths.clear()
    assert line(made, "modules") == "modules   0 with SFrame, 0 without"


def test_problems():
    made = stats(outermost=1)
    made.problems.update({f"problem {n}": n for n in range(1, 8)})
    text = lines(made)

    assert "problem   problem 7 (7 times)" in text
    assert text[-1] == "          and 2 more (-v shows all)"
    assert "problem   problem 1" in lines(made, verbose=True)
    assert not any("more (" in t for t in lines(made, verbose=True))


def test_idle():
    made = stats()
    made.late_ticks, made.spared_ticks = 90, 500
    text = lines(made)

    assert text[2:] == [
        "no thread ran at any of the 400 ticks taken;",
        "sleeping threads are recorded with: --mode wall",
    ]


def test_threads_that_only_waited_are_not_idle():
    made = stats()
    made.off_processor = 60

    assert lines(made)[-2:] == [
        "no thread had a processor at any of the 990 ticks taken;",
        "those that wait for one are recorded with: --mode wall",
    ]


def test_threads_that_ran_and_were_never_met_are_seen_otherwise():
    made = stats()
    made.off_processor, made.cpu_charged_ns = 60, 100_000_000
    assert lines(made)[-2:] == [
        "those that wait for one are recorded with: --mode wall",
        "threads that run for microseconds at a time are seen with --perf-events",
    ]


def test_nothing_sampled_for_another_reason_is_not_idle():
    failed = stats()
    failed.captures[Capture.FAILED] = 4
    for text in (lines(failed), lines(stats(), "wall")):
        assert not any("no thread ran" in t for t in text)
        assert not any(t.startswith(("stacks", "callers")) for t in text)


def test_subprocesses_are_told_with_those_that_were_lost():
    made = stats(outermost=1)
    made.subprocesses.watched = 1
    assert line(made, "children") == "children  1 subprocess watched"
    made.subprocesses.watched, made.subprocesses.short_lived, made.subprocesses.refused = 5, 2, 1
    expected = "children  5 subprocesses watched, 2 ended before a look at them, 1 could not be opened"
    assert line(made, "children") == expected
    assert not [text for text in lines(stats(outermost=1)) if text.startswith("children")]


def test_when_timers_took_over_and_what_came_of_it():
    made = stats(outermost=5, bad_memory=5)
    made.timers = Timers(0.54, because="no processor was free")
    took_over = "timers    of the kernel took over at 0.5 s, as no processor was free"
    assert line(made, "timers") == f"{took_over}; nothing was stopped from then on"
    assert "50 % bad_memory (--no-perf-events may copy more)" in line(made, "stacks")
    made.sampler_cpu_s = 0.65
    assert "--perf-events" not in line(made, "cost")
