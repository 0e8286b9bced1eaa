"""Samples the threads of one process, tick by tick.

One small read of the scheduler's counters shows whether a thread has run since its last sample.  A thread
that has not run is not captured again; in wall mode, its last stack is counted once more.  In cpu mode, a
capture counts only if the thread had a CPU at the request for the stop, or had lost its CPU to sfsample.
A thread that slept, waited for a CPU, or had just been woken does not count.  A tick waits for stops for at
most --max-pause.  A thread that stops later is captured at a checkpoint or in a later tick.  Between request
and stop, a thread that waits for a CPU runs no code of its own, so its stack does not change.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import suppress

from sfsample.core.snapshot import Capture
from sfsample.errors import NotPermitted, ReadFailed
from sfsample.process.capture import CapturedStack, ThreadCapturer
from sfsample.process.capture_running import AWAKE_THREADS, StopFilter
from sfsample.process.had_cpu import RunState, WakeUp, classify, is_seldom, ran_ns
from sfsample.process.not_captured import NotCaptured, Reason
from sfsample.process.proc_text import Stat
from sfsample.process.process import LiveProcess
from sfsample.process.stop_request import await_stop
from sfsample.recording.blame import Blame
from sfsample.recording.due_threads import SampledThread
from sfsample.recording.processes import Recording
from sfsample.recording.recorder import Recorder
from sfsample.recording.sample import ThreadKey, TickTime
from sfsample.recording.wait_finder import WaitFinder

_END_PATIENCE_NS = 250_000_000  # longest wait for pending stops at the end of the recording
_COLLECT_NS = 1_000_000  # time between two collections of threads that have stopped meanwhile
_MAX_PENDING_STOPS = 8  # threads: if all stop at once, the last stays stopped until the others are captured
_LOOK_NS = 1_000_000  # longest wait for the stop of a thread that holds a lock (--blame)
_STOP_PATIENCE_NS = 50_000  # longest polling for a stop: a thread that has a CPU stops in this time
_TASKS_PART = 20  # divisor: for each event loop, sfsample may read tasks for 1/20 of the time
_RECORDING_ENDED = "the recording ended before its turn"
_STILL_PENDING = "did not stop in time (the machine is overloaded)"


class ProcessSampler:
    """Samples the threads of one process into a profile, from tick `since` on.

    A refused capture is a failed sample.  For a process that the user named (`named`), a refusal before the
    first sample is an error.  `waits` finds the waits of sleeping threads.  `others`: see `Blame`.
    """

    def __init__(
        self, process: LiveProcess, capturer: ThreadCapturer, recording: Recording,
        random: Callable[[], float], *, named: bool, since: TickTime, waits: WaitFinder | None = None,
        others: "Callable[[int], ProcessSampler | None]" = lambda _: None,
    ) -> None:  # fmt: skip
        self.process, self.name = process, process.name
        self._capturer = capturer
        options, profile = recording.options, recording.profile
        self._options, self._profile = options, profile
        self._wall = options.mode == "wall"
        self.waits = waits
        self._looked_at: SampledThread | None = None  # thread whose stack is captured, but not counted
        self._max_pause_ns = round(options.max_pause * 1e9)
        process.running_capture.max_held_ns = self._max_pause_ns
        self._named = named
        self._random = random
        self.threads: dict[int, SampledThread] = {}  # living threads by id
        self._pending: dict[SampledThread, WakeUp] = {}  # thread -> sfsample's wake-up before the request
        # Due threads that this tick leaves out: too many stops are pending, or the recording has ended.
        self._not_asked = set[SampledThread]()
        self._has_run = True  # True: the process has run since the last search for changes
        self._ran_before_exec: dict[int, int] = {}  # thread id -> CPU time in ns, up to the last execve
        self._program: tuple[bytes, ...] = ()  # `Stat.program`, which every execve changes
        self._leader: Stat | None = None  # stat of the first thread at the beginning of this tick
        self._recorder = Recorder(
            profile, process, since, options.python, options.min_wait, is_new=since.number > 0
        )
        self._goroutines = SampledThread(process.thread(process.pid), since, 0)  # `tasks`: parked goroutines
        self._goroutines.start_time = process.start_time
        self._blame = Blame(self._recorder, self, others) if waits and options.blame else None

    @property
    def living(self) -> set[ThreadKey]:
        """The threads that lived at the last tick."""
        key, threads = self._recorder.process_key, self.threads.values()
        return {ThreadKey(key, thread.tid, thread.start_time) for thread in threads}

    def tick(
        self, now: TickTime, woken: WakeUp, *, spread: int, refresh: bool, go_on: Callable[[], bool]
    ) -> bool:
        """Sample every thread that is due; False: the process has ended.

        Thousands of threads may be due, so the tick calls `go_on` at intervals.  `go_on` may release threads
        that sfsample holds in other processes.  If `go_on` returns False, the recording is over, and the tick
        leaves out the remaining threads.  `spread`: see `spread_of`.
        """
        before, tick = self._recorder.now, now.number
        self._recorder.now = now
        try:
            due = self._due()
            if not (refresh and (self._has_run or self._blame)) and self._is_quiet(due):
                for thread in due:
                    thread.give_next_turn(tick, spread, self._random)
                return True
            self._has_run = not refresh  # /proc may show changes late, so the next refresh must search
            self.collect()
            self.process.modules.allow_refresh()
            if not self._follow_changes(before, refresh=refresh):
                return False
            self._not_asked.clear()
            for thread in self._in_turn(self._due(), go_on):
                if not thread.gone:
                    self._take_turn(thread, woken)
                thread.give_next_turn(tick, spread, self._random)
            self._wait_for_pending(woken.at_ns + self._max_pause_ns)
            if self._options.tasks:
                self._look_at_goroutines()
            if self._blame is not None:
                self._blame.count()
        except ReadFailed as failure:
            if failure.help and self._named and not self._profile.stats.samples:
                raise  # the help names a limit that the user can raise
            self._profile.stats.count_failed(str(failure), 1)
        return True

    def visit(self, now: TickTime) -> bool:
        """Follow births, ends and an execve, but sample no thread; False: the process has ended."""
        before, self._recorder.now = self._recorder.now, now
        self.process.modules.allow_refresh()
        is_followed = before.number == now.number and bool(self.threads)
        return is_followed or self._follow_changes(before, refresh=False)

    def _due(self) -> list[SampledThread]:
        return [thread for thread in self.threads.values() if thread.due <= self._recorder.now.number]

    def _is_quiet(self, due: list[SampledThread]) -> bool:
        """If no due thread has run, count the due threads and return True.

        sfsample notices a birth or an execve when the thread that called clone(2) or execve(2) is due.
        """
        ran = (t.off_cpu_counters is None or t.files.counters() != t.off_cpu_counters for t in due)
        if self._pending or not self.threads or any(ran) or (self._blame and self._blame.may_differ()):
            return False
        self._recorder.count_idle(due)
        return True

    def _in_turn(self, due: list[SampledThread], go_on: Callable[[], bool]) -> Iterator[SampledThread]:
        """Yield the due threads: threads that ran lately come before threads that were off their CPU.

        Between two due threads, capture pending threads that have stopped by now.
        """
        due.sort(key=lambda thread: (thread.off_cpu_counters is not None, thread.counted.number))
        collected_ns = time.perf_counter_ns()
        for position, thread in enumerate(due):
            if time.perf_counter_ns() - collected_ns >= _COLLECT_NS:
                if not go_on():
                    self._not_asked |= {t for t in due[position:] if self._wall and t.last_stack is None}
                    return
                self.collect()
                collected_ns = time.perf_counter_ns()
            yield thread

    def _follow_changes(self, last_tick: TickTime, *, refresh: bool) -> bool:
        """Notice births, ends and execve; False: the process has ended."""
        process, before = self.process, self._leader
        leader = self._leader = process.proc.thread(process.pid).stat()
        if leader is None:
            return not process.proc.has_ended()
        dead = leader.state in "ZX"
        changed = not dead and leader.program != self._program and leader.stack_top != 0
        if refresh or changed:
            process.modules.refresh()  # after an execve, another program can be at the same addresses
        if changed:
            self._program = leader.program
            self._ran_before_exec = {tid: thread.ran_ns for tid, thread in self.threads.items()}
            for thread in tuple(self.threads.values()):
                self._drop(thread)
        if before is None or leader.name != before.name:
            self.name = leader.name
            self._profile.name_process(self._recorder.process_key, leader.name)
        if refresh or before is None:
            self._recorder.read_cpu_time()
        tids = process.tids(force=refresh or changed or dead)
        if tids is not None:
            self._update_threads(tids, last_tick)
        return not (dead and process.proc.has_ended())

    def _update_threads(self, tids: list[int], last_tick: TickTime) -> None:
        tick = self._recorder.now.number
        now, threads = {*tids}, tuple(self.threads.values())
        # The id of a thread that is gone may belong to a new thread.
        ended = [t for t in threads
                 if t.tid not in now or (t.gone and t.files.counters() != t.off_cpu_counters)]  # fmt: skip
        for thread in ended:
            self._drop(thread)
        new = sorted(now - self.threads.keys())
        for tid in new:
            born = self.process.thread(tid)
            ran = self._ran_before_exec.pop(tid, 0) if tick > 1 else ran_ns(born.files.counters())
            self.threads[tid] = SampledThread(born, last_tick, ran)
        if self.waits is not None and (new or ended):
            self.waits.follow(tids)

    def _drop(self, thread: SampledThread) -> None:
        self._pending.pop(thread, None)  # `release_pending` releases the thread if it stops later
        self._recorder.flush(thread)
        self._recorder.end_wait(thread)
        thread.gone = True
        self.threads.pop(thread.tid, None)

    def _take_turn(self, thread: SampledThread, woken: WakeUp) -> None:
        if thread in self._pending:
            if not self._wall:
                self._recorder.skip(thread)  # the pending sample belongs to the tick that requested the stop
            return
        counters = thread.files.counters()
        if counters is None:
            self._drop(thread)
        elif counters == thread.off_cpu_counters:
            if self._blame is None or not self._blame.postpone(thread):
                self._recorder.count_idle([thread])
        elif self._wall and len(self._pending) >= _MAX_PENDING_STOPS:
            self._not_asked.add(thread)
        else:
            self._sample(thread, woken, counters)

    def look(self, thread: SampledThread) -> None:
        """Capture a thread again if it has run since the last capture or look, but do not count a sample."""
        counters, known = thread.files.counters(), thread.off_cpu_counters if thread.last_stack else None
        if counters is not None and counters not in (known, thread.looked_counters):
            thread.looked_counters = counters
            self._looked_at, now_ns = thread, time.perf_counter_ns()
            if thread not in self._pending:
                self._sample(thread, WakeUp(now_ns), counters)
            self._wait_for_pending(now_ns + _LOOK_NS)
            self._looked_at = None

    def _sample(self, thread: SampledThread, woken: WakeUp, counters: bytes) -> None:
        files, recorder, wall = thread.files, self._recorder, self._wall
        recorder.flush(thread)
        recorder.end_wait(thread)
        thread.file_holder = thread.files.holder
        used_ns = recorder.charge(thread, counters)
        thread.note_run(recorder.now, wall=wall)
        if self.waits is not None:
            self.waits.forget(thread.tid)
        seldom = is_seldom(used_ns, recorder.now.at_ns - thread.counted.at_ns)
        if seldom and wall and self._capturer.stop_breaks_call(thread.process_thread):
            self._capturer.wait_until_asleep(thread.process_thread, woken.at_ns + self._max_pause_ns)
        if seldom and not wall and files.asleep() is not None:
            # A thread that runs seldom and sleeps now is not worth the preparations of a capture.  `capture`
            # checks again after its preparations, which take longer than some threads run at a time.
            thread.off_cpu_counters = counters
            recorder.skip(thread)
        else:
            self._capture(thread, woken, counters)

    def _capture(self, thread: SampledThread, woken: WakeUp, counters: bytes) -> None:
        stat = self._leader if thread.tid == self.process.pid else thread.files.stat()
        if stat is None or stat.state in "ZX":
            # The counters may belong to a new thread with the same id.
            thread.gone, thread.off_cpu_counters = True, counters
            return
        thread.name, thread.start_time, thread.state = stat.name, stat.starttime, stat.state
        self._record(thread, self._try_capture(thread, stat.state, woken), woken)

    def _try_capture(self, thread: SampledThread, state: str, woken: WakeUp) -> CapturedStack | NotCaptured:
        stop_filter = AWAKE_THREADS if self._wall else StopFilter(awake=True, wake_up=woken)
        state = state if self._wall else "R"
        try:
            captured = self._capturer.capture(
                thread.process_thread, state, _STOP_PATIENCE_NS, stop_filter, thread.last
            )
        except NotPermitted as refusal:
            if self._named and not self._profile.stats.samples:
                raise
            return NotCaptured(Reason.REFUSED, f"{refusal} ({'; '.join(refusal.help)})")
        self._recorder.count_stops(thread, captured.stops)
        return captured

    def _record(self, thread: SampledThread, captured: CapturedStack | NotCaptured, woken: WakeUp) -> None:
        """Count the result of a capture; a thread that has not stopped yet stays pending."""
        if isinstance(captured, NotCaptured) and captured.reason is Reason.PENDING:
            self._pending[thread] = woken
            return
        self._pending.pop(thread, None)
        if thread.files.holder != thread.file_holder:
            thread.gone = True  # a new thread has the id, and sfsample may have captured the new thread
        elif not isinstance(captured, NotCaptured):
            self._record_stack(thread, captured, woken)
        elif captured.reason is Reason.OFF_CPU:
            thread.off_cpu_counters = captured.counters
            self._recorder.leave_out(thread, captured.state)
        elif captured.reason is not Reason.GONE:
            self._recorder.count_failed(thread, captured.detail)

    def _record_stack(self, thread: SampledThread, captured: CapturedStack, woken: WakeUp) -> None:
        recorder, evidence = self._recorder, captured.snapshot.scheduler
        if evidence is not None:
            thread.off_cpu_counters = evidence.after
            recorder.charge(thread, evidence.after)
        state = classify(thread.process_thread.stop.before, evidence, woken)
        if not self._wall and not state.counts_as_cpu:
            recorder.leave_out(thread, state)
            return
        if captured.has_gil is None:
            recorder.count_failed(thread, "the GIL could not be read")
            return
        find = self.waits.find if self.waits else lambda *_: None
        wait = find(thread.process_thread, captured, thread.state, state)
        recorder.see(thread, captured, wait)
        if thread is self._looked_at:
            return
        if self._options.tasks:
            self._look_at_tasks(thread, captured)
        if self._blame is not None and self._blame.postpone(thread, captured.snapshot.capture):
            return
        if captured.reading is None and state.counts_as_cpu:
            recorder.count(thread, captured.snapshot.capture, recorder.now)
        else:
            recorder.count_wait(thread, captured.snapshot.capture)
        if not self._wall:
            thread.last_stack = None  # a thread that does not run gives no sample

    def _look_at_tasks(self, thread: SampledThread, captured: CapturedStack) -> None:
        """Read the suspended tasks of an event loop that sleeps, for at most 5 % of the time."""
        capture, reading, now_ns = self._capturer.python, captured.reading, time.perf_counter_ns()
        if capture is None or captured.python is None or reading is None or now_ns < thread.tasks_due_ns:
            return
        has_run = lambda: thread.files.counters() != reading.counters  # noqa: E731 - no more than that
        began_ns = time.thread_time_ns()
        tasks = capture.waiting_tasks(thread.process_thread, captured.python, has_run)
        thread.tasks = [(stack, tasks.scale * number) for stack, number in tasks.stacks.items()]
        thread.tasks_due_ns = now_ns + _TASKS_PART * (time.thread_time_ns() - began_ns)

    def _look_at_goroutines(self) -> None:
        """Count the parked goroutines as last read; read them again, for at most 5 % of the time."""
        carrier, now_ns, began_ns = self._goroutines, time.perf_counter_ns(), time.thread_time_ns()
        if self.waits is not None and self._leader is not None and now_ns >= carrier.tasks_due_ns:
            self._recorder.count_tasks(carrier, Capture.READ, self._recorder.now)
            carrier.name, carrier.tasks = self._leader.name, self.waits.parked_goroutines()
            carrier.tasks_due_ns = now_ns + _TASKS_PART * (time.thread_time_ns() - began_ns)

    def collect(self) -> bool:
        """Capture pending threads that have stopped by now; False: a stop is still pending."""
        running = self.process.running_capture
        if not running.is_active:
            return True
        try:
            running.collect_stopped()
            for thread, woken in tuple(self._pending.items()):
                if not thread.process_thread.stop.is_pending:
                    self._record(thread, self._try_capture(thread, "R", woken), woken)
        except ReadFailed as failure:
            self._profile.stats.count_failed(str(failure), 1)
        return not self._pending and running.release_pending()

    def _wait_for_pending(self, deadline_ns: int) -> None:
        while self._pending and (left_ns := deadline_ns - time.perf_counter_ns()) > 0:
            await_stop(left_ns / 1e9)
            self.collect()

    def finish(self) -> None:
        """Count the ticks since the last sample of each thread, and the CPU time of the process."""
        self._wait_for_pending(time.perf_counter_ns() + _END_PATIENCE_NS)
        recorder = self._recorder
        for thread in self._pending:  # `running_capture` releases each thread as soon as it stops
            if self._wall:
                recorder.count_failed(thread, _STILL_PENDING)
            else:
                recorder.leave_out(thread, RunState.WAITING)
        for thread in self.threads.values():
            counters = None
            with suppress(ReadFailed):
                counters = thread.files.counters()
            if counters == thread.off_cpu_counters:
                recorder.count_idle([thread])
            elif thread in self._not_asked and not thread.gone:
                recorder.count_failed(thread, _RECORDING_ENDED)
            recorder.flush(thread)
            recorder.charge(thread, counters)
        recorder.count_tasks(self._goroutines, Capture.READ, recorder.now)
        recorder.read_cpu_time()
        recorder.charge_process()
        recorder.finish(self._capturer)
