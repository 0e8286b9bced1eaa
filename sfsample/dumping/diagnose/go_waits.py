"""Says what each goroutine waits for, and which goroutines are known to be able to end the wait.

Go notes no owner of a lock.  What is known: which goroutine has a deferred Unlock of it pending, how many
readers an RWMutex still has, how many Done calls a WaitGroup lacks.  Nothing else is said: neither a holder,
nor a goroutine that should send to a channel.

Source: Go, src/sync (Mutex: state, sema; RWMutex: w, writerSem, readerSem, readerCount, readerWait;
WaitGroup: state, sema; Once: done, m), src/runtime/chan.go (hchan); the same from 1.19 to 1.27.
"""

from collections.abc import Collection, Mapping, Sequence
from functools import cache
from itertools import takewhile
from typing import Any, NamedTuple

from sfsample.dumping.model import GoroutineGroup, GoroutineMember, ProcessDump
from sfsample.runtimes.go.waits import LOCK_STATES, OBJECT_START
from sfsample.symbolize.named_frame import NamedFrame

LOCK_KINDS = ("mutex", "write lock", "read lock", "once")
_RUNTIME = ("runtime.", "sync.", "internal/")
_COND_WAIT = "sync.(*Cond).Wait"
_LOCK_SLOW = "sync.(*Mutex).lockSlow"
_FOREVER = {"chan receive (nil chan)": "receive from a nil channel",
            "chan send (nil chan)": "send to a nil channel",
            "select (no cases)": "a select without cases"}  # fmt: skip
# offset of a field from the address of a channel or of a semaphore
_QUEUED, _CAPACITY = 0, 8  # channel
_MUTEX_STATE = -4  # bit 0: locked
_MISSING = -4  # WaitGroup: Done calls
_READERS_OF_WRITER = 12  # RWMutex.readerWait, from writerSem
_MAX_NAMED = 5  # goroutines or channels that a sentence names


class _Lock(NamedTuple):
    kind: str
    text: str
    semaphore: int  # bytes from the lock to the semaphore
    release: str = ""  # deferred call that releases it, see `Unlock.text`; "": none does
    released: int = 0  # bytes from the lock to the lock of that call


