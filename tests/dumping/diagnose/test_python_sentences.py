"""What a verdict says of Python: the user's function, the chain of tasks, a full pool, a loop that stands."""

from sfsample.core.python_view import PythonView
from sfsample.core.wait_kind import WaitKind
from sfsample.dumping.diagnose.named_thread import NamedThread
from sfsample.dumping.diagnose.verdict import judge
from sfsample.dumping.diagnose.wait_graph import Node
from sfsample.dumping.diagnose.wording import Wording, chain_text
from sfsample.dumping.text import Style, dump_text
from sfsample.modules.location import PythonPlace
from sfsample.process.facts.syscall_arguments import DecodedSyscall
from sfsample.process.proc_text import SyscallInfo
from sfsample.runtimes.cpython.python_stack import PythonStack
from sfsample.runtimes.cpython.tasks import Task
from sfsample.runtimes.cpython.threads import Gil
from sfsample.runtimes.cpython.waits import Pool, PythonFacts, PythonWait
from sfsample.waiting.waits import Wait
from tests.builders.hang_builder import WAIT, _PathModule, futex, process, seen, thread

LIB = "/usr/lib/python3.12"
EPOLL = DecodedSyscall(SyscallInfo(232, (3, 0, 0, 0, 0, 0)), "epoll_wait", ("3",))


def place(function: str, file: str) -> PythonPlace:
    return PythonPlace(function, file, 1, 1)


def in_python(
    *places: tuple[str, str], tid: int = 1, runs: tuple[int, int] = (5, 5), **facts: object
) -> NamedThread:
    """Return a thread in these functions and files, innermost first, that was seen twice."""
    named = seen(thread("f", tid=tid, call=EPOLL), 1.0, 2.0, runs)
    stack = PythonStack(((0, tuple(place(*each) for each in places)),), is_whole=True)
    return named._replace(dump=named.dump._replace(python=stack, facts=PythonFacts()._replace(**facts)))


def test_the_first_function_outside_the_standard_library_is_named() -> None:
    deep = [
        ("read", f"{LIB}/socket.py"),
        ("begin", f"{LIB}/http/client.py"),
        ("do", f"{LIB}/urllib/request.py"),
    ]
    for file in (
        "/srv/shop.py",
        f"{LIB}/site-packages/shop.py",
        "/usr/lib/python3/dist-packages/shop.py",
        "<stdin>",
    ):
        where = "<stdin>:1" if file == "<stdin>" else "shop.py:1"
        assert in_python(*deep, ("fetch", file)).call_path() == f"read <- begin <- ... <- fetch ({where})"
        assert in_python(*deep[:2], ("fetch", file)).call_path() == f"read <- begin <- fetch ({where})"
    for file in ("/usr/lib/python312.zip/runpy.py", "<frozen runpy>", f"{LIB}/runpy.py"):
        assert in_python(*deep, ("run", file)).call_path() == "read (socket.py:1) <- begin <- do"


def test_the_user_s_function_is_named_before_those_of_packages() -> None:
    """The program that starts a server is installed, too."""
    package = ("send", f"{LIB}/site-packages/requests/api.py")
    view, start = ("view", "/srv/shop.py"), ("<module>", "/srv/venv/bin/gunicorn")
    assert in_python(package, view, start).call_path() == "send <- view (shop.py:1) <- <module>"
    assert in_python(package, start).call_path() == "send (requests/api.py:1) <- <module>"
    assert in_python(*[view] * 5, start).call_path() == "view (shop.py:1, x 5) <- <module>"


def task(address: int, name: str, awaits: str, *on: int, function: str = "f") -> Task:
    own = place(function, "/srv/shop.py")
    return Task(address, name, (place("Event.wait", f"{LIB}/asyncio/locks.py"), own), awaits, on)


def test_a_chain_of_tasks_goes_to_its_end() -> None:
    end = task(3, "reader", "asyncio.Event 0x9 to be set", function="read")
    middle = task(2, "Task-2", "2 tasks, in asyncio.gather", 3, 4)
    assert chain_text((end, task(1, "Task-1", "task Task-2", 2), middle)) == (
        "task Task-1 waits for task Task-2, which waits for 2 tasks, in asyncio.gather, of them reader, "
        "which waits for asyncio.Event 0x9 to be set, in read (shop.py:1)"
    )
    assert chain_text((task(1, "a", "task b", 2), task(2, "b", "task a", 1))) == "", "a circle is a deadlock"
    assert chain_text((task(1, "a", "task b", 2), task(2, "b", "b", 2))) == (
        "task a waits for task b, which waits for b, in f (shop.py:1)")  # fmt: skip
    sleeper = task(1, "Task-1", "9 s of asyncio.sleep")
    assert chain_text((sleeper, end)).startswith("task reader waits"), "a sleep ends by itself"
    assert chain_text(()) == ""


