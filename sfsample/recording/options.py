"""What to record, and how: one value for the library and the command line, checked when it is made."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from sfsample.core.python_view import PythonView
from sfsample.core.snapshot import ThreadSnapshot
from sfsample.core.stack import Stack
from sfsample.modules.module_map import ModuleMap
from sfsample.process.capture_running import DEFAULT_STACK_BYTES, check_stack_bytes
from sfsample.runtimes.cpython.saved import SavedPython
from sfsample.unwind.stepper import Stepper
from sfsample.unwind.unwinder import DEFAULT_STEPPERS, MAX_FRAMES

Mode = Literal["cpu", "wall"]

MAX_PAUSE_S = 0.005
_LABEL_KEY = re.compile(r"[a-zA-Z_][a-zA-Z0-9_.]*")
_MAX_LABEL = 256  # characters of a key or a value


def check_label(key: str, value: str) -> None:
    """Raise ValueError, which says the rule, for a label that some backend or format cannot keep."""
    if not _LABEL_KEY.fullmatch(key):
        raise ValueError(f"the key of a label has letters, digits, _ and ., no digit or . first: {key!r}")
    if not value.strip():
        raise ValueError(f"a label has a value: {key}")
    if max(len(key), len(value)) > _MAX_LABEL:
        raise ValueError(f"a label has at most {_MAX_LABEL} characters in key and value: {key[:32]}")
    if not value.isprintable() or ";" in value:
        raise ValueError(f"the value of a label has no control characters and no semicolon: {key}")


class StackStore(Protocol):
    """Keeps stacks that are incomplete (`saved_stacks.store`)."""

    def keep(
        self, process: str, snapshot: ThreadSnapshot, stack: Stack, modules: ModuleMap,
        python: Callable[[], SavedPython | None] = lambda: None, /,
    ) -> None:  # fmt: skip
        """Write a stack, if it is incomplete and new; `python` is called for its Python frames then."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordOptions:
    """What to record.  Raises ValueError for a value that makes no sense.

    `rate`: samples per second and thread.  `mode`: "cpu" (threads that run at the tick) or "wall" (all
    threads). `stack_bytes`: copied per thread at most.  `stop` False: stop no thread, so threads that run are
    not captured. `kernel`: where sleeping threads are in the kernel, too.  `subprocesses`: the descendants
    too, those born during the recording included.  `timeline`: keep when each sample was
    taken.  `bad_stacks`: where incomplete stacks are kept.  `debug_dirs`: searched for separate debug files
    before the system's directories; these may have the only unwind tables.  `labels`: added to those that are
    found, and they win.  `environ`: look for labels in the environment, too (`process.labels`).
    `python`: what is shown of threads that run Python.

    `max_pause` seconds: hold a thread no longer, nor wait so long for it to stop.  `max_overhead`: leave out
    ticks to stay below this share of the elapsed time (0.01 is one percent).  `perf_events` True: the
    kernel's timers take the samples (mode "cpu"), False: never, None: `choose_sampler` decides.
    """

    rate: float = 99.0
    mode: Mode = "cpu"
    steppers: Sequence[Stepper] = DEFAULT_STEPPERS
    max_frames: int = MAX_FRAMES
    stack_bytes: int = DEFAULT_STACK_BYTES
    stop: bool = True
    kernel: bool = False
    subprocesses: bool = False
    timeline: bool = False
    bad_stacks: StackStore | None = None
    debug_dirs: Sequence[str] = ()
    max_pause: float = MAX_PAUSE_S
    max_overhead: float | None = None
    perf_events: bool | None = None
    labels: Sequence[tuple[str, str]] = ()
    environ: bool = True
    python: PythonView = PythonView.AUTO

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
            raise ValueError("perf_events record what runs: mode must be cpu")
        if self.max_overhead is not None and not self.max_overhead > 0:
            raise ValueError(f"max_overhead must be positive, not {self.max_overhead}")


DEFAULT_OPTIONS = RecordOptions()