_MUTEX = _Lock("mutex", "mutex", 4, "Unlock")
_SEMAPHORE = _Lock("semaphore", "semaphore", 0)
_WRITER = _Lock("write lock", "the write lock of RWMutex", 8, "RUnlock")
_LOCKS = {  # key: function that waits, and whether it waits in the mutex of the lock
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
    goroutines: tuple[int, ...] = ()  # those that are known to be able to end the wait
    details: Mapping[str, Any] = {}  # further facts, by key of the JSON document

    @property
    def only(self) -> int | None:
        """The only goroutine that can end the wait, unless the program has released the lock before."""
        return self.goroutines[0] if len(self.goroutines) == 1 == self.details.get("readers", 1) else None

    def json(self) -> dict[str, Any]:
        """Return the value in the JSON document."""
        address = hex(self.address) if self.address else None
        return {"kind": self.kind, "text": self.text, "address": address,
                "goroutines": list(self.goroutines), **self.details}  # fmt: skip


def place_of(functions: Sequence[NamedFrame]) -> str:
    """Return the innermost function of the program, with file and line; "": there is none."""
    return next((f.text for f in functions if not (f.function or "").startswith(_RUNTIME)), "")


def names_of(ids: Collection[int]) -> str:
    """Return a text for several goroutines: "goroutine 7", "goroutines 7, 8 and 12 more"."""
    named = ", ".join(map(str, sorted(ids)[:_MAX_NAMED]))
    more = f" and {len(ids) - _MAX_NAMED} more" * (len(ids) > _MAX_NAMED)
    return f"goroutine{'s' * (len(ids) > 1)} {named}{more}"


class GoWaits:
    """Finds the waits of all goroutines of one process."""

    def __init__(self, dump: ProcessDump) -> None:
        self._dump = dump
        self._channels = cache(self._wait_for_channels)  # 100,000 goroutines may wait for one channel
        self._waiters: dict[int, set[int]] = {}  # ids by address of a channel or a semaphore
        self._releasers: dict[tuple[int, str], set[int]] = {}  # ids by lock and call
        for group in dump.goroutines:
            may_hold = not any(name.function == _COND_WAIT for name in group.functions)
            for member in group.members:
                for address in member.wait.objects:
                    self._waiters.setdefault(address, set()).add(member.id)
                for unlock in member.unlocks if may_hold else ():
                    self._releasers.setdefault(unlock, set()).add(member.id)

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
        if lock is not None:
            return self._lock(member.id, lock, wait.objects[0])
        return self._channels(state, wait.objects)

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
        texts = [self._channel(channel) for channel in channels]
        if state.startswith("select"):
            more = f" and {len(texts) - _MAX_NAMED} more" * (len(texts) > _MAX_NAMED)
            text = f"waits for one of {len(texts)} channels: {', '.join(texts[:_MAX_NAMED])}{more}"
            return Waiting("select", text, details={"channels": [hex(channel) for channel in channels]})
        channel = channels[0]
        verb = "to receive from" if state.startswith("chan receive") else "to send to"
        facts = {"queued": self._number(channel, _QUEUED, 8), "capacity": self._number(channel, _CAPACITY, 8)}
        others, details = self._others(channel)
        return Waiting("channel", f"waits {verb} {texts[0]}{others}", channel, details=facts | details)

    def _channel(self, channel: int) -> str:
        queued, capacity = self._number(channel, _QUEUED, 8), self._number(channel, _CAPACITY, 8)
        buffer = f"{queued} of {capacity} in its buffer" if capacity else "no buffer"
        return f"channel {channel:#x}" + f" ({buffer})" * (capacity is not None)

    def _others(self, address: int) -> tuple[str, dict[str, Any]]:
        """Return a text and a fact: how many goroutines wait for the same channel or semaphore."""
        count = len(self._waiters[address])
        return f"; {count} goroutines wait for it" * (count > 1), {"waiting": count}

    def _number(self, address: int, offset: int, size: int = 4) -> int | None:
        """Return an unsigned number out of a channel or a lock; None: it could not be read."""
        copy, start = self._dump.go.objects.get(address), offset - OBJECT_START
        return None if copy is None else int.from_bytes(copy[start : start + size], "little")

    def _lock(self, goid: int, lock: _Lock, semaphore: int) -> Waiting:
        address = semaphore - lock.semaphore
        text, (others, details) = f"waits for {lock.text} {address:#x}", self._others(semaphore)
        if not lock.release:
            if lock.kind == "wait group" and (missing := self._number(semaphore, _MISSING)) is not None:
                text += f": {_count(missing, 'Done call')} {'is' if missing == 1 else 'are'} missing"
                details["missing"] = missing
            return Waiting(lock.kind, text + others, address, details=details)
        if lock.kind == "mutex" and not (self._number(semaphore, _MUTEX_STATE) or 0) & 1:
            return Waiting(lock.kind, f"{text}, which is not locked now", address, details=details)
        if lock == _WRITER and (readers := self._number(semaphore, _READERS_OF_WRITER)):
            text += f", held by {_count(readers, 'reader')}"
            details["readers"] = readers
        known, text = self._releasers_of(goid, lock, semaphore, text)
        return Waiting(lock.kind, text + others, address, known, details)

    def _releasers_of(self, goid: int, lock: _Lock, semaphore: int, text: str) -> tuple[tuple[int, ...], str]:
        """Return the goroutines that can end a wait for a lock, and the text with them."""
        address = semaphore - lock.semaphore
        found = self._releasers.get((address + lock.released, lock.release), set())
        # one that waits for the same lock has unlocked it in between, unless it alone has a deferred call
        known = tuple(sorted(found - self._waiters[semaphore] or found & {goid}))
        writers = self._waiters.get(address + _WRITER.semaphore, ()) if lock.kind == "read lock" else ()
        if writers and not known:
            names = names_of(writers)
            return tuple(sorted(writers)), f"{text}, behind {names} in its queue for the write lock"
        is_own, call = known == (goid,), lock.release.rpartition(" ")[2]
        if lock.kind == "once" and known:
            return (
                known,
                f"{text}, whose function {'it runs itself' if is_own else f'{names_of(known)} runs'}",
            )
        if not known:
            return (), f"{text}; no deferred {call} of it was found, and Go notes no owner"
        name = "only this goroutine" if is_own else names_of(known)
        return known, f"{text}; {name} {'have' if len(known) > 1 else 'has'} a deferred {call} of it pending"


def _lock_of(group: GoroutineGroup) -> _Lock:
    """Return the lock that the goroutines of a group wait for, by the functions in which they wait."""
    functions = (name.function or "" for name in group.functions)
    names = [*takewhile(lambda name: name.startswith(_RUNTIME), functions)]
    is_mutex = any(name.endswith(_LOCK_SLOW) for name in names)
    default = _MUTEX if is_mutex else _SEMAPHORE
    return next((_LOCKS[name, is_mutex] for name in names if (name, is_mutex) in _LOCKS), default)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"
