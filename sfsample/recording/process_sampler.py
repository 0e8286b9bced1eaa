"""One target while it is recorded: which of its threads to look at in a tick, and how closely.

Law: a thread that has not run since the last look is not looked at again: its stack is counted once more (in
wall mode), which costs one small read.  A thread counts in cpu mode if it had the processor when it was
asked to stop, or lost it to us: one that waits, sleeps, or has just been woken does not.  A thread that waits
for a processor runs no code of its own once it was asked to stop: it is not waited for, and captured when it
stops.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import NamedTuple

from sfsample.errors import NotPermitted
from sfsample.process.capture import CapturedStack, ThreadCapturer, is_seldom
from sfsample.process.capture_running import AWAKE_THREADS, StopFilter
from sfsample.process.not_captured import NotCaptured, Reason
from sfsample.process.process import LiveProcess
from sfsample.process.procfs import Stat
from sfsample.process.scheduler import RunState, WakeUp, classify, ran_ns
from sfsample.recording.options import StackStore
from sfsample.recording.profile import Profile
from sfsample.recording.recorder import BEGINNING, Recorder, Since
from sfsample.recording.thread_table import PUT_OFF_NS, SampledThread, ThreadTable

_LAST_NS = 250_000_000  # the end is put off so long for threads that were asked to stop
_HELD_NS = 1_000_000  # those that have stopped meanwhile are not kept so for much longer
_SOME = 64  # threads; whether they are idle is asked in one go
_MOST_ASKED = 8  # to stop; if all do at once, each stands until those before it were captured
_GLANCE_NS = 50_000  # a thread that has a processor stops in this time, and we do not have to sleep

_ENDED = "the recording ended before its turn"
_seen_last = attrgetter("tick")


class TickTime(NamedTuple):
    """A tick that is taken: when, since the start, and how we woke up for it."""

    at_ns: int
    woken: WakeUp


class Rules(NamedTuple):
    """What of `RecordOptions` concerns a target."""

    wall: bool
    max_pause_ns: int
    bad_stacks: StackStore | None = None
    named: bool = True  # that it cannot be captured at all is an error; it is not for a descendant


class ProcessSampler:
    """Looks at the threads of one target and tells the tally, from tick `since` on."""

    def __init__(
        self,
        target: LiveProcess,
        looker: ThreadCapturer,
        profile: Profile,
        rules: Rules,
        random: Callable[[], float],
        *,
        since: Since = BEGINNING,
    ) -> None:
        self._target = target
        self._looker = looker
        self._profile = profile
        self._rules = rules
        self._threads = ThreadTable(random)
        self._ran_before: dict[int, int] = {}  # CPU time of those that have another program by now
        self._waiting: dict[
            SampledThread, WakeUp
        ] = {}  # were asked to stop, in a tick for which we woke up then
        self._unasked: list[SampledThread] = []  # in this tick, as enough others were
        self._program: tuple[bytes, ...] = ()
        self._leader: Stat | None = None  # as of the beginning of this tick
        self._cpu_began_ns: int | None = None  # the CPU time of the process when it was seen first
        self._cpu_ns = 0  # and since
        self._number = profile.register_process(target.pid, target.born, target.home, target.name)
        self._tally = Recorder(profile, self._number, since)
        target.limit_pauses(rules.max_pause_ns)

    @property
    def longest_stop_ns(self) -> int:
        """The time for which the thread that was stopped longest of those alive has been, in all."""
        return max((thread.stopped_ns for thread in self._threads), default=0)

    # -- which threads

    def tick(self, instant: TickTime, *, refresh: bool, meanwhile: Callable[[], bool]) -> bool:
        """Look at every thread whose turn it is; False when the process has ended.

        There may be thousands: `meanwhile` is called now and then, to let go of what other processes hold;
        when it says False, the recording is over, and the rest is left.
        """
        before_ns, self._tally.at_ns = self._tally.at_ns, instant.at_ns
        self._tally.tick += 1
        if not refresh and self._is_quiet():
            return True
        self.settled()
        self._target.modules.allow_refresh()
        if not self._follow(before_ns, refresh=refresh):
            return False
        self._unasked.clear()
        for thread in self._due(meanwhile):
            if thread not in self._waiting:
                if len(self._waiting) < _MOST_ASKED or not self._rules.wall:
                    self._turn(thread, instant.woken)
                else:
                    self._unasked.append(thread)
            elif not self._rules.wall:
                self._tally.skip(thread)  # it waits, and only the tick in which it lost the processor counts
            if not thread.gone:
                self._threads.again([thread], self._tally.tick)
        self._await(instant.woken.at_ns + self._rules.max_pause_ns)
        return True

    def _is_quiet(self) -> bool:
        """Whether no thread has run, so that nothing can have changed: none was born, none has called execve.

        Of processes with few threads, all of which slept; then that was their turn.
        """
        threads = self._threads.few(self._tally.tick)
        if self._waiting or not threads or any(thread.still is None for thread in threads):
            return False
        idle, others = self._target.proc.not_run(threads)
        if others:
            return False
        self._tally.idle(idle)
        return True

    def _due(self, meanwhile: Callable[[], bool]) -> Iterator[SampledThread]:
        """Yield the threads whose turn it is: those that ran lately, then others that may have run since.

        In between, let go of those that have stopped by now.
        """
        due = self._threads.due(self._tally.tick)
        left = deque(sorted((thread for thread in due if thread.still is None), key=_seen_last))
        still = [thread for thread in due if thread.still is not None]
        settled_ns = time.perf_counter_ns()
        while left or still:
            if time.perf_counter_ns() - settled_ns >= _HELD_NS:
                if not meanwhile():
                    self._leave([*left, *still])
                    return
                self.settled()
                settled_ns = time.perf_counter_ns()
            if left:
                yield left.popleft()
            else:
                some, still = still[:_SOME], still[_SOME:]
                left.extend(self._without_idle(some))

    def _without_idle(self, threads: list[SampledThread]) -> list[SampledThread]:
        """Count those that have not run; return the others."""
        idle, others = self._target.proc.not_run(threads)
        self._tally.idle(idle)
        self._threads.again(idle, self._tally.tick)
        return others

    def _leave(self, threads: list[SampledThread]) -> None:
        """Count those that nothing is known of, and for which it is too late."""
        for thread in threads:
            if self._rules.wall and thread.seen is None:
                self._tally.failed(thread, _ENDED)

    def _follow(self, before_ns: int, *, refresh: bool) -> bool:
        """Notice threads that come and go, and exec; False when the process has ended."""
        target = self._target
        leader = self._leader = target.proc.thread_stat(target.pid)
        if leader is None:
            return False
        dead = leader.state in "ZX"
        changed = not dead and leader.stack_top != 0 and leader.program != self._program
        if refresh or changed:
            target.modules.refresh()  # after exec another program can lie at the same addresses
        if changed:
            self._program = leader.program
            self._ran_before = {thread.tid: thread.ran_ns for thread in self._threads}
            for thread in tuple(self._threads):
                self._drop(thread)
        self._profile.name_process(self._number, leader.name)
        if refresh or self._cpu_began_ns is None:
            self._measure()
        tids = target.tids(force=refresh or changed or dead)
        if tids is not None:
            self._list(tids, before_ns)
        return not (dead and target.proc.has_ended())

    def _measure(self) -> None:
        """Note the CPU time of the process, as long as it is told."""
        cpu_ns = self._target.proc.cpu_ns()
        if cpu_ns is None:
            return
        if self._cpu_began_ns is None:
            first_ns = cpu_ns if self._tally.tick == 1 else 0
            self._cpu_began_ns = first_ns if self._target.accounted_ns is None else self._target.accounted_ns
        self._cpu_ns = cpu_ns - self._cpu_began_ns
        self._target.accounted_ns = cpu_ns

    def _list(self, tids: list[int], before_ns: int) -> None:
        tick, counters = self._tally.tick, self._target.proc.counters
        for thread in [one for one in self._threads if one.gone and counters(one.tid) != one.still]:
            self._drop(thread)  # its id may have been given to another thread
        new, gone = self._threads.compare(tids)
        for thread in gone:
            self._drop(thread)
        for tid in new:
            ran = self._ran_before.pop(tid, 0) if tick > 1 else ran_ns(counters(tid))
            self._threads.add(SampledThread(self._target.thread(tid), tick - 1, before_ns, ran), tick)

    def _drop(self, thread: SampledThread) -> None:
        self._waiting.pop(thread, None)  # if it still stops, it is let go
        self._tally.settle(thread)
        self._threads.drop(thread)

    # -- one thread

    def _turn(self, thread: SampledThread, woken: WakeUp) -> None:
        counters = self._target.proc.counters(thread.tid)
        if counters is None:
            self._drop(thread)
        elif counters == thread.still:  # its file is not kept open, or the kernel counts otherwise
            self._tally.idle([thread])
        else:
            self._tally.settle(thread)
            thread.idle, thread.put_off_ns, thread.seen, thread.still = 0, PUT_OFF_NS, None, None
            thread.holder = self._target.proc.holder(thread.tid)
            used_ns = self._tally.charge(thread, counters)
            seldom = is_seldom(used_ns, self._tally.at_ns - thread.at_ns)
            if seldom and self._rules.wall and self._looker.stop_breaks_call(thread.thread):
                self._looker.wait_until_asleep(thread.thread, woken.at_ns + self._rules.max_pause_ns)
            if seldom and not self._rules.wall and self._target.proc.asleep(thread.tid) is not None:
                # not worth while to prepare a look; of others that is seen last of all, as the preparations
                # take longer than some threads run at a time
                thread.still = counters
                self._tally.skip(thread)
            else:
                self._capture(thread, woken, counters)

    def _capture(self, thread: SampledThread, woken: WakeUp, counters: bytes) -> None:
        is_leader = thread.tid == self._target.pid
        stat = self._leader if is_leader else self._target.proc.thread_stat(thread.tid)
        if stat is None or stat.state in "ZX":
            thread.gone, thread.still = True, counters  # those of now may be another's, who was given its id
            return
        thread.name, thread.starttime = stat.name, stat.starttime
        look = self._look(thread, stat.state, woken)
        if isinstance(look, NotCaptured) and look.pending:
            self._waiting[thread] = woken
        else:
            self._count(thread, look, woken)

    def _look(self, thread: SampledThread, state: str, woken: WakeUp) -> CapturedStack | NotCaptured:
        wall = self._rules.wall
        only = AWAKE_THREADS if wall else StopFilter(awake=True, ours=woken)
        try:
            look = self._looker.capture(thread.thread, state if wall else "R", _GLANCE_NS, only, thread.last)
        except NotPermitted as refusal:
            if self._rules.named and not self._profile.stats.samples:
                raise
            return NotCaptured(Reason.REFUSED, f"{refusal} ({'; '.join(refusal.help)})")
        self._tally.stops(thread, look.stops)
        return look

    def _count(self, thread: SampledThread, look: CapturedStack | NotCaptured, woken: WakeUp) -> None:
        tally = self._tally
        if self._target.proc.holder(thread.tid) != thread.holder:
            thread.gone = True  # its id was given to another, who may be the one that was seen
            return
        if isinstance(look, NotCaptured):
            if look.reason is Reason.OFF_CPU:
                thread.still = look.counters
                (tally.off_processor if look.state is RunState.WAITING else tally.skip)(thread)
            elif not look.gone:
                tally.failed(thread, look.detail)
            return
        evidence = look.snapshot.scheduler
        if evidence is not None:
            thread.still = evidence.after
            tally.charge(thread, evidence.after)
        if not self._rules.wall and not classify(thread.thread.stop.before, evidence, woken).counts_as_cpu:
            tally.off_processor(thread)
            return
        if self._rules.bad_stacks is not None:
            self._rules.bad_stacks.keep(thread.name, look.snapshot, look.stack, self._target.modules)
        tally.see(thread, look)
        tally.add(thread, look.snapshot.capture)
        if not self._rules.wall:
            thread.seen = None  # as long as it does not run, it does not count

    # -- threads that wait for a processor, and stop when they get one

    def settled(self) -> bool:
        """Capture threads that have stopped by now; False while one is still to stop."""
        self._target.collect_stopped()
        for thread, woken in tuple(self._waiting.items()):
            if not self._target.has_stopped(thread.thread):
                continue
            look = self._look(thread, "R", woken)
            if not (isinstance(look, NotCaptured) and look.pending):
                del self._waiting[thread]
                self._count(thread, look, woken)
        return not self._waiting and self._target.release_pending()

    def await_stop(self, seconds: float) -> None:
        """Sleep until a thread that was asked to stop does, but not longer."""
        self._target.await_stop(seconds)

    def _await(self, deadline_ns: int) -> None:
        """Wait for threads that were asked to stop, no longer than a pause may last."""
        while self._waiting and (left := deadline_ns - time.perf_counter_ns()) > 0:
            self.await_stop(left / 1e9)
            self.settled()

    def _give_up(self) -> None:
        """Count those that have not stopped until the end.  They are let go as soon as they do."""
        for thread in self._waiting:
            if self._rules.wall:
                self._tally.failed(thread, "did not stop in time (the machine is overloaded)")
            else:
                self._tally.off_processor(thread)
        self._waiting.clear()

    # -- the end

    def close(self) -> None:
        """Close the target."""
        self._target.close()

    def finish(self) -> None:
        """Count the ticks since the last look at each thread, and what is known only at the end."""
        self._await(time.perf_counter_ns() + _LAST_NS)
        self._give_up()
        for thread in self._unasked:
            if not thread.gone:
                self._tally.failed(thread, _ENDED)
        for thread in self._threads:
            counters = self._target.proc.counters(thread.tid)
            if counters == thread.still:
                self._tally.idle([thread])
            self._tally.settle(thread)
            self._tally.charge(thread, counters)
        self._measure()
        self._tally.charge_process(self._cpu_ns)
        self._tally.finish(self._target, self._looker)
