"""Classes of waits in reports and formats."""

import pytest

from sfsample.report.formats import FORMATS, parse
from sfsample.report.formats.html import page_data
from sfsample.report.report import OUTERMOST, SAMPLES, WALL, Report, ReportBuilder, ReportThread
from sfsample.report.stats import ReportStats, sum_stats
from sfsample.report.waits import by_wait, fold_idle, lock_lines, wait_lines, wait_of
from sfsample.symbolize.named_frame import NamedFrame

LOCK = NamedFrame("[mutex a]", "[mutex a]", "lock", kind="w", found="wait")
SLEEP = NamedFrame("[sleep]", "[sleep]", "sleep", kind="w", found="wait")
MAIN = NamedFrame("main", "main")


def report() -> Report:
    builder, thread = ReportBuilder(), ReportThread("app", "app", 1, 1)
    for frames in ([MAIN], [LOCK, MAIN], [SLEEP, MAIN, LOCK, MAIN]):
        builder.add(thread, frames, OUTERMOST, (1,))
    return builder.finish()


def classes(of: Report) -> list[str | None]:
    return [wait_of(of, stack) for stack in of.stacks]


def test_the_class_of_a_stack_is_that_of_the_waiter() -> None:
    assert classes(report()) == [None, "lock", "lock"]


def test_by_wait_makes_the_class_the_first_frame() -> None:
    folded = FORMATS["folded"].write(by_wait(report())).decode().splitlines()
    assert folded == [
        "app;[lock];main;[mutex a] 1", "app;[lock];main;[mutex a];main;[sleep] 1", "app;[no wait];main 1"
    ]  # fmt: skip


def test_formats_keep_the_classes() -> None:
    for name in ("json", "pprof"):
        assert classes(parse(FORMATS[name].write(report()))) == [None, "lock", "lock"]


def made(*rows: tuple[str, list[NamedFrame], int]) -> Report:
    builder = ReportBuilder((SAMPLES, WALL))
    for tid, (name, frames, samples) in enumerate(rows):
        builder.add(ReportThread("app", name, 1, tid), frames, OUTERMOST, (samples, samples * 10**7))
    return builder.finish()


def texts(report: Report) -> list[list[str]]:
    return [[report.frames[at].text for at in stack.frames] for stack in report.stacks]


CONDITION = NamedFrame(
    "[condition variable work]", "[condition variable work]", "condition", kind="w", found="pool"
)
EPOLL = NamedFrame("[epoll_wait]", "[epoll_wait]", "event", kind="w", found="idle")
TAKES = NamedFrame("pthread_mutex_lock", "pthread_mutex_lock", module="/lib/libc.so.6")
MUTEX = NamedFrame("[mutex]", "[mutex]", "lock", kind="w", found="wait")
HELD, FLUSH = NamedFrame("[held by]writer", "[held by]writer"), NamedFrame("flush", "flush")


def test_threads_that_wait_for_work_are_folded() -> None:
    folded, idle = fold_idle(made(("loop", [EPOLL, MAIN], 7), ("main", [LOCK, MAIN], 5)))
    assert texts(folded) == [["[idle: loop]"], ["[mutex a]", "main"]]
    assert idle == {"loop": 7}
    assert classes(folded) == ["event", "lock"]


def test_a_pool_is_idle_if_more_than_half_of_it_waits_in_one_stack() -> None:
    waits = [CONDITION, MAIN]
    pool = [("worker-1", waits, 9), ("worker-2", waits, 9), ("worker-3", [MAIN], 9)]
    assert fold_idle(made(*pool))[1] == {"worker-*": 18}
    assert fold_idle(made(*pool, ("worker-4", [MAIN], 9)))[1] == {}, "half of them"
    assert fold_idle(made(("worker-1", waits, 9)))[1] == {}, "it is alone"
    elsewhere = ("worker-4", [MAIN, NamedFrame("other_pool", "other_pool")], 9)
    assert fold_idle(made(*pool, elsewhere))[1] == {"worker-*": 18}, "it is no worker of this pool"
    brief = [CONDITION._replace(found="wait"), MAIN]
    more = ("worker-4", waits, 9), ("worker-5", brief, 5)
    assert fold_idle(made(*pool, *more))[1] == {"worker-*": 32}, "brief waits of the pool too"
    assert fold_idle(made(("worker-1", brief, 9), ("worker-2", brief, 9)))[1] == {}, "they take turns"
    other = [CONDITION, MAIN, MAIN]
    assert fold_idle(made(*pool[:1], ("worker-2", other, 9)))[1] == {}, "they wait at two places"


