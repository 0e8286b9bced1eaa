"""Says what each goroutine waits for, which goroutines can end the wait, and which waits are findings.

A lock of Go stores no owner.  So sfsample names no holder.  Nor does it say which goroutine should send to a
channel.  sfsample knows only which goroutines have a pending deferred Unlock, how many readers an RWMutex
has, and how many Done calls a WaitGroup lacks.  A finding is a "DEADLOCK" only if each goroutine of a ring
waits for a lock that only the next goroutine has deferred to unlock, none of the ring has run between two
looks, and no function in their stacks unlocks a lock without `defer`: the deferred Unlock may be for a
later Lock.

Source: Go, src/sync (Mutex: state, sema; RWMutex: w, writerSem, readerSem, readerCount, readerWait;
WaitGroup: state, sema; Once: done, m), src/runtime/chan.go (hchan); unchanged from Go 1.19 to 1.27.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import takewhile
from typing import Any, NamedTuple

from sfsample.core.quantities import counted, listed
from sfsample.dumping.diagnose.named_thread import NamedThread
from sfsample.dumping.diagnose.wait_graph import Node, cycles
from sfsample.dumping.diagnose.wording import Finding, format_seconds
from sfsample.dumping.goroutines import is_of_runtime
from sfsample.dumping.model import GoroutineGroup, GoroutineMember, ProcessDump
from sfsample.formats.gopclntab.places import WRAPPER
from sfsample.runtimes.go.waits import LOCK_STATES, MAX_CASES, OBJECT_START
from sfsample.symbolize.named_frame import NamedFrame

_LOCK_KINDS = ("mutex", "write lock", "read lock", "once")
_FOUND_KINDS = (*_LOCK_KINDS, "wait group", "nil channel")  # kinds of waits that are findings, in order
# starts of the names of functions that only take locks, or that say less about a wait than their caller
_OF_LOCKS = ("runtime.", "sync.", "internal/sync.")
_OF_LIBRARY = ("runtime.", "sync.", "internal/", "syscall.", "time.", "io.", "os.", "net.", "crypto/tls.")
_COND_WAIT = "sync.(*Cond).Wait"
_LOCK_SLOW = "sync.(*Mutex).lockSlow"
_STOP_THE_WORLD = "runtime.stopTheWorldWithSema"
_WOKEN_BY_GOROUTINES = ("chan ", "select", "sync.", "semacquire")  # states that only other goroutines end
_FOREVER = {"chan receive (nil chan)": "receive from a nil channel",
            "chan send (nil chan)": "send to a nil channel",
            "select (no cases)": "a select without cases"}  # fmt: skip
# offset of a field from the address of a channel or of a semaphore
_QUEUED, _CAPACITY = 0, 8  # channel
_MUTEX_STATE = -4  # bit 0: locked
_MISSING = -4  # WaitGroup: number of missing Done calls
_READERS_OF_WRITER = 12  # RWMutex.readerWait, from writerSem
_MAX_NAMED = 5  # goroutines or channels that a sentence names
_MAX_STATES = 6  # states in a sentence
_MAX_FINDINGS = 8  # findings of the same kind
_MAX_HOLDERS = 3  # goroutines whose own state is shown below a finding


class _Lock(NamedTuple):
    kind: str
    text: str
    semaphore: int  # bytes from the lock to the semaphore
    release: str = ""  # deferred call that releases the lock, see `Unlock.text`; "": no such call
    released: int = 0  # bytes from the lock to the inner lock that this call releases


_MUTEX = _Lock("mutex", "mutex", 4, "Unlock")
_SEMAPHORE = _Lock("semaphore", "semaphore", 0)
_WRITER = _Lock("write lock", "the write lock of RWMutex", 8, "RUnlock")
_LOCKS = {  # key: function that waits; True if the function waits for the inner mutex of the lock
    ("sync.(*Once).doSlow", True): _Lock("once", "sync.Once", 8, "Unlock", 4),
    ("sync.(*RWMutex).Lock", True): _Lock("write lock", "the write lock of RWMutex", 4, "write Unlock"),
    ("sync.(*RWMutex).Lock", False): _WRITER,
    ("sync.(*RWMutex).RLock", False): _Lock("read lock", "the read lock of RWMutex", 12, "write Unlock"),
    ("sync.(*WaitGroup).Wait", False): _Lock("wait group", "WaitGroup", 8),
}


class Waiting(NamedTuple):
    """The wait of a goroutine.  `text` is the predicate of a sentence."""

    kind: str
    text: str
    address: int = 0  # address of the lock or channel; 0: none
    goroutines: tuple[int, ...] = ()  # ids of the goroutines that can end the wait, as far as known
    details: Mapping[str, Any] = {}  # further facts, by key of the JSON document

    @property
    def only(self) -> int | None:
        """The id of the only goroutine that can end the wait; None: unknown, or several goroutines can."""
        return self.goroutines[0] if len(self.goroutines) == 1 == self.details.get("readers", 1) else None


def place_of(functions: Sequence[NamedFrame]) -> str:
    """Return the innermost function outside `_OF_LIBRARY`, with file and line; "": no such function."""
    own = (f for f in functions if not (f.function or "").startswith(_OF_LIBRARY))
    return next((f.plain_text for f in own if not WRAPPER.search(f.function or "")), "")


def names_of(ids: Collection[int]) -> str:
    """Return a text for several goroutines: "goroutine 7", "goroutines 7, 8 and 12 more"."""
    return f"goroutine{'s' * (len(ids) > 1)} {listed(sorted(ids), _MAX_NAMED)}"


class GoWaits:
    """Finds the waits of all goroutines of one process."""

    def __init__(self, dump: ProcessDump) -> None:
        self._dump = dump
        # 100,000 goroutines may wait for one channel or lock
        self._channels, self._locks = cache(self._wait_for_channels), cache(self._wait_for_lock)
        self._waiters: dict[int, set[int]] = {}  # ids by address of a channel or a semaphore
        self._releasers: dict[tuple[int, str], set[int]] = {}  # ids by address of a lock, and releasing call
        for group in dump.goroutines:
            may_hold = not any(name.function == _COND_WAIT for name in group.functions)
            for member in group.members:
                for address in member.wait.objects:
                    self._waiters.setdefault(address, set()).add(member.id)
                for unlock in member.unlocks if may_hold else ():
                    self._releasers.setdefault(unlock[:2], set()).add(member.id)

    def find(self) -> dict[int, Waiting]:
        """Return the known waits, by the id of the goroutine."""
        found: dict[int, Waiting] = {}
        for group in self._dump.goroutines:
            lock = _lock_of(group) if group.state.startswith(LOCK_STATES) else None
            waits = ((member.id, self._of(group.state, lock, member)) for member in group.members)
            found |= {goid: wait for goid, wait in waits if wait is not None}
        return found

    def _of(self, state: str, lock: _Lock | None, member: GoroutineMember) -> Waiting | None:
        wait = member.wait
        if state in _FOREVER:
            kind = "no cases" if "no cases" in state else "nil channel"
            return Waiting(kind, f"waits for ever: {_FOREVER[state]}")
        if wait.until_ns:
            left_s = max(0, wait.until_ns - self._dump.go.read_ns) / 1e9
            return Waiting("sleep", f"sleeps {left_s:.1f} s more", details={"left_s": left_s})
        if wait.fd >= 0:
            return self._descriptor(wait.fd)
        if not wait.objects:
            return None
        own_id = member.id if member.unlocks else 0
        return self._locks(own_id, lock, wait.objects[0]) if lock else self._channels(state, wait.objects)

    def _descriptor(self, fd: int) -> Waiting:
        file, names = self._dump.go.files.get(fd), dict(self._dump.others)
        pids = dict.fromkeys(peer.pid for peer in self._dump.peers if file and peer.near.inode == file.inode)
        ends = [f"process {pid} ({names.get(pid, '?')})" if pid != self._dump.pid else "this process"
                for pid in pids]  # fmt: skip
        text = f"waits for events on fd {fd}" + (f" ({file.text})" if file else "")
        text += f", with the other end open in {', '.join(ends)}" if ends else ""
        details = {"fd": fd, "file": file.text if file else None, "pids": list(pids)}
        return Waiting("events", text, details=details)

    def _wait_for_channels(self, state: str, channels: tuple[int, ...]) -> Waiting:
        buffers = [
            [self._number(channel, field, 8) for field in (_QUEUED, _CAPACITY)] for channel in channels
        ]
        texts = [_channel(channel, *buffer) for channel, buffer in zip(channels, buffers, strict=True)]
        if state.startswith("select"):
            count = f"{len(texts)}{' or more' * (len(texts) == MAX_CASES)}"
            text = f"waits for one of {count} channels: {listed(texts, _MAX_NAMED)}"
            return Waiting("select", text, details={"channels": [hex(channel) for channel in channels]})
        verb = "to receive from" if state.startswith("chan receive") else "to send to"
        others, details = self._others(channels[0])
        details |= zip(("queued", "capacity"), buffers[0], strict=True)
        return Waiting("channel", f"waits {verb} {texts[0]}{others}", channels[0], details=details)

    def _others(self, address: int) -> tuple[str, dict[str, int | None]]:
        """Return the number of goroutines that wait for a channel or semaphore, as a clause and for JSON."""
        count = len(self._waiters[address])
        return f"; {count} goroutines wait for it" * (count > 1), {"waiting": count}

    def _number(self, address: int, offset: int, size: int = 4) -> int | None:
        """Return an unsigned number from a channel or a lock; None: the memory could not be read."""
        copy, start = self._dump.go.objects.get(address), offset - OBJECT_START
        return None if copy is None else int.from_bytes(copy[start : start + size], "little")

    def _wait_for_lock(self, goid: int, lock: _Lock, semaphore: int) -> Waiting:
        """Return the wait for a lock; `goid`: goroutine that waits, or 0 if it has no pending Unlock."""
        address = semaphore - lock.semaphore
        known: tuple[int, ...] = ()
        text, (others, details) = f"waits for {lock.text} {address:#x}", self._others(semaphore)
        if lock.kind == "mutex" and not (self._number(semaphore, _MUTEX_STATE) or 0) & 1:
            return Waiting(lock.kind, f"{text}, which is not locked now", address, details=details)
        if lock.kind == "wait group" and (missing := self._number(semaphore, _MISSING)) is not None:
            text = f"waits for {counted(missing, 'more Done call')} of {lock.text} {address:#x}"
            details["missing"] = missing
        if lock == _WRITER and (readers := self._number(semaphore, _READERS_OF_WRITER)):
            text += f", held by {counted(readers, 'reader')}"
            details["readers"] = readers
        if lock.release:
            known, holders = self._releasers_of(goid, lock, semaphore)
            text += holders
        return Waiting(lock.kind, text + others, address, known, details)

    def _releasers_of(self, goid: int, lock: _Lock, semaphore: int) -> tuple[tuple[int, ...], str]:
        """Return the goroutines that can end a wait for a lock, and a clause about these goroutines."""
        address = semaphore - lock.semaphore
        found = self._releasers.get((address + lock.released, lock.release), set())
        # A waiter does not hold the lock.  But if only waiters will unlock it, this goroutine may hold it.
        known = tuple(sorted(found - self._waiters[semaphore] or found & {goid}))
        writers = self._waiters.get(address + _WRITER.semaphore, ()) if lock.kind == "read lock" else ()
        is_own, call = known == (goid,), lock.release.rpartition(" ")[2]
        if writers and not known:
            return tuple(sorted(writers)), f", behind {names_of(writers)} in its queue for the write lock"
        if not known:
            return (), f"; no deferred {call} of it was found, and Go notes no owner"
        if lock.kind == "once":
            return known, f", whose function {'it runs itself' if is_own else f'{names_of(known)} runs'}"
        name = "only this goroutine" if is_own else names_of(known)
        return known, f"; {name} {'have' if len(known) > 1 else 'has'} a deferred {call} of it pending"


def _channel(address: int, queued: int | None, capacity: int | None) -> str:
    buffer = f"{queued} of {capacity} in its buffer" if capacity else "no buffer"
    return f"channel {address:#x}" + f" ({buffer})" * (capacity is not None)


def _lock_of(group: GoroutineGroup) -> _Lock:
    """Return the lock for which the goroutines of a group wait, judged by the functions on their stack."""
    functions = (name.function or "" for name in group.functions)
    names = [*takewhile(lambda name: name.startswith(_OF_LOCKS), functions)]
    is_mutex = any(name.endswith(_LOCK_SLOW) for name in names)
    default = _MUTEX if is_mutex else _SEMAPHORE
    return next((_LOCKS[name, is_mutex] for name in names if (name, is_mutex) in _LOCKS), default)


def _stops_the_world(thread: NamedThread) -> bool:
    """Return True if a thread was in the same call of `stopTheWorldWithSema` at each of several looks."""
    calls = {frame.cfa for frame, _, names in thread.rows()
             if any(name.function == _STOP_THE_WORLD for name in names)}  # fmt: skip
    looks = [{frame.cfa for frame in look.stack.frames} for look in thread.dump.looks if look.stack]
    return len(looks) > 1 and bool(calls.intersection(*looks))


class GoVerdict:
    """Derives findings from the waits of the goroutines of one process."""

    def __init__(
        self, dump: ProcessDump, waits: Mapping[int, Waiting], threads: Iterable[NamedThread] = ()
    ) -> None:
        self._dump, self._threads = dump, threads
        self._unmoved, self._process = dump.go.unmoved, (Node(dump.pid, 0),)
        self._groups = {member.id: group for group in dump.goroutines for member in group.members}
        self._waits = waits
        # waits that may last; if a goroutine has run between the looks, its wait for a lock does not count
        self._lasting = {goid: wait for goid, wait in sorted(waits.items())
                         if self._unmoved is None or goid in self._unmoved
                         or wait.kind not in (*_LOCK_KINDS, "wait group")}  # fmt: skip
        edges = {Node(0, goid): Node(0, wait.only) for goid, wait in self._lasting.items()
                 if wait.only is not None}  # fmt: skip
        self._rings = [tuple(node.tid for node in cycle) for cycle in cycles(edges)]

    def census(self) -> Finding:
        """Return the number of goroutines in each state; where and how long the largest group has waited."""
        states = Counter[str]()
        for group in self._dump.goroutines:
            states[group.state] += len(group.members)
        shown = states.most_common(_MAX_STATES)
        parts = [f"{count} {state}" for state, count in shown]
        if others := states.total() - sum(count for _, count in shown):
            parts.append(f"{others} others")
        largest = max(self._dump.goroutines, key=lambda group: len(group.members))
        longest_s = max(member.since_s or 0 for member in largest.members)
        text = f"{counted(states.total(), 'goroutine')}: {', '.join(parts)}"
        if (place := place_of(largest.functions)) and len(largest.members) > 1:
            text += f"; {len(largest.members)} of them in {place}"
            text += f", for at least {format_seconds(longest_s)}" * bool(longest_s)
        return Finding("goroutines", text, self._process)

    def rings(self) -> list[Finding]:
        """Return the rings of goroutines that wait for each other, deadlocks first."""
        return sorted(map(self._ring, self._rings), key=lambda finding: finding.kind != "deadlock")

    def _ring(self, ring: tuple[int, ...]) -> Finding:
        is_certain = self._unmoved is not None and self._unmoved.issuperset(ring)
        by_hand = any(unlock.by_hand for goid in ring for member in self._groups[goid].members
                      if member.id == goid for unlock in member.unlocks)  # fmt: skip
        lines = tuple(map(self._sentence, ring))
        if len(ring) == 1:
            # after an explicit Unlock, another goroutine may hold the mutex; a Once has no explicit Unlock
            is_certain = is_certain and self._waits[ring[0]].kind == "once"
            text, lines = lines[0], ()
        else:
            text = f"each of {len(ring)} goroutines waits for a lock that the next one has deferred to unlock"
            is_certain = is_certain and not by_hand
            if is_certain:
                text = f"{len(ring)} goroutines wait for each other, and none can go on"
        kind = "deadlock" if is_certain else "blocked"
        return Finding(kind, "DEADLOCK: " * is_certain + text, self._process, lines, ring)

    def stopped(self) -> Iterator[Finding]:
        """Yield a finding if the runtime waits for running goroutines, or if no goroutine can go on."""
        stopping = {thread.dump.ns_tid for thread in self._threads if _stops_the_world(thread)}
        running = {group.tid: group.members[0].id for group in self._dump.goroutines
                   if group.state == "running" and group.tid not in stopping
                   and self._unmoved and group.members[0].id in self._unmoved}  # fmt: skip
        if stopping and running:
            verbs = "run and do not give way" if len(running) > 1 else "runs and does not give way"
            text = f"the runtime stops the program, and waits for {names_of(running.values())}, which {verbs}"
            yield Finding("blocked", text, self._process, (), tuple(running.values()))
        own = [group for group in self._dump.goroutines if not is_of_runtime(group)]
        are_asleep = all(group.state.startswith(_WOKEN_BY_GOROUTINES) for group in own)
        have_slept = all(thread.moving is False for thread in self._dump.threads)
        if own and are_asleep and have_slept and self._dump.go.is_whole:
            count = sum(len(group.members) for group in own)
            text = f"none of {counted(count, 'goroutine')} can go on: only a timer or C code can wake one"
            yield Finding("blocked", text, self._process)

    def blocked(self) -> Iterator[Finding]:
        """Yield the waits outside rings (for locks, for WaitGroups, for ever), the largest group first."""
        in_rings = {goid for ring in self._rings for goid in ring}
        same: dict[tuple[int, int, str], list[int]] = {}
        for goid, wait in self._lasting.items():
            if goid not in in_rings and wait.kind in _FOUND_KINDS:
                place = "" if wait.address else place_of(self._groups[goid].functions)
                same.setdefault((_FOUND_KINDS.index(wait.kind), wait.address, place), []).append(goid)
        ordered = sorted(same.items(), key=lambda item: (-len(item[1]), item[0][0], item[1]))
        yield from (self._blocked(tuple(goids)) for _, goids in ordered[:_MAX_FINDINGS])
        if len(ordered) > _MAX_FINDINGS:
            yield Finding("blocked", f"and {len(ordered) - _MAX_FINDINGS} more such waits", self._process)

    def _blocked(self, goids: tuple[int, ...]) -> Finding:
        wait = self._waits[goids[0]]
        text = self._sentence(goids[0])
        if len(goids) > 1:
            text = f"{len(goids)} goroutines ({listed(goids, _MAX_NAMED)}): each {wait.text}"
        holders = wait.goroutines[:_MAX_HOLDERS] if wait.goroutines != goids else ()
        lines = tuple(map(self._sentence, holders))
        return Finding("blocked", text, self._process, lines, (*goids, *wait.goroutines))

    def _sentence(self, goid: int) -> str:
        wait, group = self._waits.get(goid), self._groups[goid]
        place = place_of(group.functions)
        predicate = wait.text if wait else f"is in state {group.state}"
        return f"goroutine {goid}{f' in {place}' * bool(place)} {predicate}"
