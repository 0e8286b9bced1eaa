"""What is counted of one target: its stacks, the time they stand for, and what was lost.

Law: ticks, elapsed time and CPU time of a sample are those since the last look at that thread, so nothing is
counted twice and nothing is left out.  What is seen again and again of a thread that does not run is told
after a second, then more and more seldom, and when it runs again.  The only place that tells the profile.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from sfsample.core.snapshot import Capture, ThreadSnapshot
from sfsample.core.stack import StopReason
from sfsample.modules.location import Located, Location, kernel_locations, locate
from sfsample.process.capture import CapturedStack, ThreadCapturer
from sfsample.process.process import LiveProcess
from sfsample.process.scheduler import held_ns, ran_ns
from sfsample.recording.profile import Places, Profile, ThreadKey
from sfsample.recording.thread_table import PUT_OFF_NS, SampledThread

_LONGEST_PUT_OFF_NS = 8 * PUT_OFF_NS


class Since(NamedTuple):
    """The last tick of a recording before a process was seen; its time is since the start."""

    tick: int
    at_ns: int


BEGINNING = Since(0, 0)


class Recorder:
    """Tells a profile about the threads of one process.  `tick` and `at_ns` are those of the last tick."""

    def __init__(self, profile: Profile, number: int, since: Since) -> None:
        self._profile = profile
        self._number = number
        self._places: dict[tuple[int, bool, str], Location] = {}
        self._generation = 0
        self.tick, self.at_ns = since
        self._charged_ns = 0  # CPU time of its threads

    def charge(self, thread: SampledThread, counters: bytes | None) -> int:
        """Note the CPU time that a thread has used; return it."""
        ran = ran_ns(counters)
        again = ran < thread.ran_ns  # its id was given to another thread
        used = ran if again else ran - thread.ran_ns
        thread.ran_ns = ran
        thread.charged_ns += used
        self._charged(used)
        return used

    def _charged(self, used_ns: int) -> None:
        self._charged_ns += used_ns
        self._profile.stats.cpu_charged_ns += used_ns

    def charge_process(self, used_ns: int) -> None:
        """Note the CPU time of all threads; what is more than was seen is of some that came and went."""
        self._charged(max(0, used_ns - self._charged_ns))

    def stops(self, thread: SampledThread, stops: Sequence[ThreadSnapshot]) -> None:
        """Count the pauses that a look has cost."""
        stats = self._profile.stats
        for stop in stops:
            stats.pauses.add(stop.stop_ns)
            stats.eintr_prone_stops += stop.eintr
            # until it had a processor to stop on, it lost nothing by us
            held = held_ns(stop)
            stats.held.add(held)
            thread.stopped_ns += held

    def see(self, thread: SampledThread, look: CapturedStack) -> None:
        """Keep what was seen, for `add`."""
        locations = self._locations(look, thread.last)
        thread.last = Located(look.generation, look.stack.frames, look.modules, locations)
        thread.seen = look.stack, Places((*kernel_locations(look.kernel, self._number), *locations))

    def idle(self, threads: Iterable[SampledThread]) -> None:
        """Note that threads have not run since what, if anything, was seen of them; tell it now or later."""
        tick, at_ns, prompt = self.tick, self.at_ns, self._profile.prompt
        for thread in threads:
            if thread.seen is None:
                thread.idle += tick - thread.tick
                thread.tick, thread.at_ns = tick, at_ns
                continue
            thread.idle += tick - max(thread.idle_tick, thread.tick)
            thread.idle_tick, thread.idle_at_ns = tick, at_ns
            if prompt or at_ns - thread.at_ns >= thread.put_off_ns:
                thread.put_off_ns = min(2 * thread.put_off_ns, _LONGEST_PUT_OFF_NS)
                self.settle(thread)

    def settle(self, thread: SampledThread) -> None:
        """Count what `idle` has put off."""
        if thread.seen is not None and thread.idle_tick > thread.tick:
            self._count(thread, Capture.REUSED, Since(thread.idle_tick, thread.idle_at_ns))

    def add(self, thread: SampledThread, capture: Capture) -> None:
        """Count what was just seen of a thread, for all ticks since the last look at it."""
        self._count(thread, capture, Since(self.tick, self.at_ns))

    def _count(self, thread: SampledThread, capture: Capture, until: Since) -> None:
        assert thread.seen is not None  # noqa: S101 - our own invariant
        stack, locations = thread.seen
        profile, stats = self._profile, self._profile.stats
        times, wall_ns = max(1, until.tick - thread.tick), until.at_ns - thread.at_ns
        thread.tick, thread.at_ns = until
        key = ThreadKey(self._number, thread.tid, thread.starttime)
        stats.threads += thread.starttime != thread.counted and key not in profile.threads
        thread.counted = thread.starttime
        who = profile.name_thread(key, thread.name)
        profile.add(who, locations, stack,
                    at_ns=until.at_ns, wall_ns=wall_ns, cpu_ns=thread.charged_ns, times=times)  # fmt: skip
        stats.captures[capture] += times
        stats.cpu_sampled_ns += thread.charged_ns
        thread.charged_ns = 0
        if stack.stopped_at is not None and stack.stop_reason is not StopReason.MAX_FRAMES:
            stats.note(f"{stack.stop_reason} at {stack.stopped_at}", times)

    def skip(self, thread: SampledThread) -> None:
        """Count nothing for the ticks and the time since the last look at a thread, which is now."""
        thread.tick, thread.at_ns = self.tick, self.at_ns

    def failed(self, thread: SampledThread, why: str) -> None:
        """Count a sample that could not be taken."""
        times = max(1, self.tick - thread.tick)
        self.skip(thread)
        self._profile.stats.captures[Capture.FAILED] += times
        self._profile.stats.note(f"not captured: {why}", times)

    def off_processor(self, thread: SampledThread) -> None:
        """Count a thread that was runnable but had no processor."""
        self.skip(thread)
        self._profile.stats.off_processor += 1

    def finish(self, target: LiveProcess, looker: ThreadCapturer) -> None:
        """Tell what is known of modules, and what could not be had.

        What is kept for a process of which there are no samples is dropped.
        """
        stats = self._profile.stats
        for module in target.modules.modules:
            _ = module.image.sections  # if they are damaged, the names will be missing: say so
            entry = (module.path, bool(module.sframe))
            if entry not in stats.module_paths:
                stats.module_paths.append(entry)
        for text in (*target.opener.problems, *target.modules.problems, *looker.problems):
            stats.note(text)
        stats.problems += looker.rejected_rows
        self._profile.forget_process(self._number)

    def _locations(self, look: CapturedStack, last: Located) -> tuple[Location, ...]:
        """Return the places of the frames; those of the frames that are the last look's are as they were."""
        frames, places = look.stack.frames, self._places
        if look.generation != self._generation:
            self._generation = look.generation
            places.clear()
        found = []
        for frame, module in zip(frames[: len(frames) - look.again], look.modules, strict=False):
            key = (frame.pc, frame.exact, frame.found)
            place = places.get(key)
            if place is None:
                place = places[key] = locate(frame, module, self._number)
            found.append(place)
        return (*found, *last.locations[len(last.locations) - look.again :])
