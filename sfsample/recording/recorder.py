"""Turns the captures of one process into samples, and counts them.

A sample stands for the ticks, the elapsed time and the CPU time since the previous sample of its thread.  So
nothing is counted twice and nothing is left out.  If a thread does not run, its samples are counted together
after one second, later after up to eight seconds, and when the thread runs again.
"""

from collections.abc import Iterable, Sequence

from sfsample.core.python_view import PythonView
from sfsample.core.snapshot import Capture, ThreadSnapshot
from sfsample.core.stack import Frame, Stack, StopReason
from sfsample.core.wait_kind import WaitKind
from sfsample.modules.location import IN_POOL, GeneratedFunction, Located, Location, kernel_locations, locate
from sfsample.modules.module import Module
from sfsample.process.capture import CapturedStack, ThreadCapturer
from sfsample.process.had_cpu import RunState, held_ns, ran_ns
from sfsample.process.process import LiveProcess
from sfsample.recording.due_threads import FLUSH_NS, SampledThread
from sfsample.recording.merge_python import as_shown, with_python
from sfsample.recording.profile import Profile
from sfsample.recording.sample import Sample, StackKey, ThreadKey, TickTime
from sfsample.recording.wait_finder import FoundWait
from sfsample.symbolize.perf_map import PerfMapFile

_LONG_WAIT_NS = 1_000_000_000  # shortest wait that shows a worker without work


