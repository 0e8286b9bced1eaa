"""What to record, and how: one value, checked."""

from collections.abc import Sequence
from typing import Literal, NamedTuple, Protocol

from sfsample.core.snapshot import ThreadSnapshot
from sfsample.core.stack import Stack
from sfsample.modules.module_map import ModuleMap
from sfsample.unwind.stepper import Stepper
from sfsample.unwind.unwinder import DEFAULT_STEPPERS, MAX_FRAMES

Mode = Literal["cpu", "wall"]


MAX_PAUSE_S = 0.005


class StackStore(Protocol):
    """Keeps stacks that are incomplete (`saved_stacks.store`)."""

    def keep(self, process: str, snapshot: ThreadSnapshot, stack: Stack, index: ModuleMap) -> None:
        """Write a stack, if it is incomplete and new."""
        ...


class RecordOptions(NamedTuple):
    """What to record.  `duration` in seconds; None: until told to stop or the target ends."""

    rate: float = 99.0
    duration: float | None = None
    mode: Mode = "cpu"
    steppers: Sequence[Stepper] = DEFAULT_STEPPERS
    max_frames: int = MAX_FRAMES
    timeline: bool = False  # keep when each sample was taken
    bad_stacks: StackStore | None = None  # keep the incomplete ones here
    kernel: bool = False  # where sleeping threads are in the kernel
    stop: bool = True  # False: never stop a thread; those that run are not captured
    max_pause: float = MAX_PAUSE_S  # seconds; wait no longer for a thread to stop, and hold it no longer
    max_overhead: float | None = None  # 0.01: one percent of the elapsed time
    perf_events: bool | None = None  # the kernel's timers take the samples (cpu mode); None: `relay` decides


def check(options: RecordOptions) -> None:
    """Raise ValueError for an option that makes no sense."""
    if options.mode not in ("cpu", "wall"):
        raise ValueError(f'mode must be "cpu" or "wall", not {options.mode!r}')
    if not options.rate > 0:
        raise ValueError(f"rate must be positive, not {options.rate}")
    if options.duration is not None and not options.duration > 0:
        raise ValueError(f"duration must be positive, not {options.duration}")
    if options.max_frames < 1:
        raise ValueError(f"max_frames must be at least 1, not {options.max_frames}")
    if not options.max_pause > 0:
        raise ValueError(f"max_pause must be positive, not {options.max_pause}")
    if options.perf_events and options.mode != "cpu":
        raise ValueError("perf_events record what runs: mode must be cpu")
    if options.max_overhead is not None and not options.max_overhead > 0:
        raise ValueError(f"max_overhead must be positive, not {options.max_overhead}")