def test_the_longest_chain_of_tasks_is_told_and_the_tasks_behind_it_are_counted() -> None:
    server, holder = task(1, "Task-1", "Server.serve_forever of asyncio"), task(2, "holder", "asyncio.Event")
    users = [task(at, f"user-{at}", "asyncio.Lock 0x7", 2)._replace(held_by="holder") for at in (3, 4, 5)]
    assert chain_text((server, holder, *users)) == (
        "task user-3 waits for asyncio.Lock 0x7, held by task holder, which waits for asyncio.Event, "
        "in f (shop.py:1); 2 more tasks wait behind them"
    )


def predicate(one: NamedThread, kind: WaitKind = WaitKind.EVENTS) -> str:
    [node] = judge([process(one)]).waits
    return Wording({node: one}, {node: Wait(kind, "events")}, {1: "app"}, {}, frozenset({1})).sentence(node)


def test_the_process_that_acts_is_named_again_after_a_clause_about_it() -> None:
    waiter, listener = Node(1, 1), Node(7, 7)
    threads = {waiter: thread("read"), listener: thread("accept", tid=7, pid=7)}
    wait = Wait(
        WaitKind.READ, "data", pids=(7,), note="which listens there, and has not accepted the connection"
    )
    words = Wording(threads, {waiter: wait}, {1: "app", 7: "shop"}, {}, frozenset({1, 7}))
    assert words.chain((waiter, listener)).endswith(
        "process 7 (shop), which listens there, and has not accepted the connection; "
        "process 7 (shop) sleeps, in accept"
    )


def test_an_idle_loop_names_its_tasks_and_a_callback_blocks_one() -> None:
    select, callback = ("select", f"{LIB}/selectors.py"), ("Handle._run", f"{LIB}/asyncio/events.py")
    tasks = (task(1, "Task-1", "asyncio.Event 0x9 to be set"),)
    assert predicate(in_python(select, tasks=tasks)).endswith(
        "asyncio tasks: task Task-1 waits for asyncio.Event 0x9 to be set, in f (shop.py:1)"
    )
    own = ("bad", "/srv/shop.py")
    blocked = predicate(in_python(select, own, callback, tasks=tasks))
    assert blocked.startswith("bad (shop.py:1) blocks the event loop: process 1 (app) ")
    assert blocked.endswith(", in select <- bad (shop.py:1) <- Handle._run")
    assert "event loop" not in predicate(in_python(own, callback, runs=(5, 6)))
    uvloop = in_python(own, tasks=tasks)
    assert predicate(uvloop, WaitKind.SLEEP).startswith("bad (shop.py:1) blocks the event loop: ")
    assert "event loop" not in predicate(uvloop)


def test_a_blocked_loop_of_another_thread_is_a_finding() -> None:
    callback, own = ("Handle._run", f"{LIB}/asyncio/events.py"), ("bad", "/srv/shop.py")
    found = judge([process(in_python(own), in_python(own, callback, tid=2))]).findings
    assert [(finding.kind, finding.nodes[0].tid) for finding in found] == [("event loop", 2), ("main", 1)]
    assert found[0].text.startswith("bad (shop.py:1) blocks the event loop: thread 2 (app) ")


def findings(*threads: NamedThread) -> list[str]:
    return [finding.text for finding in judge([process(*threads)]).findings if finding.kind == "blocked"]


def test_a_pool_whose_workers_are_all_busy_names_their_function() -> None:
    pool, job = Pool(0x30, 2, frozenset({7, 8, 9})), ("job", "/srv/shop.py")
    first, second = worker(job, 2, pool), worker(job, 3, pool)
    assert findings(first, second) == ["3 calls wait for a pool of 2 threads, all in job (shop.py:1)"]
    assert findings(first) == [], "the other worker may be free"
    assert findings(first, worker(job, 3, pool, counts=(5, 6))) == [], "it ran between the looks"
    idle = first._replace(dump=first.dump._replace(facts=PythonFacts(pool=pool)))
    assert findings(idle, second) == []
    alone = Pool(0x30, 1, frozenset({7}))
    assert findings(worker(job, 2, alone)) == ["1 call waits for a pool of 1 thread, in job (shop.py:1)"]


def worker(job: tuple[str, str], tid: int, pool: Pool, counts: tuple[int, int] = (5, 5)) -> NamedThread:
    one = in_python(job, tid=tid, runs=counts)
    return one._replace(dump=one.dump._replace(facts=PythonFacts(runs=(1,), pool=pool)))


def test_a_wait_for_the_gil_has_no_time() -> None:
    one = thread("f", call=EPOLL)
    dump = one.dump._replace(idle_s=0.004)
    [node] = judge([process(one)]).waits
    waits = {node: Wait(WaitKind.GIL, "the GIL", 7)}
    wording = Wording({node: one._replace(dump=dump)}, waits, {1: "app"}, {}, frozenset({1}))
    assert wording.predicate(node).startswith("waits for the GIL, held by ")


