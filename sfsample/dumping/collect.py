"""Collects the facts for a dump of a live process: captures every thread once or several times.

If a thread cannot be captured, the dump shows the reason, and sfsample goes on with the next thread.
This module reads all facts while the process lives.  The diagnosis works later, on values (`dumping.model`).
"""

import os
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice

from sfsample.core.memory import PiecewiseMemory
from sfsample.core.snapshot import Capture, ThreadSnapshot
from sfsample.core.wait_kind import WaitKind
from sfsample.dumping.goroutines import group_goroutines
from sfsample.dumping.model import (
    Call,
    GoFacts,
    GoroutineGroup,
    ProcessDump,
    ThreadDump,
    ThreadState,
    is_same_place,
)
from sfsample.errors import ReadFailed
from sfsample.process.capture import CapturedStack, ThreadCapturer
from sfsample.process.consistent_capture import ConsistentCapture, capture_consistently
from sfsample.process.facts.descriptors import KeptPeers
from sfsample.process.facts.file_locks import contended_locks
from sfsample.process.facts.syscall_arguments import CHILD_CALLS, FILE_LOCK_CALLS, SIGNAL_CALLS
from sfsample.process.facts.thread_facts import FactReader
from sfsample.process.go_capture import FoundGoroutine
from sfsample.process.had_cpu import is_seldom
from sfsample.process.not_captured import NotCaptured, Reason
from sfsample.process.permission.evidence import tracer_of_process
from sfsample.process.proc_text import Stat
from sfsample.process.process import LiveProcess
from sfsample.process.procfs import process_name
from sfsample.process.vm import read_memory
from sfsample.runtimes.cpython.python_stack import PythonStack
from sfsample.runtimes.cpython.tasks import find_table
from sfsample.runtimes.cpython.threads import Gil
from sfsample.runtimes.cpython.waits import PythonFacts, ThreadReader
from sfsample.runtimes.go.waits import LOCK_STATES
from sfsample.unwind.unwinder import Unwinder

_GONE = "has ended"
# reasons why a thread was not captured
ASKED = "sfsample was asked to end before the capture"
TIME_OVER = "the time of the dump was over before the capture (--timeout)"
STUCK = "a system call on the process did not return before the capture"
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_MAX_ATTEMPTS = 3  # attempts to read facts and stack while the thread does not run
_MAX_REST_NS = 5_000_000  # longest wait in ns until a thread that seldom runs sleeps again
_MAX_RESTS_NS = 100_000_000  # limit in ns for the sum of these waits in one look
_MAX_FRAME_BYTES = 4096  # largest size of a Python frame with its variables
_MAX_GO_FILES = 256  # largest number of descriptors to look up for waiting goroutines
_MAX_FACTS_S = 0.5  # time in seconds to read the kernel's facts of threads that were not captured


