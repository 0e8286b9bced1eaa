"""Decides which threads of a process are due at a tick.

If a recording has fewer than 16 threads, every thread is due at every tick.  In a larger recording, threads
that have long been quiet take turns, so that about 16 quiet threads are due at a tick.  The next turn of a
quiet thread comes after a random number of ticks, at most a quarter of the ticks since it became quiet.  In
cpu mode, a thread is quiet while it does not run.  In wall mode, a thread that hardly runs is quiet, too.

A sample stands for all ticks since the previous sample of its thread.  The sample is exact if the thread's
scheduler counters have not changed.  Other samples are right on average, because turns are random.
"""

from collections.abc import Callable

from sfsample.core.stack import Stack
from sfsample.modules.location import Located
from sfsample.process.thread import Thread
from sfsample.recording.sample import Places, TickTime
from sfsample.recording.wait_finder import FoundWait

_FULL_TURN_THREADS = 16
_MAX_TICKS_BETWEEN_TURNS = 64
FLUSH_NS = 1_000_000_000  # idle time after which the samples of a thread that does not run are counted
_QUIET_SHARE = 1 / 400  # share of the time; a thread that runs for a smaller share is quiet (wall mode)


class SampledThread:
    """The state of a sampled thread between two samples."""

    def __init__(self, thread: Thread, counted: TickTime, ran_ns: int) -> None:
        self.process_thread = thread
        self.tid = thread.tid
        self.files = thread.files
        self.name = ""
        self.start_time = 0  # clock ticks since boot
        self.state = ""  # state of the thread before the last capture: a letter of proc(5)
        self.wait: FoundWait | None = None  # wait at the last capture of the thread
        self.seen = counted  # tick of the last capture
        self.places: Places = ()  # places of the last stack, without the stacks of lock holders (--blame)
        self.file_holder: int | None = None  # `ThreadFiles.holder` before the capture
        self.counted = counted  # tick up to which samples of the thread were counted
        self.idle_until = counted  # tick up to which the thread has not run
        self.quiet_since = counted  # tick since which the thread has been quiet
        self.off_cpu_counters: bytes | None = None  # scheduler counters; they change when the thread runs
        self.looked_counters: bytes | None = None  # scheduler counters before the last look, see `look`
        # Stack to count again until the thread runs; None: ticks until then give no sample (as in cpu mode).
        self.last_stack: tuple[Stack, Places] | None = None
        # Stacks of suspended tasks, each with the number of tasks; None: not read since the thread last ran.
        self.tasks: list[tuple[Places, float]] | None = None
        self.tasks_counted = counted  # tick up to which samples of tasks were counted
        self.tasks_due_ns = 0  # time from which the tasks may be read again (perf_counter_ns)
        self.is_left_out = False  # True: samples do not count, as the thread lacked the GIL (--gil)
        self.last = Located()  # frames of the last sample
        self.ran_ns = ran_ns  # CPU time in ns at the last turn
        self.quiet_ran_ns = ran_ns  # CPU time in ns at the tick `quiet_since`
        self.uncounted_cpu_ns = 0  # CPU time that no sample stands for yet
        self.stopped_ns = 0  # total time for which sfsample has held the thread
        self.flush_ns = FLUSH_NS
        self.gone = False
        self.due = 0  # tick of the next turn

    def note_run(self, now: TickTime, *, wall: bool) -> None:
        """Note that the thread has run, so its last stack and its tasks are out of date."""
        self.flush_ns, self.last_stack, self.off_cpu_counters, self.tasks = FLUSH_NS, None, None, None
        ran_ns, time_ns = self.ran_ns - self.quiet_ran_ns, now.at_ns - self.quiet_since.at_ns
        if not (wall and 0 <= ran_ns <= _QUIET_SHARE * time_ns):
            self.quiet_since, self.quiet_ran_ns = now, self.ran_ns

    def give_next_turn(self, tick: int, spread: int, random: Callable[[], float]) -> None:
        """Choose the next turn of a thread that was due at `tick`; see `spread_of`."""
        most_skipped = min(spread, (tick - self.quiet_since.number) // 4)
        self.due = tick + 1 + (int(random() * most_skipped) if most_skipped else 0)


def spread_of(threads: int) -> int:
    """Return the largest number of ticks between two turns, for a recording of `threads` threads."""
    return min(2 * (threads // _FULL_TURN_THREADS), _MAX_TICKS_BETWEEN_TURNS)
