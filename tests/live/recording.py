"""Recordings that are long enough to mean something, however slow the machine is.

A recording ends when it has the samples that the test asked for, however long a busy machine takes for them.
It fails only where no further sample comes for a long time, which is a hang.
"""

import time
from collections.abc import Callable

from sfsample.core.arch import AMD64
from sfsample.core.snapshot import ThreadSnapshot
from sfsample.dumping.collect import ProcessDump
from sfsample.dumping.run import DumpOptions, dump_all
from sfsample.process.not_captured import NotCaptured
from sfsample.process.process import LiveProcess
from sfsample.process.tracer_thread import TracerThread
from sfsample.recording.options import Mode, RecordOptions
from sfsample.recording.profile import Profile
from sfsample.recording.ptrace_sampler import PtraceSampler
from sfsample.unwind.stepper import Stepper
from sfsample.unwind.unwinder import DEFAULT_STEPPERS
from tests.live.targets import ARCH, HANG_S

_MOST_TRIES = 100  # of one that has to wait for a processor before it can stop
_PATIENCE_S = 4 * HANG_S  # without a sample; a target that shares its CPU is seldom seen running
_LONGEST_S = 40 * HANG_S  # in which a test sees what it waits for, or never will
_PAUSE_S = 1.0  # on a machine under load, a pause that is abandoned is no failure of ours


def fewer(count: int) -> int:
    """So many; where all is emulated, and a sample may take seconds, a tenth, but ten at least."""
    return count if ARCH is AMD64 else max(10, count // 10)


def captured(process: LiveProcess) -> ThreadSnapshot:
    """Stop and copy the first thread, as soon as it can be stopped."""
    tries = (process.capture(process.thread(process.pid)) for _ in range(_MOST_TRIES))
    return next(taken for taken in tries if not isinstance(taken, NotCaptured))


def dumped(pid: int, how: DumpOptions = DumpOptions()) -> ProcessDump:  # noqa: B008 - a value
    """Dump a process whose first thread can be stopped."""
    dumps = (dump_all((pid,), how)[0][0] for _ in range(_MOST_TRIES))
    return next(dump for dump in dumps if dump.threads[0].stack is not None)


def record_samples(
    pid: int,
    samples: int = fewer(40),
    *,
    rate: float = 500,
    mode: Mode = "cpu",
    steppers: tuple[Stepper, ...] = DEFAULT_STEPPERS,
    begun: Callable[[], None] = lambda: None,
    until: Callable[[Profile], bool] = lambda _profile: True,
) -> Profile:
    """Record a process until it has given that many samples; on a thread of its own, as the library.

    `begun` is called once, when the recording has begun.  `until` tells what else is waited for.
    """

    def record(_: object) -> Profile:
        target = LiveProcess(pid)
        try:
            sampler = PtraceSampler([target], RecordOptions(rate, None, mode, steppers, max_pause=_PAUSE_S))
            stats = sampler.profile.stats
            waiting = [begun]
            began = seen_at = time.monotonic()
            seen = 0

            def enough() -> bool:
                nonlocal seen, seen_at
                while waiting:
                    waiting.pop()()
                if stats.samples > seen:
                    seen, seen_at = stats.samples, time.monotonic()
                is_stuck = time.monotonic() > min(seen_at + _PATIENCE_S, began + _LONGEST_S)
                return is_stuck or (stats.samples >= samples and until(sampler.profile))

            return sampler.run(enough)
        finally:
            target.close()

    profile = TracerThread(record, lambda: False).run()
    stats = profile.stats
    assert stats.samples >= samples, f"{stats.samples} samples in {stats.duration_s:.1f} s"
    assert until(profile), f"what the test waits for was not seen in {stats.duration_s:.1f} s"
    return profile
