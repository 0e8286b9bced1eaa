"""Finds what a sleeping thread waits for, and makes a frame that shows the wait.

A wait lasts while the scheduler's counters of the thread stay the same.  sfsample finds each wait only once,
and counts its frame again with the stack.  The evidence is read after the capture.  If the thread has run in
between, only the system call of the capture counts, because the evidence may belong to another wait.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import cache, partial
from typing import NamedTuple

from sfsample.core.memory import Memory, ReadMemory
from sfsample.core.snapshot import SchedulerEvidence
from sfsample.core.wait_kind import WaitKind
from sfsample.formats.gopclntab.places import WRAPPER
from sfsample.modules.location import Location, PythonPlace, WaitPlace, locate, python_location
from sfsample.modules.module import Module
from sfsample.process.capture import CapturedStack, ThreadCapturer
from sfsample.process.facts.descriptors import KeptDescriptors, KeptPeers, KeptTables, NearEnd
from sfsample.process.facts.file_locks import contended_locks
from sfsample.process.facts.syscall_arguments import CHILD_CALLS, FILE_LOCK_CALLS
from sfsample.process.facts.thread_facts import FactReader, as_made
from sfsample.process.had_cpu import RunState
from sfsample.process.proc_text import SyscallInfo
from sfsample.process.process import LiveProcess
from sfsample.process.syscall_names import syscall_name
from sfsample.process.thread import Thread
from sfsample.process.vm import KeptAnswer
from sfsample.recording.sample import Places
from sfsample.runtimes.cpython.python_stack import PythonStack
from sfsample.runtimes.cpython.waits import PythonFacts, ThreadReader
from sfsample.symbolize.symbolizer import Symbolizer
from sfsample.symbolize.variables import module_of, variable_at
from sfsample.waiting.place import NO_CPU, goroutine_place, wait_place
from sfsample.waiting.thread import C_LIBRARIES, WaitContext, WaitingThread, is_file, library_functions
from sfsample.waiting.waits import Wait, wait_of

_GO_RUNTIME = ("runtime.", "internal/runtime/")  # starts of names of functions of the Go runtime
_MAX_STACKS = 10_000  # stacks in the cache of C library functions
_MAX_FRAMES = 64  # innermost frames that are searched for C library functions
_SEEN_IN_STACKS = (WaitKind.LOCK, WaitKind.FUTURE)  # kinds whose holder is recognized by its own stack
_NOT_YET_KNOWN = (WaitKind.MUTEX, *_SEEN_IN_STACKS)  # kinds whose holder may become known later
_SAME_SLEEP = (0.0, 0.0)  # `asleep` of every thread, so that all slept at one instant (`slept_together`)

_Ask = Callable[[ThreadReader, PythonStack, int], PythonFacts]  # type of methods of `ThreadReader`
HolderId = tuple[int, int]  # pid and tid of the thread that has to act; tid 0: any thread of the process


class FoundWait(NamedTuple):
    """The wait of a thread."""

    location: Location
    wait: Wait | None = None  # None: its kind is unknown, or the thread waits for a CPU
    evidence: WaitingThread | None = None
    python: PythonStack | None = None
    ends: Mapping[str, NearEnd] = {}  # other end of the pipe or socket, if it is on this machine
    counters: bytes | None = None  # scheduler counters of the thread during the wait

    @property
    def resource(self) -> tuple[str, int | str] | None:
        """The lock, pipe or child, equal for all waiters of the process; None: it never has a holder."""
        wait = self.wait
        if wait is None or not (self.ends or wait.tid or wait.process or wait.kind in _NOT_YET_KNOWN):
            return None
        return wait.kind, wait.address or wait.what

    def thing(self, process_key: int) -> Hashable:
        """Return what the thread waits for, as a key that is equal for all waiters in all processes."""
        wait = self.wait
        return (process_key, wait.kind, wait.address) if wait and wait.address else self.location


class WaitFinder:
    """Finds the waits of the threads of one process; with `peers`, also the holders.

    `names` names the functions of the C library.
    """

    def __init__(
        self, process: LiveProcess, capturer: ThreadCapturer, names: Symbolizer, tables: KeptTables,
        peers: KeptPeers | None, *, details: bool,
    ) -> None:  # fmt: skip
        self._process, self._capturer, self._names = process, capturer, names
        self.peers, self._details = peers, details
        # thread id -> function that returns what the thread held at its last capture
        self._read_held: dict[int, Callable[[], WaitingThread]] = {}
        # thread id, method of ThreadReader -> its last answer about the thread
        self._answers = defaultdict[tuple[int, _Ask], KeptAnswer[PythonFacts]](KeptAnswer)
        descriptors = self._descriptors = KeptDescriptors(process.proc, tables)
        self._facts = FactReader(process.proc, descriptors=lambda _: descriptors)
        # living threads: thread id in the pid namespace of the process -> id in sfsample's namespace
        self._tids: dict[int, int] = {}
        self._functions_at: dict[tuple[int, tuple[int, ...]], tuple[str, ...]] = {}

    def follow(self, tids: Iterable[int]) -> None:
        """Note the ids of the living threads."""
        own_ids = {tid: own_id for own_id, tid in self._tids.items()}
        self._tids = {own_ids.get(tid) or self._process.own_id(tid): tid for tid in tids}
        living = {*self._tids.values()}
        for tid in self._read_held.keys() - living:
            del self._read_held[tid]
        for key in [key for key in self._answers if key[0] not in living]:
            del self._answers[key]

    def forget(self, tid: int) -> None:
        """Forget what a thread held, as it has run."""
        self._read_held.pop(tid, None)

    def find(
        self, thread: Thread, captured: CapturedStack, state: str, run_state: RunState
    ) -> FoundWait | None:
        """Return the wait of a captured thread; None: it runs.  `state`: letter of proc(5)."""
        if not captured.stack.frames:  # a worker of the kernel
            return None
        asleep = self._asleep(thread, captured, run_state)
        if captured.python is not None and self.peers is not None:
            word = asleep.args[0] if asleep and syscall_name(asleep.number) == "futex" else 0
            stopped = None if asleep else captured.snapshot.memory
            self._read_held[thread.tid] = cache(
                partial(self._held, thread.tid, captured.python, word, stopped))  # fmt: skip
        if run_state is RunState.WAITING:
            return FoundWait(_location(NO_CPU))
        if asleep is None:
            return None
        # A thread with state R fell asleep after its state was read.
        waiting = self._evidence(thread, captured, "S" if state == "R" else state, asleep)
        modules = tuple(filter(None, dict.fromkeys(captured.modules)))
        wait = wait_of(waiting, self._context(waiting, {}, modules))
        counters = captured.snapshot.scheduler.after if captured.snapshot.scheduler else None
        ends = self._facts.peer_links([waiting.call]) if waiting.call and self.peers else {}
        if self.peers is not None:
            self.peers.want(ends)
        location = self._locate(waiting, wait, modules)
        return FoundWait(location, wait, waiting, captured.python, ends, counters)

    def _locate(self, waiting: WaitingThread, wait: Wait | None, modules: Sequence[Module]) -> Location:
        """Return a wait's frame; for a lock in a global variable, with the address that leads to its name."""
        place = wait_place(waiting, wait, details=self._details)
        may_have_name = wait is not None and wait.kind is not WaitKind.GIL and not self._details
        address = wait.address if wait is not None and may_have_name else 0
        return _location(place, module_of(modules, address) if address else None, address)

    def parked_goroutines(self) -> list[tuple[Places, float]]:
        """Return the stacks of parked goroutines with their numbers; leave out goroutines of the runtime."""
        goroutines, scale = self._capturer.go.parked()
        find, numbers = self._process.modules.find, Counter[Places]()
        for goroutine in goroutines:
            fd, frames = goroutine.wait.fd, self._capturer.parked_stack(goroutine).frames
            places = [locate(frame, find(frame.lookup_pc), 0) for frame in frames]
            names = [*map(self._own_function, places)]
            if own := [at for at, name in enumerate(names) if name]:
                task = PythonPlace(f"[goroutine {names[own[-1]]}]", "", None, None)
                wait = goroutine_place(goroutine.state, self._descriptors.read(fd) if fd >= 0 else None)
                chain = places[own[0] : own[-1] + 1]
                numbers[_location(wait), *chain, python_location(task)] += 1
        return [(stack, scale * number) for stack, number in numbers.items()]

    def _own_function(self, place: Location) -> str:
        """Return the function at a place; "": it belongs to Go's runtime, or the compiler has made it."""
        name = self._names.frames(place)[-1].function or ""
        return "" if name.startswith(_GO_RUNTIME) or WRAPPER.search(name) else name

    def holder(self, thread: Thread, found: FoundWait) -> HolderId | None:
        """Return the holder without which a waiting thread cannot go on now; None: unknown, or there is none.

        An owner in the memory of a lock always counts.  Other evidence counts only if the thread still waits.
        If the thread's own process also has the other end open, the holder is unknown: a handler may act.
        """
        if found.evidence is None or found.wait is None:
            return None
        waiting = self._with_objects(thread, found.evidence, found.python)._replace(asleep=_SAME_SLEEP)
        readers = self._read_held.values() if found.wait.kind in _SEEN_IN_STACKS else ()
        others = [read() for read in readers]
        context = self._context(waiting, found.ends)
        wait = wait_of(waiting, context._replace(threads=others) if others else context)
        if wait is None or wait.own_end or not (wait.tid or wait.process):
            return None
        is_in_memory = wait.tid is not None and not readers
        still_waits = thread.files.asleep() and thread.files.counters() == found.counters
        holder = (self._process.pid, wait.tid) if wait.tid else (wait.process or 0, 0)
        return holder if is_in_memory or still_waits else None

    def _asleep(self, thread: Thread, captured: CapturedStack, run_state: RunState) -> SyscallInfo | None:
        """Return the system call of a thread that slept when it was captured; None: it ran."""
        if captured.reading is not None:
            return captured.reading.asleep
        snapshot, asleep = captured.snapshot, thread.asleep
        if asleep is None or run_state is not RunState.ASLEEP:
            return None
        return asleep if asleep.sp == snapshot.registers[snapshot.arch.sp] else None

    def _evidence(
        self, thread: Thread, captured: CapturedStack, state: str, asleep: SyscallInfo
    ) -> WaitingThread:
        process, facts, tid = self._process, self._facts, thread.tid
        name = syscall_name(asleep.number) or ""
        needs_wchan = state == "D" or name.startswith(("restart_syscall", "open", "read", "write"))
        wchan = facts.wchan(tid) if needs_wchan else None
        call = facts.decode(as_made(asleep, wchan))
        waiting = WaitingThread(
            tid, "", state, process.own_id(tid), call, wchan, functions=self._functions(captured),
            in_c_library=_in_c_library(next(iter(captured.modules), None)),
        )  # fmt: skip
        full = self._with_objects(thread, waiting, captured.python)
        evidence = captured.snapshot.scheduler or SchedulerEvidence(None, None)
        is_one_moment = thread.files.counters() == evidence.after
        return full if is_one_moment else waiting._replace(gil=full.gil)  # the address of the GIL stays

    def _with_objects(
        self, thread: Thread, waiting: WaitingThread, python: PythonStack | None
    ) -> WaitingThread:
        """Add the evidence in the memory of the process: the lock, the GIL, Python's objects."""
        call = waiting.call
        if call is None or call.name != "futex":
            return waiting
        gil = self._capturer.gil(thread) if python else None
        word = call.syscall.args[0]
        facts = self._ask(ThreadReader.wait, thread.tid, python, word) if python else PythonFacts()
        memory = self._facts.lock_memory(call)
        if not memory.pieces:  # the thread through which sfsample reads the memory may have ended
            self._facts.begin()
            memory = self._facts.lock_memory(call)
        return waiting._replace(memory=memory, gil=gil, facts=facts)

    def _held(self, tid: int, python: PythonStack, futex: int, stopped: Memory | None) -> WaitingThread:
        """Return what a thread of Python holds; `stopped`: its memory while it was stopped."""
        facts = self._ask(ThreadReader.holds, tid, python, futex, stopped)
        return WaitingThread(tid, "", "S", facts=facts, asleep=_SAME_SLEEP)

    def _ask(
        self, ask: _Ask, tid: int, python: PythonStack, futex: int, stopped: Memory | None = None
    ) -> PythonFacts:
        """Return the answer of a method of `ThreadReader`, which prefers the memory `stopped`."""
        capture, live = self._capturer.python, self._facts.read
        interpreter = capture.interpreter if capture is not None else None
        if interpreter is None or interpreter.layout.free_threaded:
            return PythonFacts()

        def answer(read: ReadMemory) -> PythonFacts:
            return ask(ThreadReader(interpreter, read, 0, lambda: False), python, futex)

        if stopped is not None:
            return answer(lambda at, size: stopped.read(at, size) or live(at, size))
        return self._answers[tid, ask].get(tid, (interpreter, python, futex), answer, live)

    def _functions(self, captured: CapturedStack) -> tuple[str, ...]:
        """Return the functions of the C library on a stack, see `library_functions`."""
        pairs = list(zip(captured.stack.frames, captured.modules, strict=True))[:_MAX_FRAMES]
        place = captured.generation, tuple(frame.pc for frame, _ in pairs)
        if place not in self._functions_at:
            inside = [pair for pair in pairs if _in_c_library(pair[1])]
            chosen = inside or (pairs if not any(map(_in_c_library, captured.modules)) else [])
            frames = [self._names.frames(locate(frame, module, 0)) for frame, module in chosen if module]
            functions = library_functions(frames, [module.path for _, module in chosen if module])
            if len(self._functions_at) >= _MAX_STACKS:
                self._functions_at.clear()
            self._functions_at[place] = tuple(functions)
        return self._functions_at[place]

    def _context(
        self, waiting: WaitingThread, ends: Mapping[str, NearEnd], modules: Sequence[Module] = ()
    ) -> WaitContext:
        name: Callable[[int], str | None] = partial(variable_at, modules) if self._details else lambda _: None
        title = self._process.proc.read("cmdline") if self._process.name == "postgres" else None
        words = (title or b"").decode("utf-8", "replace").rstrip("\0").split("\0")
        call = waiting.call.name if waiting.call else None
        locks = contended_locks(waiting.call.descriptors) if waiting.call and call in FILE_LOCK_CALLS else ()
        children = self._facts.children() if self.peers and call in CHILD_CALLS else ()
        return WaitContext(
            self._process.pid, words, (waiting,), self._tids, {}, name, children=children, locks=locks,
            peers=self.peers.find(ends) if self.peers else (),
        )  # fmt: skip


def _in_c_library(module: Module | None) -> bool:
    return module is not None and is_file(module.path, C_LIBRARIES)


def _location(place: WaitPlace, module: Module | None = None, address: int = 0) -> Location:
    """Return the location of a wait; a lock at `address` is a global variable of `module`."""
    vaddr = module.vaddr(address) if module else 0
    return Location(module, vaddr, vaddr, found="idle" if place.is_idle else "wait", wait=place)
