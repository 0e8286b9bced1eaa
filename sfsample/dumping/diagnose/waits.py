"""What one thread waits for, and who has to act.

Law: said only what the kernel or the structure itself tells; a wait whose other side is not known has none.
One answer per thread: what is most telling.
"""

from sfsample.dumping.diagnose.glibc_locks import Lock, lock_of
from sfsample.dumping.diagnose.io_waits import at_descriptor
from sfsample.dumping.diagnose.named_thread import NamedThread
from sfsample.dumping.diagnose.wait import ENDLESS_S, Scene, Wait
from sfsample.process.facts.syscall_arguments import Call

_SLEEPS = ("nanosleep", "clock_nanosleep")
_CHILD = ("wait4", "waitid")
_FORKS = ("vfork", "clone", "clone3")
_LOCKS = ("flock", "fcntl")
# Where the kernel keeps those of a frozen cgroup; in get_signal, where the compiler has put do_freezer_trap,
# nothing else sleeps but in states T and t.
_FREEZERS = ("__refrigerator", "do_freezer_trap", "get_signal")
_SIGNALS = ("pause", "rt_sigsuspend", "rt_sigtimedwait")
_LOCK_WORDS = {"mutex": "mutex {}", "read lock": "the read lock of rwlock {}",
               "write lock": "the write lock of rwlock {}",
               "condition": "a signal on condition variable {}",
               "semaphore": "semaphore {}", "barrier": "the others at barrier {}",
               "once": "an initialisation that another thread has begun"}  # fmt: skip
# What programs say by the function they wait in, where nothing else can tell.
_KNOWN = {
    "XactLockTableWait": "another transaction to end, a row lock; SELECT pg_blocking_pids({pid}) names it",
    "ProcSleep": "a PostgreSQL lock: SELECT pg_blocking_pids({pid}) names who holds it",
}


def wait_of(thread: NamedThread, scene: Scene) -> Wait | None:
    """Return what a thread waits for; None: it runs, or there is no telling."""
    state, call = thread.dump.state, thread.dump.call
    if state in ("T", "t"):
        return _stopped(state, scene)
    if thread.dump.wchan in _FREEZERS:
        return Wait("stopped", "its cgroup to be thawed", verb="is frozen, and waits for")
    if state == "R" or call is None:
        return _uninterruptible(thread) if state == "D" else None
    found = _known(thread, scene) or _by_call(thread, call, scene) or _uninterruptible(thread)
    return found and found._replace(timed=_ends_by_itself(call))


def _ends_by_itself(call: Call) -> bool:
    return any(length is not None and length < ENDLESS_S for length in (call.asked_s, call.left_s))


def _stopped(state: str, scene: Scene) -> Wait:
    if state == "T" or scene.dump.tracer is None:
        return Wait(
            "stopped", f"a signal to go on, kill -CONT {scene.dump.pid}", verb="is stopped, and waits for"
        )
    pid, name = scene.dump.tracer
    return Wait("stopped", f"process {pid} ({name}), which traces it", verb="is stopped by")


def _known(thread: NamedThread, scene: Scene) -> Wait | None:
    title = " ".join(scene.dump.cmdline)
    if title.startswith("postgres: ") and title.endswith(" waiting"):  # PostgreSQL says so itself
        return Wait(
            "database lock", f"a PostgreSQL lock: SELECT pg_blocking_pids({scene.dump.pid}) names who has it"
        )
    raw = {name.raw for names in thread.frames for name in names}
    words = next((words for function, words in _KNOWN.items() if function in raw), None)
    return Wait("database lock", words.format(pid=scene.dump.pid)) if words else None


def _by_call(thread: NamedThread, call: Call, scene: Scene) -> Wait | None:
    name = call.name or ""
    if name == "futex":
        return _futex(thread, call, scene)
    if name in _LOCKS:
        return _file_lock(call, scene)
    if name in _SLEEPS:
        return Wait("sleep", _left(thread, call), idle=True, verb="sleeps")
    if name in _CHILD:
        return _child(call, scene)
    if name in _FORKS and thread.dump.state == "D":
        return _vfork(scene)
    if name in _SIGNALS:
        return Wait("signal", "a signal", idle=True)
    return at_descriptor(thread, call, scene)


# -- locks


def _futex(thread: NamedThread, call: Call, scene: Scene) -> Wait:
    lock = lock_of(thread, scene.others)
    if lock is None:
        return Wait("futex", f"futex {call.words[0]}", idle=True)
    owner = scene.tids.get(lock.owner) if lock.owner is not None else None
    if lock.kind == "thread":
        return Wait("thread", "the end of", owner)
    variable = scene.variable(lock.address)
    what = _LOCK_WORDS[lock.kind].format(
        f"{variable} ({lock.address:#x})" if variable else f"{lock.address:#x}"
    )
    return Wait(
        lock.kind, what, owner, note=_owner_note(lock, owner), idle=lock.kind in ("condition", "semaphore")
    )


def _owner_note(lock: Lock, owner: int | None) -> str:
    if lock.owner is not None and owner is None:
        return f"held by thread {lock.owner}, {lock.note}"
    return lock.note


def _file_lock(call: Call, scene: Scene) -> Wait | None:
    """Find the lock by the file and by us among the waiters."""
    inodes = {descriptor.inode for descriptor in call.descriptors}
    found = next((lock for lock in scene.dump.locks if lock.inode in inodes), None)
    if found is None:
        return None
    what = f"the {'flock' if call.name == 'flock' else 'record lock'} on {call.descriptors[0].text}"
    return Wait("file lock", what, pids=(found.holder,) if found.holder > 0 else ())


# -- time, children, the kernel


def _left(thread: NamedThread, call: Call) -> str:
    """Say how long it will sleep: from its end, or from its length and since when it sleeps."""
    left = call.left_s
    if left is None and call.asked_s is not None and thread.dump.idle_s is not None:
        left = max(0.0, call.asked_s - thread.dump.idle_s)
    if left is None:
        return f"{call.asked_s:g} s" if call.asked_s is not None else ""
    return f"{left:.1f} s more{f' of {call.asked_s:g} s' if call.asked_s is not None else ''}"


def _child(call: Call, scene: Scene) -> Wait:
    if call.words[0] == "any child":
        names = [f"{pid} ({name})" for pid, name in scene.dump.children]
        pids = tuple(pid for pid, _ in scene.dump.children)
        which = f": {', '.join(names[:3])}{', ...' * (len(names) > 3)}" if names else ""
        return Wait("child", f"a child to end{which}", pids=pids)
    pid = int(call.words[0].rpartition(" ")[2])
    name = dict(scene.dump.children).get(pid)
    return Wait("child", f"child {pid}{f' ({name})' if name else ''} to end", pids=(pid,) if name else ())


def _vfork(scene: Scene) -> Wait:
    names = [f"{pid} ({name})" for pid, name in scene.dump.children]
    pids = tuple(pid for pid, _ in scene.dump.children)
    which = f": one of {', '.join(names)}" if len(names) > 1 else f" {''.join(names)}".rstrip()
    return Wait("vfork", f"its vfork child{which} to exec or to end", pids=pids if len(pids) == 1 else ())


def _uninterruptible(thread: NamedThread) -> Wait | None:
    """Say where in the kernel; a file system or device that does not answer is usually behind it."""
    if thread.dump.state != "D":
        return None
    call, where = thread.dump.call, thread.dump.wchan or "?"
    doing = f" for {call.name}({', '.join(call.words)})" if call and call.name else ""
    return Wait(
        "kernel", f"the kernel{doing}, uninterruptibly, in {where}: a disk, a file server or a FUSE daemon"
    )