def test_a_thread_that_has_just_got_the_gil_does_not_wait_for_it() -> None:
    def wait(holder: int) -> Wait | None:
        one = thread("f", call=futex(0x1010, WAIT, 0))
        one = one._replace(dump=one.dump._replace(gil=Gil(0x1000, 0x1100, holder)))
        [found] = judge([process(one)]).waits.values()
        return found

    assert wait(1) is None
    waits = wait(2)
    assert waits
    assert waits.kind is WaitKind.GIL


def waiter(tid: int, lock: int, *uses: int, runs: tuple[int, int] = (5, 5)) -> NamedThread:
    """Return a thread that waits for a Lock; it uses these Locks."""
    wait = PythonWait(WaitKind.LOCK, f"threading.Lock {lock:#x}", lock)
    one = in_python(("f", "/srv/shop.py"), tid=tid, runs=runs, wait=wait, uses=frozenset(uses))
    return one._replace(dump=one.dump._replace(call=futex(lock, WAIT, 0)))


def test_threads_that_wait_for_locks_that_only_they_use_are_a_likely_deadlock() -> None:
    def likely(*threads: NamedThread) -> list[str]:
        found = judge([process(*threads)]).findings
        return [finding.text for finding in found if finding.kind == "likely deadlock"]

    first, second = waiter(2, 0xA, 0xA, 0xB), waiter(3, 0xB, 0xA, 0xB)
    said = ["DEADLOCK is likely: 2 threads wait for Locks that only they use"]
    idle = in_python(("g", "/srv/shop.py"), tid=4, uses=frozenset())
    assert likely(first, second, idle) == said
    kinds = [finding.kind for finding in judge([process(first, second, idle)]).findings]
    assert kinds == ["likely deadlock"], "no sentence twice"
    behind = [f"{said[0]}; 1 more thread waits behind them (app)"]
    assert likely(first, second, waiter(4, 0xA, 0xA)) == behind, "a thread behind them cannot act"
    assert likely(first, waiter(3, 0xA, 0xA, 0xB)) == [], "both wait for one Lock: another thread has it"
    assert likely(first, second, in_python(("g", "x.py"), tid=4, uses=frozenset({0xA}))) == []
    assert likely(first, second, in_python(("g", "x.py"), tid=4)) == [], "what it uses is unknown"
    assert likely(first, waiter(3, 0xB, 0xA, 0xB, runs=(5, 6))) == [], "it ran between the looks"
    lost = thread("h", tid=4)
    assert (
        likely(first, second, lost._replace(dump=lost.dump._replace(stack=None, modules=()), frames=())) == []
    )


def native_shown(*paths: str, call: DecodedSyscall | None, view: PythonView = PythonView.AUTO) -> list[int]:
    """Return the numbers of the native frames that are shown; the second last evaluates Python code."""
    native = thread(*("g" for _ in paths), call=call)
    run = (len(paths) - 2, (place("f", "/srv/shop.py"),))
    dump = native.dump._replace(
        modules=tuple(map(_PathModule, paths)), python=PythonStack((run,), is_whole=True)
    )
    return [number for number, _ in native._replace(dump=dump).rows_beside_python(view, None)]


def test_native_frames_are_shown_where_they_say_more_than_python() -> None:
    libc, python, program = "/lib/libc.so.6", "/usr/lib/libpython3.12.so.1.0", "/usr/bin/python3.12"
    numpy, select = "/srv/numpy/core.so", f"{LIB}/lib-dynload/select.so"
    assert native_shown(libc, select, python, program, call=EPOLL) == []
    assert native_shown(libc, select, python, program, call=None) == [0, 1], "it runs in them"
    assert native_shown(libc, numpy, python, program, call=EPOLL) == [0, 1]
    assert native_shown(libc, select, python, "/usr/bin/uwsgi", call=EPOLL) == [3]
    assert native_shown(libc, numpy, python, program, call=EPOLL, view=PythonView.ONLY) == []
    assert native_shown(libc, select, python, program, call=EPOLL, view=PythonView.ALL) == [0, 1, 2, 3]
    assert [*dict(thread("f", "g").rows_beside_python(PythonView.ONLY, None))] == [0, 1], "it runs no Python"


def test_a_recursion_of_python_is_one_line_unless_its_locals_differ() -> None:
    deep = in_python(*[("rec", "/srv/shop.py")] * 9, ("main", "/srv/shop.py"))

    def lines(one: NamedThread) -> list[str]:
        return [line for line in dump_text(judge([process(one)]), Style(str)) if line.startswith("  py")]

    assert lines(deep) == ["  py0   rec  /srv/shop.py:1 x 9", "  py9   main  /srv/shop.py:1"]
    facts = PythonFacts(locals=tuple((("n", str(at // 2)),) for at in range(10)))
    assert len(lines(deep._replace(dump=deep.dump._replace(facts=facts)))) == 6
