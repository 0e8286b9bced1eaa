"""`sfsample top`: a live view in the terminal.

Law: the sampler runs on a thread of its own and never waits for the terminal.  What we compute, we compute
between two pauses (PAUSE), because whoever holds the interpreter holds the target.
"""

import signal
import sys
import threading
import time
from argparse import Namespace
from functools import cached_property

from sfsample import api
from sfsample.cli.console import Interrupt, Output, steppers, targets
from sfsample.cli.record import check_begun, rate
from sfsample.cli.symbol_flags import naming
from sfsample.cli.top.screen import Screen, terminal
from sfsample.cli.top.table import Name
from sfsample.cli.top.view import Top
from sfsample.core.checkpoint import SUSPEND_LOCK
from sfsample.errors import NoThread, SfsampleError, UsageError
from sfsample.modules.location import Location
from sfsample.process.task_files import open_many
from sfsample.recording.live_window import LiveWindow, as_profile
from sfsample.symbolize.symbolizer import Symbolizer

_DRAW_S = 0.5
_WINDOWS_S = (1, 2, 5, 10, 30, 60)


def run(arguments: Namespace) -> int:
    """Show until the user leaves or the target ends; return the exit code."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError("top needs a terminal", "for a file: sfsample record -d 10 -o out.html")
    suspension = _Suspension()
    with suspension, Interrupt() as interrupt:
        pids = targets(arguments)
        session = _Session(arguments, pids, interrupt, suspension)
        session.start()
        try:
            with terminal() as screen:
                session.show(screen)
        finally:
            session.stop()
    return session.judge()


class _Session:
    """One run: the sampling thread, and the picture."""

    def __init__(
        self, arguments: Namespace, pids: list[int], interrupt: Interrupt, suspension: "_Suspension"
    ) -> None:
        self._arguments = arguments
        self._pids = pids
        self._interrupt = interrupt
        self._suspension = suspension
        self._rate = rate(arguments)
        self._window = LiveWindow(self._rate, arguments.window)
        self._top = Top(", ".join(map(str, pids)))
        self._naming = naming(arguments)
        self._names: dict[Location, list[Name]] = {}
        self._left = False
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def start(self) -> None:
        """Begin to sample."""
        self._began, self._cpu = time.monotonic(), time.process_time()
        try:
            self._thread.start()
        except RuntimeError:
            raise NoThread from None

    def stop(self) -> None:
        """End the sampling; the target is let go before this returns."""
        self._left = True
        self._thread.join()

    def _sample(self) -> None:
        arguments = self._arguments
        open_many()
        try:
            api.record(
                self._pids,
                rate=self._rate,
                mode=arguments.mode,
                perf_events=arguments.perf_events,
                max_frames=arguments.max_frames,
                kernel=arguments.kernel,
                stack_bytes=arguments.stack_bytes,
                steppers=steppers(arguments),
                subprocesses=arguments.subprocesses,
                debug_dirs=tuple(arguments.debug_dir or ()),
                should_stop=lambda: self._left or self._interrupt.requested,
                profile=self._window,
            )
        except BaseException as failure:  # noqa: BLE001 - raised again on the main thread, by `judge`
            self._failure = failure

    def judge(self) -> int:
        """Raise what ended the sampling, if it was no success; say why it is over."""
        if self._failure is not None:
            raise self._failure
        check_begun(self._window.stats, self._pids)
        return 0

    # -- the picture

    def show(self, screen: Screen) -> None:
        """Draw and obey keys until it is over."""
        due = 0.0
        while self._thread.is_alive() and not self._interrupt.requested:
            if self._suspension.requested:
                self._suspension.requested = False
                screen.suspend()
            if time.monotonic() >= due:
                self._draw(screen)
                due = time.monotonic() + _DRAW_S
            key = screen.key()
            if key in ("q", "interrupt"):
                return
            if key:
                self._obey(key)
                due = 0.0

    def _obey(self, key: str) -> None:
        top = self._top
        if key == "suspend":
            self._suspension.requested = True
        elif key == "w" and not top.choices.typing:
            self._write()
        elif key in ("+", "-") and not top.choices.typing:
            self._resize_window(1 if key == "+" else -1)
        else:
            top.key(key)

    def _now_ns(self) -> int:
        return round((time.monotonic() - self._began) * 1e9)

    def _draw(self, screen: Screen) -> None:
        window, top = self._window, self._top
        top.title = ", ".join(f"{window.processes.get(pid, '?')} {pid}" for pid in self._pids)
        now_ns = self._now_ns()
        with SUSPEND_LOCK:
            top.update(window.last(now_ns), self._name, window, min(now_ns, window.length_ns))
        overhead = (time.process_time() - self._cpu) * 1e9 / max(now_ns, 1)
        screen.draw(top.screen(*screen.size, window.stats, overhead, window.length_ns / 1e9))

    @cached_property
    def _symbolizer(self) -> Symbolizer:
        """Made when the first place is named: then it is known where the processes live."""
        return api.symbolizer(self._window, self._naming)

    def _name(self, place: Location) -> list[Name]:
        found = self._names.get(place)
        if found is None:
            module = place.module.path.rpartition("/")[2] if place.module else ""
            found = self._names[place] = [(named.text, module) for named in self._symbolizer.frames(place)]
        return found

    def _resize_window(self, step: int) -> None:
        seconds = round(self._window.length_ns / 1e9)
        later = [one for one in _WINDOWS_S if (one > seconds if step > 0 else one < seconds)]
        if later:
            self._window.length_ns = (later[0] if step > 0 else later[-1]) * 10**9

    def _write(self) -> None:
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        path = f"sfsample-{'-'.join(map(str, self._pids[:3]))}-{stamp}.html"
        try:
            output = Output(path)
            with SUSPEND_LOCK:
                profile = as_profile(self._window, self._window.last(self._now_ns()))
                data = api.render(api.named(profile, self._symbolizer), "html")
            output.write(data)
            self._top.message = f"written: {path}"
        except SfsampleError as failure:
            self._top.message = str(failure)


class _Suspension:
    """Ctrl-Z and SIGTSTP: noted here, obeyed when the picture is not being drawn."""

    def __init__(self) -> None:
        self.requested = False

    def __enter__(self) -> None:
        self._before = signal.signal(signal.SIGTSTP, self._note)

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGTSTP, self._before)

    def _note(self, _number: int, _frame: object) -> None:
        self.requested = True