class Dumper:
    """Dumps one process: call `look` once or several times, then `result`."""

    def __init__(
        self, process: LiveProcess, unwinder: Unwinder, *, stop: bool = True, consistent: bool = False,
        python: bool = True, with_locals: bool = False, max_connections: int = 0,
    ) -> None:  # fmt: skip
        self.process = process
        self._capturer = ThreadCapturer(process, unwinder, stop=stop, python=python)
        self._consistent, self._with_locals = consistent, with_locals
        self._at_one_instant: ConsistentCapture | None = None  # capture of the last look
        self._facts = FactReader(process.proc, max_connections)
        self._time = time.time()
        self._threads: dict[int, ThreadDump] = {}
        self._before: dict[int, ThreadDump] = {}  # threads of the previous look
        self._to_collect: dict[int, Stat] = {}  # threads that the present look has not reached yet
        self._peers = KeptPeers(pause=0)
        self._rests_left_ns = 0
        self._python_problems: dict[str, None] = {}
        self._calls: tuple[Call, ...] = ()  # calls of the last capture
        self._goroutines: tuple[GoroutineGroup, ...] = ()
        # address of a goroutine that waits for a lock, or may hold a lock -> its `Goroutine.place`
        self._with_locks: dict[int, bytes] = {}
        self._go = GoFacts()

    def look(self, should_stop: Callable[[], bool] = lambda: False) -> None:
        """Capture each thread that is new or has run since the last look; end if `should_stop` is True."""
        self._before, self._threads, self._rests_left_ns = self._threads, {}, _MAX_RESTS_NS
        self._python: ThreadReader | None = None
        self._process_name = process_name(self.process.pid)
        self._should_stop = should_stop
        self._facts.begin()
        if self._consistent:
            for tid in self.process.proc.threads():
                self._capturer.prepare(self.process.thread(tid))
            self._capturer.source = self._at_one_instant = capture_consistently(self.process)
        self._to_collect = dict(self.process.threads())
        try:
            while self._to_collect and not should_stop():
                self._collect_next()
            self._read_gil_again()
            self._find_users()
            self._look_at_goroutines()
        finally:
            self.process.release()

    def _look_at_goroutines(self) -> None:
        """Read all goroutines at the first look; at later looks, find which of `_with_locks` have not run."""
        reader = self._capturer.go.reader
        if reader is not None:
            self._go = self._go._replace(unmoved=reader.unmoved(self._with_locks))
            return
        found = self._capturer.goroutines(self._should_stop)
        self._goroutines = group_goroutines(self._note_locks(found), self.process.modules.find)
        reader = self._capturer.go.reader
        if reader is not None:
            waits = (member.wait for group in self._goroutines for member in group.members)
            fds = islice((wait.fd for wait in waits if wait.fd >= 0), _MAX_GO_FILES)
            files = {fd: file for fd in fds if (file := self._facts.descriptor(fd)) is not None}
            done, count = reader.read_of
            now_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
            self._go = GoFacts(reader.objects, files, read_ns=now_ns, is_whole=done == count)

    def _note_locks(self, found: Iterable[FoundGoroutine]) -> Iterator[FoundGoroutine]:
        """Yield all goroutines; note those that run, wait for a lock, or have a pending Unlock."""
        for each in found:
            if each.unlocks or each.goroutine.state.startswith((*LOCK_STATES, "running")):
                self._with_locks[each.goroutine.address] = each.goroutine.place
            yield each

    def _read_gil_again(self) -> None:
        """Read the holder of each GIL once more, because the threads were captured at different times."""
        again: dict[int, Gil | None] = {}  # key: address of the GIL
        for tid, thread in self._threads.items():
            if thread.gil is not None:
                if thread.gil.begin not in again:
                    again[thread.gil.begin] = self._capturer.gil(self.process.thread(tid))
                self._threads[tid] = thread._replace(gil=again[thread.gil.begin])

    def _find_users(self) -> None:
        """If a thread waits for a Lock, find the threads that use Locks, because a Lock notes no owner."""
        waits = (thread.facts.wait for thread in self._threads.values())
        if self._python and any(wait and wait.kind is WaitKind.LOCK for wait in waits):
            for tid, thread in self._threads.items():
                if thread.python and thread.state != "R":
                    facts = thread.facts._replace(uses=self._python.uses(thread.python))
                    self._threads[tid] = thread._replace(facts=facts)

    def _known(self, tid: int, stat: Stat) -> ThreadDump | None:
        """Return the thread's dump of the previous look; None: no dump, or another thread had the id."""
        known = self._before.get(tid)
        return known if known and known.born == stat.starttime else None

    def _collect_next(self) -> None:
        tid, stat = next(iter(self._to_collect.items()))
        known = self._known(tid, stat)
        try:
            thread = self._collect(tid, stat) if known is None else self._update(known, stat)
        except ReadFailed as failure:
            if failure.help and not self._threads:
                raise  # the help names a limit that the user can raise
            thread = known or ThreadDump(tid, stat.name, stat.state, error=str(failure))
        if thread is not None:
            self._threads[tid] = thread
        del self._to_collect[tid]
        self.process.running_capture.release_pending()  # threads that stopped too late for their capture

    def _collect(self, tid: int, stat: Stat) -> ThreadDump | None:
        files = self.process.proc.thread(tid)
        if self._wait_until_asleep(tid, stat):
            stat = files.stat() or stat
        for _ in range(1 if self._consistent else _MAX_ATTEMPTS):
            before, thread = files.counters(), self._read_facts(tid, stat)
            counters = before if files.counters() == before else None
            thread, is_one_moment = self._capture(thread, counters)
            if is_one_moment:
                break
            stat = files.stat() or stat
        if thread.error == _GONE:
            return None
        usage, now = self._facts.usage(tid), time.monotonic()
        look = ThreadState(now, thread.state, usage, thread.capture, thread.stack, self._calls)
        return thread._replace(looks=(look,))

    def _wait_until_asleep(self, tid: int, stat: Stat) -> bool:
        """Wait until a thread that seldom runs sleeps again; return True if sfsample has waited."""
        usage = None if self._consistent else self._facts.usage(tid)
        if usage is None or not is_seldom(usage.ran_ns, _age_ns(stat.starttime)):
            return False
        now = time.perf_counter_ns()
        until_ns = now + min(_MAX_REST_NS, self._rests_left_ns)
        has_rested = self._capturer.wait_until_asleep(self.process.thread(tid), until_ns)
        self._rests_left_ns -= time.perf_counter_ns() - now
        return has_rested

    def _read_facts(self, tid: int, stat: Stat) -> ThreadDump:
        """Return a thread with the facts from the kernel, and without its stack."""
        usage, wchan = self._facts.usage(tid), self._facts.wchan(tid)
        syscall = self._facts.syscall(tid, wchan)
        call = self._facts.decode(syscall)
        return ThreadDump(
            tid=tid, name=stat.name, state=stat.state, syscall=syscall, wchan=wchan,
            ns_tid=self.process.own_id(tid), cpu_ns=usage and usage.ran_ns, call=call,
            kernel_stack=self.process.proc.thread(tid).kernel_stack() or (),
            memory=self._facts.lock_memory(call),
            last_ran=None if stat.state == "R" else self._facts.last_ran(tid), born=stat.starttime,
        )  # fmt: skip

    def _update(self, known: ThreadDump, stat: Stat) -> ThreadDump | None:
        usage, last = self._facts.usage(known.tid), known.looks[-1]
        if stat.state == last.state != "R" and usage == last.usage:
            return known._replace(looks=(*known.looks, last._replace(at_s=time.monotonic())))
        thread = self._collect(known.tid, stat)
        if thread is None:
            return None
        looks = (*known.looks, *thread.looks)
        still = known.state == thread.state != "R" and is_same_place(known.stack, thread.stack)
        # the thread ran only because sfsample had stopped it, so the facts of the earlier look are valid
        is_disturbed = known.capture is Capture.STOPPED and still
        return (known if is_disturbed else thread)._replace(looks=looks)

    def _capture(self, thread: ThreadDump, counters: bytes | None) -> tuple[ThreadDump, bool]:
        """Add the stack; return True if stack and facts are of one moment, else drop the facts of the wait.

        `counters`: the scheduler counters of the thread when the facts were read.
        """
        self.process.modules.allow_refresh()
        self._calls = ()
        slept = self._at_one_instant is not None and thread.tid in self._at_one_instant.asleep
        found = self._capturer.capture(self.process.thread(thread.tid), "S" if slept else thread.state)
        if isinstance(found, NotCaptured):
            return thread._replace(error=_GONE if found.reason is Reason.GONE else found.detail), True
        snapshot = found.snapshot
        is_one_moment = _is_one_moment(thread, counters, snapshot)
        if not is_one_moment:
            state = "R" if not _slept(snapshot) else "S" if thread.state == "R" else thread.state
            thread = thread._replace(state=state, call=None, syscall=None, wchan=None, last_ran=None,
                                     kernel_stack=(), memory=PiecewiseMemory())  # fmt: skip
        stop_ns = snapshot.stop_ns if snapshot.capture is Capture.STOPPED else None
        self._calls = _calls(found)
        gil = self._capturer.gil(self.process.thread(thread.tid)) if found.python else None
        facts = self._python_facts(thread, found.python) if found.python else PythonFacts()
        thread = thread._replace(
            capture=snapshot.capture, stop_ns=stop_ns, stack=found.stack, modules=found.modules,
            python=found.python, gil=gil, facts=facts, name=self._name(thread.name, found.python),
        )  # fmt: skip
        return thread, is_one_moment

    def _name(self, name: str, stack: PythonStack | None) -> str:
        """Return Python's name of a thread, unless the program gave the kernel another name.

        The kernel's name is the first 15 bytes of Python's name; before Python 3.14, the process's name.
        """
        reader = self._reader() if stack else None
        python = reader.name(stack) if reader and stack else ""
        return python if python.startswith(name) or (python and name == self._process_name) else name

    def _python_facts(self, thread: ThreadDump, stack: PythonStack) -> PythonFacts:
        """Return facts from objects in a thread's frames; only locals, if it has run since its capture."""
        reader, facts, call = self._reader(), PythonFacts(), thread.call
        if reader is None:
            return facts
        if call is not None:
            word = call.syscall.args[0] if call.name == "futex" else 0
            found, usage = reader.facts(stack, thread.ns_tid, word), self._facts.usage(thread.tid)
            facts = found if usage and usage.ran_ns == thread.cpu_ns else facts
        if self._with_locals:
            facts = facts._replace(locals=reader.locals(stack))
        self._python_problems |= dict.fromkeys(reader.problems)
        return facts

    def _reader(self) -> ThreadReader | None:
        """Return the reader of this look; None: sfsample cannot read objects of this Python."""
        python = self._capturer.python
        interpreter = python.interpreter if python is not None else None
        if self._python is None and interpreter is not None and not interpreter.layout.free_threaded:
            read = partial(read_memory, self.process.proc.anchor())
            asyncio = find_table(self.process.modules)
            self._python = ThreadReader(interpreter, read, asyncio, self._should_stop)
        return self._python

    def _add_uncaptured(self, why: str) -> None:
        """Add each thread that the last look has not reached: its earlier dump, or its facts and `why`."""
        until_s = time.monotonic() + _MAX_FACTS_S
        if not (self._threads or self._to_collect):  # no look has reached a thread
            self._to_collect = dict(self.process.threads())
        for tid, stat in self._to_collect.items():
            thread = self._known(tid, stat)
            if thread is None and time.monotonic() < until_s:
                thread = self._read_facts(tid, stat)._replace(error=why)
            self._threads[tid] = thread or ThreadDump(tid, stat.name, stat.state, error=why)

    def result(self, why: str = ASKED) -> ProcessDump:
        """Return the dump of the process.  `why`: reason why threads were not captured."""
        target, proc = self.process, self.process.proc
        process, arguments = proc.stat(), (proc.read("cmdline") or b"").rstrip(b"\0")
        self._add_uncaptured(why)
        threads = tuple(
            thread if thread.last_ran is None else thread._replace(idle_s=self._facts.idle(thread.last_ran))
            for _, thread in sorted(self._threads.items())
        )
        calls = [thread.call for thread in threads if thread.call]
        locked = [file for call in calls if call.name in FILE_LOCK_CALLS for file in call.descriptors]
        locks = contended_locks(locked) if locked else ()
        others = self._peers.find(self._facts.peer_links(calls, self._go.files.values()))
        named = sorted({*(lock.holder for lock in locks), *(end.pid for end in others)} - {-1, 0, target.pid})
        waits_for_children = any(call.name in (*CHILD_CALLS, *SIGNAL_CALLS) for call in calls)
        return ProcessDump(
            pid=target.pid, name=process.name if process else "?", exe=proc.link("exe"),
            cmdline=os.fsdecode(arguments).split("\0") if arguments else [], time=self._time, threads=threads,
            problems=(*target.opener.problems, *target.modules.problems, *self._capturer.language_problems,
                      *self._python_problems),
            children=self._facts.children() if waits_for_children else (),
            locks=locks, peers=others, others=tuple((pid, process_name(pid)) for pid in named),
            stop_signal=process.exit_code if process and process.state == "T" else 0,
            tracer=tracer_of_process(proc) if any(t.state == "t" for t in threads) else None,
            goroutines=self._goroutines, go=self._go,
            ran=self._at_one_instant and self._at_one_instant.ran, root=target.root,
        )  # fmt: skip

    def awaited(self, _should_stop: Callable[[], bool]) -> set[int]:
        """Return the pids for which a thread may wait: peers of pipes, holders of file locks, children."""
        dump = self.result()
        holders = (lock.holder for lock in dump.locks)
        awaits_child = any(thread.call and thread.call.name in CHILD_CALLS for thread in dump.threads)
        return {*(peer.pid for peer in dump.peers), *holders, *dict(dump.children if awaits_child else ())}


