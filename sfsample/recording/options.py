"""The options of a recording, as one value that checks itself, for the library and the command line."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Literal

from sfsample.core.python_view import PythonView
from sfsample.core.walk_limits import DEFAULT_ORDER, DEFAULT_STACK_BYTES, MAX_FRAMES, check_stack_bytes

if TYPE_CHECKING:
    from sfsample.unwind.stepper import Stepper

Mode = Literal["cpu", "wall"]

MAX_PAUSE_S = 0.005
_LABEL_KEY = re.compile(r"[a-zA-Z_][a-zA-Z0-9_.]*")
_MAX_LABEL = 256  # characters of a key or a value


def check_label(key: str, value: str) -> None:
    """Raise ValueError, which states the rule, if some backend or format cannot keep a label."""
    if not _LABEL_KEY.fullmatch(key):
        raise ValueError(f"a label's key has letters, digits, _ and ., with a letter or _ first: {key!r}")
    if not value.strip():
        raise ValueError(f"a label has a value: {key}")
    if max(len(key), len(value)) > _MAX_LABEL:
        raise ValueError(f"a label has at most {_MAX_LABEL} characters in key and value: {key[:32]}")
    if not value.isprintable() or ";" in value:
        raise ValueError(f"the value of a label has no control characters and no semicolon: {key}")


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordOptions:
    """The options of a recording.  Raises ValueError if a value makes no sense."""

    rate: float = 99.0  # samples per second and thread
    mode: Mode = "cpu"  # "cpu": threads that run at the tick; "wall": all threads
    steppers: "Sequence[str | Stepper]" = DEFAULT_ORDER
    max_frames: int = MAX_FRAMES
    stack_bytes: int = DEFAULT_STACK_BYTES  # most bytes that are copied of one stack
    stop: bool = True  # False: stop no thread, so running threads are not captured
    # None: kernel frames of running threads, if permitted; True: also of sleeping threads; False: none
    kernel: bool | None = None
    subprocesses: bool = False  # True: sample descendants, too, even if they are born during the recording
    timeline: bool = False  # True: keep the time of each sample
    max_pause: float = MAX_PAUSE_S  # longest time in s to hold a thread, or to wait for its stop
    max_overhead: float | None = None  # largest share of elapsed time that sfsample may use (0.01: 1 %)
    # True: kernel timers take the samples (mode "cpu"); False: stops; None: `choose_sampler` chooses.
    perf_events: bool | None = None
    tasks: bool = False  # True: count asyncio tasks and goroutines, too (mode "wall")
    gil: bool = False  # True: count only samples of threads that hold the GIL of CPython
    labels: Sequence[tuple[str, str]] = ()  # labels of the user; they override labels that sfsample finds
    environ: bool = True  # True: read labels from the environment, too (`process.labels`)
    blame: bool = False  # True: add a lock holder's stack to the stacks of the waiters (mode "wall")
    min_wait: float = 0.0  # length of the shortest wait that counts, in s (mode "wall")
    wait_details: bool = False  # True: frames of waits have addresses, descriptors and pids (mode "wall")
    python: PythonView = PythonView.AUTO  # frames to show for threads that run Python

    @property
    def kernel_frames(self) -> bool | None:
        """The value of `kernel`, but False instead of None if only Python frames are shown."""
        return False if self.kernel is None and self.python is PythonView.ONLY else self.kernel

    def __repr__(self) -> str:
        """Return only the fields that differ from their defaults, to keep signatures in help() short."""
        changed = ((f.name, value) for f in fields(self) if (value := getattr(self, f.name)) != f.default)
        return f"RecordOptions({', '.join(f'{name}={value!r}' for name, value in changed)})"

    def __post_init__(self) -> None:
        check_stack_bytes(self.stack_bytes)
        for label in self.labels:
            check_label(*label)
        if not isinstance(self.python, PythonView):
            raise ValueError(f"python must be a PythonView, not {self.python!r}")  # noqa: TRY004 - as others
        if self.mode not in ("cpu", "wall"):
            raise ValueError(f'mode must be "cpu" or "wall", not {self.mode!r}')
        if not self.rate > 0:
            raise ValueError(f"rate must be positive, not {self.rate}")
        if self.max_frames < 1:
            raise ValueError(f"max_frames must be at least 1, not {self.max_frames}")
        if not self.max_pause > 0:
            raise ValueError(f"max_pause must be positive, not {self.max_pause}")
        if self.perf_events and self.mode != "cpu":
            raise ValueError("perf_events need mode cpu: kernel timers do not run while a thread sleeps")
        if self.perf_events and self.gil:
            raise ValueError("gil and perf_events exclude each other: a kernel timer does not see the GIL")
        if self.tasks and (self.mode != "wall" or self.gil or self.python is PythonView.OFF):
            raise ValueError("tasks need mode wall and Python frames, and no gil: suspended tasks do not run")
        if self.blame and self.mode != "wall":
            raise ValueError("blame needs mode wall: in mode cpu, threads that wait have no samples")
        if self.max_overhead is not None and not self.max_overhead > 0:
            raise ValueError(f"max_overhead must be positive, not {self.max_overhead}")


DEFAULT_OPTIONS = RecordOptions()
