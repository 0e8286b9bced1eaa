"""Records a target until it has given enough samples, on any machine and under any load.

A recording ends when it has as many samples as the test wants.  It fails only if no further sample comes for
a long time, which is a hang.
"""

import time
from collections.abc import Callable

from sfsample.core.arch import AMD64
from sfsample.core.snapshot import ThreadSnapshot
from sfsample.dumping.model import ProcessDump
from sfsample.dumping.options import DumpOptions
from sfsample.dumping.run import dump_all
from sfsample.process.not_captured import NotCaptured
from sfsample.process.process import LiveProcess
from sfsample.process.tracer_thread import TracerThread
from sfsample.recording.options import Mode, RecordOptions
from sfsample.recording.processes import Processes, Recording
from sfsample.recording.profile import Profile
from sfsample.recording.ptrace_sampler import PtraceSampler
from sfsample.unwind.stepper import Stepper
from sfsample.unwind.unwinder import DEFAULT_STEPPERS
from tests.live.targets import ARCH, HANG_S

_MAX_ATTEMPTS = 100  # to capture a thread, which must wait for a CPU before it can stop
_MAX_S_WITHOUT_SAMPLE = 4 * HANG_S  # a target that shares its CPU is seldom running when it is sampled
_MAX_RECORDING_S = 40 * HANG_S
_MAX_PAUSE_S = 1.0  # long, so that a busy machine does not make sfsample give up pauses


def fewer(count: int) -> int:
    """Return `count`; under emulation, where a sample may take seconds, a tenth of it, but at least ten."""
    return count if ARCH is AMD64 else max(10, count // 10)


def captured(process: LiveProcess) -> ThreadSnapshot:
    """Capture the first thread, as soon as it can be stopped."""
    attempts = (process.capture(process.thread(process.pid)) for _ in range(_MAX_ATTEMPTS))
    return next(snapshot for snapshot in attempts if not isinstance(snapshot, NotCaptured))


def dumped(pid: int, options: DumpOptions = DumpOptions(looks=1, timeout=HANG_S)) -> ProcessDump:  # noqa: B008 - a value
    """Dump a process whose first thread can be stopped."""
    dumps = (dump_all((pid,), options)[0][0] for _ in range(_MAX_ATTEMPTS))
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
    waits: bool = False,
    blame: bool = False,
) -> Profile:
    """Record a process until it has given `samples` samples; on a tracer thread, as the library does.

    `begun` is called once, when the recording has begun.  `until` is a further condition for the end.
    `waits` False: without the frames that say what threads wait for.
    """

    def record(_: object) -> Profile:
        processes, profile = Processes([LiveProcess(pid)]), Profile(rate)
        stats = profile.stats
        try:
            options = RecordOptions(rate=rate, mode=mode, steppers=steppers, max_pause=_MAX_PAUSE_S,
                                    blame=blame)  # fmt: skip
            sampler = PtraceSampler(Recording(processes, options, profile))
            to_call = [begun]
            began = last_at = time.monotonic()
            last_count = 0

            def enough() -> bool:
                nonlocal last_count, last_at
                while to_call:
                    to_call.pop()()
                if stats.samples > last_count:
                    last_count, last_at = stats.samples, time.monotonic()
                is_stuck = time.monotonic() > min(last_at + _MAX_S_WITHOUT_SAMPLE, began + _MAX_RECORDING_S)
                return is_stuck or (stats.samples >= samples and until(profile))

            return sampler.run(enough)
        finally:
            processes.close(stats)

    profile = TracerThread(record, lambda: False).run()
    stats = profile.stats
    assert stats.samples >= samples, f"{stats.samples} samples in {stats.duration_s:.1f} s"
    assert until(profile), f"the condition `until` did not hold within {stats.duration_s:.1f} s"
    return profile if waits else without_waits(profile)


def without_waits(profile: Profile) -> Profile:
    """Drop the frames of waits; stacks that are equal then are added up."""
    totals, profile.totals = profile.totals, {}
    for key, total in totals.items():
        places = tuple(place for place in key.locations if place.wait is None)
        profile.keep(key._replace(locations=places), 0, total.wall_ns, total.cpu_ns, total.times)
    return profile