def test_nameless_lock_of_a_task_has_the_name_of_the_first_function_outside_asyncio() -> None:
    lock = NamedFrame("[asyncio.Lock]", "[asyncio.Lock]", "lock", kind="w", found="wait")
    acquire = NamedFrame("Lock.acquire", file="/usr/lib/python3.12/asyncio/locks.py", kind="p")
    handle = NamedFrame("handle", file="/app/handle.py", kind="p")
    assert [*lock_lines(made(("a", [lock, acquire, handle], 10)), 5)] == ["0.10 s [asyncio.Lock] in handle"]


@pytest.mark.parametrize("library", ["libpython3.11.so.1.0", "python3.12", "libstdc++.so.6", "libc.so.6"])
def test_a_lock_without_a_name_has_that_of_no_function_of_a_runtime_library(library: str) -> None:
    lock = NamedFrame("[threading.Lock]", "[threading.Lock]", "lock", kind="w", found="wait")
    takes = NamedFrame("acquire_timed", "acquire_timed", module=f"/usr/bin/{library}")
    assert [*lock_lines(made(("a", [lock, takes, MAIN], 10)), 5)] == ["0.10 s [threading.Lock] in main"]


def test_nameless_channel_has_the_name_of_the_function_that_waits_for_it() -> None:
    receive = NamedFrame("[chan receive]", "[chan receive]", "condition", kind="w", found="wait")
    assert [*lock_lines(made(("a", [receive, MAIN], 10)), 5)] == ["0.10 s [chan receive] in main"]


def test_table_of_waits_has_the_time_and_the_holder() -> None:
    report = made(
        ("a", [FLUSH, HELD, MUTEX, TAKES, MAIN], 30), ("b", [MUTEX, TAKES, MAIN], 10),
        ("c", [LOCK, MAIN], 20), ("d", [SLEEP, MAIN, HELD, LOCK, MAIN], 10),
        ("e", [EPOLL, MAIN], 20), ("f", [MAIN], 10),
    )  # fmt: skip
    assert [*wait_lines(report, {"e": 20})] == [
        "waiting   70.0 % of the threads' time: lock 70.0 %",
        "          0.40 s [mutex] in main, 75 % of it held by writer, in flush",
        "          0.30 s [mutex a], 33 % of it held by writer, in main [sleep]",
        "idle      20 samples of e: they sleep or wait for work (--idle shows them)",
    ]
    assert [*wait_lines(made(("f", [MAIN], 10)), {})] == []


def test_a_lock_without_a_name_has_that_of_its_taker() -> None:
    for text in ("[condition variable]", "[read lock]", "[libc lock]"):
        frame = NamedFrame(text, text, "condition", kind="w", found="wait")
        assert [*lock_lines(made(("a", [frame, TAKES, MAIN], 10)), 5)] == [f"0.10 s {text} in main"]


def test_functions_of_the_libraries_of_python_and_cpp_take_no_lock() -> None:
    queue = NamedFrame("Queue.put (queue.py:1)", file="/usr/lib/python3.12/queue.py", kind="p")
    own = NamedFrame("put (queue.py:1)", file="/app/queue.py", kind="p")
    assert [*lock_lines(made(("a", [MUTEX, queue, own], 10)), 5)] == ["0.10 s [mutex] in put (queue.py:1)"]
    header = [
        NamedFrame(text)
        for text in ("__gthread_lock(int)", "std::mutex::lock()", "<std::sys::Mutex>::lock", "app::get()")
    ]
    assert [*lock_lines(made(("a", [MUTEX, *header, MAIN], 10)), 5)] == ["0.10 s [mutex] in app::get()"]


def waiters(**most: dict[str, int]) -> ReportStats:
    return ReportStats({"most_waiters": most})