class Recorder:
    """Counts the samples of one process into a profile.  `now` is the last tick."""

    def __init__(
        self, profile: Profile, process: LiveProcess, begin: TickTime, python: PythonView,
        min_wait: float = 0.0, *, is_new: bool, late: bool = False,
    ) -> None:  # fmt: skip
        """`is_new`: the process was born during the recording, so all of its CPU time counts.

        `late`: samples are counted some time after they were taken; the caller calls `follow_perf_map`.
        """
        self._profile, self._process, self._python = profile, process, python
        self.stats = profile.stats
        self.process_key = profile.register_process(
            process.pid, process.start_time, process.root, process.name
        )
        self._is_new = is_new
        self._min_wait_ns = round(min_wait * 1e9)
        self._generation = 0  # version of the module map
        # pc, `exact` and `found` of a frame -> location of the frame, in this version of the map
        self._locations: dict[tuple[int, bool, str], Location] = {}
        self._perf_map = PerfMapFile(profile.roots.get(self.process_key))
        self._names = 0  # number of changes of the perf map so far
        self._perf_map_read = -1  # tick of the last look at the perf map
        self._has_new_names = False  # True: the last look at the perf map has found new functions
        self._late = late
        self.lost_name = False  # True: the code of a place was replaced before its name was read
        self.now = begin
        self._charged_ns = 0  # CPU time of the process's threads
        self._cpu_ns = 0  # CPU time of the process during this recording

    def charge(self, thread: SampledThread, counters: bytes | None) -> int:
        """Note the CPU time of a thread since the last call; return it in ns."""
        ran = ran_ns(counters)
        used = ran - thread.ran_ns if ran >= thread.ran_ns else ran  # else: a new thread has the id
        thread.ran_ns = ran
        thread.uncounted_cpu_ns += used
        self._charged_ns += used
        self.stats.cpu_charged_ns += used
        return used

    def read_cpu_time(self) -> bool:
        """Note the CPU time of the process; False: it has ended."""
        process, cpu_ns = self._process, self._process.proc.cpu_ns()
        if cpu_ns is not None:
            since_ns = process.accounted_ns
            self._cpu_ns += cpu_ns - ((0 if self._is_new else cpu_ns) if since_ns is None else since_ns)
            process.accounted_ns = cpu_ns
        return cpu_ns is not None

    def charge_process(self, at_least_ns: int = 0) -> None:
        """Charge the CPU time of the process, including threads that ended before sfsample saw them."""
        unseen_ns = max(0, max(self._cpu_ns, at_least_ns) - self._charged_ns)
        self.stats.cpu_charged_ns += unseen_ns
        self._charged_ns += unseen_ns
        self._profile.unseen_ns[self.process_key] += unseen_ns
        self._profile.charged_ns[self.process_key] += self._charged_ns

    def count_stops(self, thread: SampledThread, stops: Sequence[ThreadSnapshot]) -> None:
        """Count the pauses of a capture."""
        stats = self.stats
        for stop in stops:
            stats.pauses.add(stop.stop_ns)
            stats.eintr_prone_stops += stop.eintr
            held = held_ns(stop)
            stats.held.add(held)
            thread.stopped_ns += held

    def see(self, thread: SampledThread, captured: CapturedStack, wait: FoundWait | None = None) -> None:
        """Keep a captured stack, for `count`; `wait`: what the thread waits for from this tick on."""
        locations = self._locate(captured, thread.last)
        thread.last = Located(
            captured.generation, captured.stack.frames, captured.modules, locations, self._names
        )
        kernel = kernel_locations(captured.kernel, self.process_key) if captured.kernel else ()
        stack = captured.stack
        thread.is_left_out = not captured.has_gil
        if captured.python is not None and self._python is not PythonView.OFF:
            locations = with_python(locations, captured.python, self._python)
            stack = as_shown(stack, captured.python, self._python)
        thread.seen = self.now
        thread.wait = wait
        thread.places = (*((wait.location,) if wait else ()), *kernel, *locations)
        thread.last_stack = stack, thread.places
        if wait is not None:
            waiters, thing = self._profile.waiters, wait.thing(self.process_key)
            waiters[thing] += 1
            waiters.joined[thing] = StackKey(self.process_key, thread.tid, thread.places, stack.stop_reason)

    def end_wait(self, thread: SampledThread) -> None:
        """Note that a thread no longer waits: it has run, or it has ended."""
        if thread.wait is not None:
            waiters, thing = self._profile.waiters, thread.wait.thing(self.process_key)
            waiters[thing] -= 1
            if not waiters[thing]:
                del waiters[thing]
            thread.wait = None

    def _locate(self, captured: CapturedStack, last: Located) -> tuple[Location, ...]:
        """Return the locations of the frames; unchanged frames keep the locations of the last sample."""
        frames, known = captured.stack.frames, self._locations
        if None in captured.modules and not self._late and self._perf_map_read != self.now.number:
            self._perf_map_read = self.now.number
            self.follow_perf_map()
        if captured.generation != self._generation:
            self._generation = captured.generation
            known.clear()
        again = captured.again if last.names == self._names else 0
        found = []
        for frame, module in zip(frames[: len(frames) - again], captured.modules, strict=False):
            key = (frame.pc, frame.exact, frame.found)
            location = known.get(key)
            if location is None:
                location = known[key] = self._location(frame, module)
            found.append(location)
        return (*found, *last.locations[len(last.locations) - again :])

    def _location(self, frame: Frame, module: Module | None) -> Location:
        location, perf_map = locate(frame, module, self.process_key), self._perf_map
        if module is not None:
            return location
        at = location.lookup
        replaced = self._late and perf_map.has_just_changed(at)
        self.lost_name |= replaced
        function = None if replaced else perf_map.find(at)
        generated = GeneratedFunction(function.name, function.start) if function else GeneratedFunction("", 0)
        return location._replace(generated=generated)

    def follow_perf_map(self) -> None:
        """Read the lines that the target has appended to its perf map since the last call."""
        changed, changed_before = self._perf_map.refresh(), self._has_new_names
        self._has_new_names = changed
        if changed or changed_before:  # code that was just replaced gets its name one call later
            self._names += 1
            self._locations.clear()

    def count_idle(self, threads: Iterable[SampledThread]) -> None:
        """Note that threads have not run since their last capture; count their stacks now or later."""
        now, prompt = self.now, self._profile.prompt
        for thread in threads:
            if thread.last_stack is None:
                thread.counted = now
                continue
            thread.idle_until = now
            is_due = prompt or now.at_ns - thread.counted.at_ns >= thread.flush_ns
            if is_due and not self.is_brief(thread):
                thread.flush_ns = min(2 * thread.flush_ns, 8 * FLUSH_NS)
                self.flush(thread)

    def flush(self, thread: SampledThread) -> None:
        """Count the samples that `count_idle` has put off, but no sample of a brief wait."""
        if thread.last_stack is not None and thread.idle_until.number > thread.counted.number:
            if self.is_brief(thread):
                self.stats.brief_waits += thread.idle_until.number - thread.counted.number
                thread.counted = thread.idle_until
                return
            self.count(thread, Capture.REUSED, thread.idle_until, ran=False)

    def is_brief(self, thread: SampledThread) -> bool:
        """Return True if a thread has slept for less than --min-wait, as far as ticks show."""
        sleeps = thread.wait is not None and thread.wait.evidence is not None
        return sleeps and thread.idle_until.at_ns - thread.seen.at_ns < self._min_wait_ns

    def count_wait(self, thread: SampledThread, capture: Capture) -> None:
        """Count a sample of a thread that has just fallen asleep; with --min-wait, only after a long wait."""
        thread.idle_until = self.now
        if not self.is_brief(thread):
            self.count(thread, capture, self.now, ran=False)

    def count(self, thread: SampledThread, capture: Capture, until: TickTime, *, ran: bool = True) -> None:
        """Count the stack that `see` kept, for all ticks since the last sample of the thread.

        If `ran` is False, the thread slept, and its CPU time is kept for a sample in which the thread runs.
        So the CPU time of a thread that works in bursts does not count for the call in which it sleeps.
        """
        assert thread.last_stack is not None  # noqa: S101 - our own invariant
        stack, places = thread.last_stack
        wait, is_long = thread.wait, not ran and until.at_ns - thread.seen.at_ns >= _LONG_WAIT_NS
        if is_long and wait and wait.wait and wait.wait.kind is WaitKind.CONDITION:
            is_alone = self._profile.waiters[wait.thing(self.process_key)] < 2
            places = places if is_alone else (places[0]._replace(found=IN_POOL), *places[1:])
        stats, key = self.stats, ThreadKey(self.process_key, thread.tid, thread.start_time)
        times = max(1, until.number - thread.counted.number)
        wall_ns, cpu_ns = until.at_ns - thread.counted.at_ns, thread.uncounted_cpu_ns if ran else 0
        thread.counted, thread.uncounted_cpu_ns = until, thread.uncounted_cpu_ns - cpu_ns
        if thread.is_left_out:
            stats.without_gil += times
            stats.cpu_sampled_ns += cpu_ns
            return
        sample = Sample(
            thread=key, thread_name=thread.name, stack=stack, places=places, capture=capture,
            at_ns=until.at_ns, wall_ns=wall_ns, cpu_ns=cpu_ns, times=times,
        )  # fmt: skip
        self._profile.add(sample)
        if not ran and thread.tasks:
            self.count_tasks(thread, capture, until)

    def count_tasks(self, thread: SampledThread, capture: Capture, until: TickTime) -> None:
        """Count each suspended task like a thread, for the time since the last count of these tasks."""
        key = ThreadKey(self.process_key, thread.tid, thread.start_time)
        since, thread.tasks_counted = thread.tasks_counted, until
        times, wall_ns = max(1, until.number - since.number), until.at_ns - since.at_ns
        whole = Stack((), StopReason.OUTERMOST)
        for places, number in thread.tasks or ():
            sample = Sample(
                thread=key, thread_name=thread.name, stack=whole, places=places, capture=capture,
                at_ns=until.at_ns, wall_ns=round(wall_ns * number), cpu_ns=0, times=round(times * number),
            )  # fmt: skip
            self._profile.add(sample)

    def skip(self, thread: SampledThread) -> None:
        """Count nothing for the ticks and the time since the last sample of a thread."""
        thread.counted = self.now

    def count_failed(self, thread: SampledThread, why: str) -> None:
        """Count a sample that could not be taken."""
        times = max(1, self.now.number - thread.counted.number)
        self.skip(thread)
        self.stats.count_failed(why, times)

    def leave_out(self, thread: SampledThread, state: RunState) -> None:
        """Count no sample of a thread that is off its CPU; if it waits for a CPU, count a skipped sample."""
        self.skip(thread)
        self.stats.waiting_for_cpu += state is RunState.WAITING

    def finish(self, capturer: ThreadCapturer) -> None:
        """Note modules and problems; forget a process without samples."""
        stats, process = self.stats, self._process
        for module in process.modules.modules:
            _ = module.image.sections  # a damaged section becomes a problem of the module
            entry = (module.path, bool(module.tables.sframe))
            if entry not in stats.module_paths:
                stats.module_paths.append(entry)
        for text in (*process.opener.problems, *process.modules.problems):
            stats.note(text)
        stats.problems += capturer.problems
        self._profile.forget_process(self.process_key)
