"""After an execve, and where a thread id is reused, samples and CPU time are counted for the right thread."""

from sfsample.process.proc_text import Stat
from tests.recording.fake_process import PID, START, TICK, FakeProcess, reading, record


def test_cpu_time_before_an_execve_is_not_charged_again(process):
    """/proc may hide the program (0) now and then; the leader keeps its id and its counters."""
    programs = iter([(1, 1, 5), (1, 1, 5), (1, 1, 9), (1, 1, 0), (1, 1, 9)])
    process.ran_ns = {PID: 10}

    def thread_stat(tid):
        return Stat("x", "R", 0, 5, next(programs, (1, 1, 9)) if len(process.captured) < 5 else (1, 1, 9))

    process.thread_stat = thread_stat

    def run() -> bool:
        process.ran_ns[PID] = 10 + len(process.captured)
        return False

    stats = record(process, should_stop=run).stats
    assert (stats.samples, stats.cpu_charged_ns) == (8, 8)


def test_thread_with_a_reused_id_is_charged_from_zero(process):
    process.ran_ns[PID] = 5000

    def reuse_id() -> bool:
        process.ran_ns[PID] = 300 if len(process.captured) >= 4 else 5000
        return False

    stats = record(process, should_stop=reuse_id).stats

    assert stats.cpu_charged_ns == 300


def test_samples_keep_the_thread_name_when_the_id_is_reused(process):
    def thread_stat(_tid):
        return Stat("alpha", "R", 0, 5) if len(process.captured) < 4 else Stat("beta", "R", 0, 9)

    process.thread_stat = thread_stat
    profile = record(process)

    names = {profile.threads[key.thread]: count for key, count in profile.counts.items()}
    assert names == {"alpha": 4, "beta": 4}


def test_thread_with_the_id_of_an_ended_thread_is_sampled(clock):
    process = FakeProcess(clock, (PID, "R"), (101, "R"))
    process.fixed_times_run[101] = 7

    def reuse_id() -> bool:
        captures = len(process.captured)
        process.states[101] = "Z" if 4 <= captures < 8 else "R"
        process.fixed_times_run[101] = 7 + captures // 4
        return False

    record(process, should_stop=reuse_id, mode="wall")

    times = [at for tid, at in process.captured if tid == 101]
    assert max(times) > START + 0.75


def test_id_reused_right_after_the_end_was_seen_is_another_thread(clock):
    process = FakeProcess(clock, (PID, "R"), (101, "S"))
    process.fixed_times_run[101] = 7
    process.readings[101] = reading(101)

    def thread_stat(tid):
        times_run = process.fixed_times_run[101]
        if tid == 101 and times_run == 8:
            process.fixed_times_run[101] = 9  # the next thread has the id, and sleeps
            process.readings[101] = reading(101, times_run=9)
            return Stat("old", "Z", 0, 5)
        return Stat("new" if times_run == 9 else "old", process.states[tid], 0, 5 + times_run)

    def end():
        if clock.now() - START >= 4 * TICK and process.fixed_times_run[101] == 7:
            process.fixed_times_run[101] = 8
        return False

    process.thread_stat = thread_stat
    profile = record(process, mode="wall", duration=12 * TICK, should_stop=end)

    counts = {profile.threads[key.thread]: n for key, n in profile.counts.items() if key.tid == 101}
    assert counts == {"old": 5, "new": 6}


def test_capture_is_dropped_if_the_id_was_reused_meanwhile(process):
    names = ["alpha", "beta"]

    def thread_stat(_tid):
        holder = process.file_holders.get(PID, 0)
        return Stat(names[holder], "R", 0, 5 + holder)

    def capture(*arguments):
        if len(process.captured) == 3:  # after its name was read, before the stop
            process.file_holders[PID] = 1
        return FakeProcess.capture(process, *arguments)

    process.thread_stat, process.capture = thread_stat, capture
    profile = record(process)

    counts = {profile.threads[key.thread]: count for key, count in profile.counts.items()}
    assert counts == {"alpha": 3, "beta": 4}
    assert profile.stats.pauses.count == 8