def test_table_of_waits_has_the_most_waiters_at_once_and_says_if_there_are_several_holders() -> None:
    stacks = [
        ("a", [MAIN, HELD, LOCK, MAIN], 10), ("b", [SLEEP, MAIN, HELD, LOCK, MAIN], 15),
        ("c", [FLUSH, HELD, LOCK, MAIN], 20), ("d", [LOCK, MAIN], 5),
    ]  # fmt: skip
    report = made(*stacks)._replace(stats=waiters(one={"[mutex a]": 2}, two={"[mutex a]": 1, "[GIL]": 7}))
    assert [*lock_lines(report, 5)] == [
        "0.50 s [mutex a] (at most 2 threads at once), 90 % of it held by writer, in main [sleep], and others"
    ]
    brief = report._replace(duration_ns=200_000_000)
    assert "(at most 2 threads at once, for each of several)" in next(lock_lines(brief, 5))


def test_a_sum_has_the_most_waiters_of_its_parts() -> None:
    total = sum_stats([waiters(one={"a": 2, "b": 1}), waiters(one={"a": 1, "b": 4}), ReportStats({"x": 1})])
    assert total.most_waiters == {"a": 2, "b": 4}
    assert sum_stats([total, total]).most_waiters == total.most_waiters
    assert ReportStats({"most_waiters": [7]}).most_waiters == {}, "a file can contain anything"


def test_the_page_has_the_table_of_waits() -> None:
    data = page_data(made(("a", [LOCK, MAIN], 30)), threads=False)
    assert data["waits"] == [
        "waiting   100.0 % of the threads' time: lock 100.0 %",
        "          0.30 s [mutex a]",
    ]
    assert page_data(made(("a", [MAIN], 30)), threads=False)["waits"] == []


def mark(name: str) -> NamedFrame:
    return NamedFrame(f"[held by]{name}", f"[held by]{name}")


OTHER = NamedFrame("[mutex b]", "[mutex b]", "lock", kind="w", found="wait")
IN_A, IN_B = NamedFrame("in_a", "in_a"), NamedFrame("in_b", "in_b")


def test_the_first_holder_of_a_chain_has_its_own_function_and_wait() -> None:
    chain = [SLEEP, IN_B, mark("b"), OTHER, IN_A, mark("a"), LOCK, MAIN]
    assert [*lock_lines(made(("t", chain, 10)), 5)] == [
        "0.10 s [mutex a], 100 % of it held by a, in in_a [mutex b]"
    ]


def test_a_cycle_names_no_mark_as_a_function() -> None:
    cycle = [mark("t (a cycle)"), OTHER, IN_A, mark("a"), LOCK, MAIN]
    alone = [mark("t (a cycle)"), LOCK, MAIN]
    held = "0.10 s [mutex a], 100 % of it held by "
    assert [*lock_lines(made(("t", cycle, 10)), 5)] == [f"{held}a, in in_a [mutex b]"]
    assert [*lock_lines(made(("t", alone, 10)), 5)] == [f"{held}t (a cycle)"]


def test_a_missing_stack_of_a_holder_is_no_function() -> None:
    unseen = NamedFrame("[stack not captured]", "[stack not captured]")
    assert [*lock_lines(made(("t", [unseen, mark("a"), LOCK, MAIN], 10)), 5)] == [
        "0.10 s [mutex a], 100 % of it held by a [stack not captured]"
    ]


def test_pipes_and_sockets_are_in_the_table_if_a_holder_is_known() -> None:
    pipe = NamedFrame("[read: pipe]", "[read: pipe]", "pipe", kind="w", found="wait")
    port = NamedFrame("[recvfrom: http:80]", "[recvfrom: http:80]", "network", kind="w", found="wait")
    report = made(
        ("a", [FLUSH, HELD, pipe, MAIN], 30), ("b", [pipe, MAIN], 10), ("c", [port, MAIN], 70)
    )  # fmt: skip
    assert [*lock_lines(report, 5)] == ["0.40 s [read: pipe] in main, 75 % of it held by writer, in flush"]
    assert [*lock_lines(report, 0)] == []
