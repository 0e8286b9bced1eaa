"""Looks at suspended tasks, for --tasks: those of asyncio, and parked goroutines.

A task counts like a thread.  A look at one event loop, or at the goroutines of one process, may take at most
5 % of the time: the next look waits until the time of the last one is a twentieth of the time since.
"""

import time
from collections import Counter

from sfsample.core.snapshot import Capture
from sfsample.formats.gopclntab.places import WRAPPER
from sfsample.modules.location import Location, PythonPlace, locate, python_location
from sfsample.process.capture import CapturedStack, ThreadCapturer
from sfsample.process.process import LiveProcess
from sfsample.recording.due_threads import SampledThread
from sfsample.recording.recorder import Recorder
from sfsample.recording.sample import Places
from sfsample.recording.wait_finder import WaitFinder

_PART = 20  # divisor: tasks may be read for 1/20 of the time
_RUNTIME = ("runtime.", "internal/runtime/")  # starts of names of functions of the Go runtime


class TaskLooks:
    """Looks at the suspended tasks of one process, and counts goroutines as tasks of its first thread."""

    def __init__(
        self, process: LiveProcess, capturer: ThreadCapturer, recorder: Recorder, waits: WaitFinder
    ) -> None:
        self._capturer, self._recorder, self._waits = capturer, recorder, waits
        self._find, self._names = process.modules.find, waits.names
        self._first = SampledThread(process.thread(process.pid), recorder.now, 0)
        self._first.start_time = process.start_time

    def of_event_loop(self, thread: SampledThread, captured: CapturedStack) -> None:
        """Read the suspended tasks of an event loop that sleeps."""
        capture, reading, now_ns = self._capturer.python, captured.reading, time.perf_counter_ns()
        if capture is None or captured.python is None or reading is None or now_ns < thread.tasks_due_ns:
            return
        has_run = lambda: thread.files.counters() != reading.counters  # noqa: E731 - no more than that
        began_ns = time.thread_time_ns()
        tasks = capture.waiting_tasks(thread.process_thread, captured.python, has_run)
        thread.tasks = [(stack, tasks.scale * number) for stack, number in tasks.stacks.items()]
        thread.tasks_due_ns = now_ns + _PART * (time.thread_time_ns() - began_ns)

    def of_goroutines(self, name: str) -> None:
        """Read the parked goroutines, if it is time; `name`: that of the first thread."""
        thread, now_ns, began_ns = self._first, time.perf_counter_ns(), time.thread_time_ns()
        if now_ns >= thread.tasks_due_ns:
            self.count_goroutines()
            thread.name, thread.tasks = name, self._parked()
            thread.tasks_due_ns = now_ns + _PART * (time.thread_time_ns() - began_ns)

    def count_goroutines(self) -> None:
        """Count the goroutines of the last look, for the time since then."""
        self._recorder.count_tasks(self._first, Capture.READ, self._recorder.now)

    def _parked(self) -> list[tuple[Places, float]]:
        """Return the different stacks, each with the number of goroutines; without those of the runtime."""
        goroutines, scale = self._capturer.go.parked()
        numbers = Counter[Places]()
        for goroutine in goroutines:
            frames = self._capturer.parked_stack(goroutine).frames
            places = [locate(frame, self._find(frame.lookup_pc), 0) for frame in frames]
            names = [*map(self._name, places)]
            own = [at for at, name in enumerate(names) if name]
            if own:
                task = PythonPlace(f"[goroutine {names[own[-1]]}]", "", None, None)
                wait, chain = self._waits.of_goroutine(goroutine), places[own[0] : own[-1] + 1]
                numbers[wait, *chain, python_location(task)] += 1
        return [(stack, scale * number) for stack, number in numbers.items()]

    def _name(self, place: Location) -> str:
        """Return the function at a place; "": it belongs to the runtime, or the compiler has made it."""
        name = self._names.frames(place)[-1].function or ""
        return "" if name.startswith(_RUNTIME) or WRAPPER.search(name) else name