def _is_one_moment(thread: ThreadDump, counters: bytes | None, snapshot: ThreadSnapshot) -> bool:
    """Return True if the thread ran at the capture and at the reading of its facts, or at neither."""
    if not _slept(snapshot):
        return thread.state not in "SD" and thread.call is None
    return thread.state != "R" and snapshot.scheduler is not None and snapshot.scheduler.before == counters


def _slept(snapshot: ThreadSnapshot) -> bool:
    evidence = snapshot.scheduler
    return snapshot.capture is Capture.READ or (evidence is not None and evidence.interrupted_sleep)


def _calls(found: CapturedStack) -> tuple[Call, ...]:
    """Return the calls on a stack.  The bytes from a Python frame to its callee's frame are its variables."""
    python, calls, inner = found.python or PythonStack((), False), list[Call](), 0
    frames, runs = iter(python.frames), dict(python.activations)
    for index, native in enumerate(found.stack.frames):
        for frame in islice(frames, len(runs.get(index, ()))):
            size = inner - frame.address
            is_beside = 0 < size < _MAX_FRAME_BYTES
            variables = found.snapshot.memory.read(frame.address, size) if is_beside else None
            calls.append(Call(frame.address, hash((frame.instruction, variables)), is_python=True))
            inner = frame.address
        if not runs.get(index):
            calls.append(Call(native.cfa or 0, native.pc, is_python=False))
    return tuple(calls)


def _age_ns(born: int) -> int:
    """Return the age in ns of a thread that started `born` clock ticks after the boot (proc(5))."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) - born * 1_000_000_000 // _TICKS_PER_S
