"""A dump of a hung Python program names the deadlock, or what each thread and task waits for."""

import json
import random
import re
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

import sfsample
from sfsample.process.process import LiveProcess
from sfsample.process.vm import read_memory
from sfsample.runtimes.cpython.find import find_interpreter
from sfsample.runtimes.cpython.tasks import find_table
from sfsample.runtimes.cpython.waits import ThreadReader
from tests.live.cli_runner import in_this_process
from tests.live.cli_runner import sfsample as run_cli
from tests.live.pythons import PYTHONS, running
from tests.live.targets import extended, wait_until

pytestmark = [pytest.mark.live, pytest.mark.any_load, pytest.mark.parametrize("python", PYTHONS, ids=str)]

Dump = dict[str, Any]


def hung(python: Path, way: str) -> AbstractContextManager[tuple[int, list[int]]]:
    """Start a program that hangs in a way; yield its pid and the ids of the threads that take part."""
    return running(python, "python_hangs.py", way)


def dump_when(pid: int, is_there: Any, *options: str) -> Dump:
    """Dump until the threads hang: they print their ids just before that."""
    found: Dump = {}

    def reached() -> bool:
        found.update(json.loads(in_this_process("dump", "-p", pid, "--json", *options).out))
        return bool(is_there(found))

    wait_until(reached, "the program hangs")
    return found


def deadlocks(dump: Dump) -> list[Dump]:
    return [finding for finding in dump["verdict"] if finding["kind"] == "deadlock"]


def waits(dump: Dump) -> dict[int, Dump]:
    [process] = dump["processes"]
    return {thread["tid"]: thread["waits_for"] for thread in process["threads"] if thread["waits_for"]}


@pytest.mark.parametrize(
    ("way", "kind", "what"),
    [
        ("rlocks", "rlock", "threading.RLock 0x"),
        ("locks", "lock", "threading.Lock 0x"),
        ("join", "thread", "the end of"),
        ("pool2", "future", "the result of Future 0x"),
        ("backlog", "lock", "threading.Lock 0x"),
    ],
)
def test_two_threads_that_wait_for_each_other_are_a_deadlock(python, way, kind, what):
    with hung(python, way) as (pid, [first, second]):
        dump = dump_when(pid, deadlocks)
        [deadlock] = deadlocks(dump)
        assert deadlock["text"].startswith("DEADLOCK: 2 threads wait for each other, and none can go on")
        assert {node["tid"] for node in deadlock["threads"]} == {first, second}
        found = waits(dump)
        assert {found[first]["kind"], found[second]["kind"]} == {kind}
        assert found[first]["what"].startswith(what)
        assert (found[first]["tid"], found[second]["tid"]) == (second, first)


def test_thread_that_takes_its_own_lock_by_with_is_a_deadlock_but_not_by_a_call(python):
    with hung(python, "again") as (pid, [taker]):
        dump = dump_when(pid, lambda dump: len(waits(dump)) == 2 and deadlocks(dump))
        [deadlock] = deadlocks(dump)
        assert deadlock["text"].endswith(" waits for a lock that it holds itself")
        found = waits(dump)
        assert (found[taker]["kind"], found[taker]["tid"]) == ("lock", taker)
        assert (found[pid]["kind"], found[pid]["tid"]) == ("lock", None)  # it may be another one's by now


def test_result_of_a_call_in_the_queue_of_the_only_worker_is_a_deadlock(python):
    with hung(python, "pool1") as (pid, [worker]):
        dump = dump_when(pid, deadlocks)
        [deadlock] = deadlocks(dump)
        assert " waits for a result that only it can compute" in deadlock["text"]
        assert waits(dump)[worker]["tid"] == worker
        assert waits(dump)[pid]["tid"] == worker  # which runs the call that the main thread waits for


def test_result_of_a_queued_call_is_no_deadlock_while_a_worker_runs(python):
    with hung(python, "busy_pool") as (pid, [worker]):
        dump = dump_when(pid, lambda dump: "queued" in str(waits(dump).get(worker)))
        assert deadlocks(dump) == []
        assert waits(dump)[worker]["tid"] is None


def test_consumer_of_an_empty_queue_waits_for_an_item(python):
    with hung(python, "queue") as (pid, [consumer]):
        wait = waits(dump_when(pid, lambda dump: "queue" in str(waits(dump).get(consumer))))[consumer]
        assert wait["kind"] == "queue"
        assert wait["what"].startswith("an item in Queue 0x")
        assert wait["tid"] is None


def test_producers_of_a_full_queue_are_one_finding(python):
    with hung(python, "full") as (pid, producers):
        dump = dump_when(pid, lambda dump: str(waits(dump)).count("which is full") == 2)
        [finding] = [finding for finding in dump["verdict"] if finding["kind"] == "queue"]
        assert {node["tid"] for node in finding["threads"]} == {*producers}
        assert ": each has waited " in finding["text"]
        assert " for room in Queue 0x" in finding["text"]


def test_lock_that_was_released_inside_its_with_is_not_held(python):
    with hung(python, "released") as (pid, [waits_inside, wants]):
        found = waits(dump_when(pid, lambda dump: "Lock" in str(waits(dump).get(wants))))
        assert found[waits_inside]["kind"] == "condition"
        assert (found[wants]["kind"], found[wants]["tid"]) == ("lock", None)
        assert found[wants]["note"].startswith("a Lock notes no owner; used by threads ")
        assert str(pid) in found[wants]["note"]  # the main thread, which holds it


@pytest.mark.parametrize("flags", [(), ("--consistent",)])
def test_the_gil_has_one_holder_and_its_waiters_no_time(python, flags):
    with hung(python, "gil") as (pid, _):
        for _ in range(4):
            dump = json.loads(in_this_process("dump", "-p", pid, "--json", *flags).out)
            states = [thread["gil"] for thread in dump["processes"][0]["threads"]]
            assert states.count("holds") <= 1
            assert not any("for the GIL" in finding["text"] and " s for " in finding["text"]
                           for finding in dump["verdict"])  # fmt: skip


def test_threads_that_use_a_lock_by_acquire_are_users_not_holders(python):
    with hung(python, "by_hand") as (pid, [first, second]):
        dump = dump_when(pid, lambda dump: str(waits(dump)).count("used by thread ") == 2)
        found = waits(dump)
        for one, other in ((first, second), (second, first)):
            assert (found[one]["kind"], found[one]["tid"]) == ("lock", None)
            assert found[one]["note"].startswith(f"a Lock notes no owner; used by thread {other} (")
        assert deadlocks(dump) == []
        [likely] = [finding for finding in dump["verdict"] if finding["kind"] == "likely deadlock"]
        assert likely["text"] == "DEADLOCK is likely: 2 threads wait for Locks that only they use"
        assert [node["tid"] for node in likely["threads"]] == [first, second]


def test_tasks_that_wait_for_each_other_are_a_deadlock(python):
    with hung(python, "tasks") as (pid, [loop]):
        dump = dump_when(pid, deadlocks)
        [deadlock] = deadlocks(dump)
        assert deadlock["text"].startswith("DEADLOCK: 2 asyncio tasks wait for each other in ")
        assert [node["tid"] for node in deadlock["threads"]] == [loop]
        tasks = {task["name"]: task for task in dump["processes"][0]["threads"][0]["tasks"]}
        assert {*tasks} - {name for name in tasks if name.startswith("Task-")} == {
            "credit",
            "debit",
            "consumer",
        }
        assert (tasks["credit"]["held_by"], tasks["debit"]["held_by"]) == ("debit", "credit")
        assert tasks["consumer"]["waits_for"].startswith("an item in asyncio.Queue 0x")
        assert [frame["function"] for frame in tasks["consumer"]["frames"]] == [
            "Queue.get", "tasks.<locals>.get"]  # fmt: skip


def test_tasks_of_a_loop_without_frames_of_asyncio_are_found(python):
    with hung(python, "foreign") as (pid, _):
        dump = dump_when(pid, lambda dump: "asyncio tasks: task foreign" in str(dump["verdict"]))
        [task] = dump["processes"][0]["threads"][0]["tasks"]
        assert task["waits_for"].startswith("asyncio.Event 0x")


def test_tasks_that_have_ended_are_not_waited_for(python):
    with hung(python, "families") as (pid, _):
        dump = dump_when(pid, lambda dump: "in_wait" in str(dump["processes"][0]["threads"][0]["tasks"]))
        tasks = {task["name"]: task["waits_for"] for task in dump["processes"][0]["threads"][0]["tasks"]}
        assert (tasks["gather"], tasks["group"], tasks["wait"]) == (
            "task in_gather (2 of 3 are done), in asyncio.gather",
            "2 tasks, in asyncio.TaskGroup",
            "task in_wait (1 of 2 are done), in asyncio.wait",
        )
        assert tasks["futures"] == "4 futures (2 of 6 are done), in asyncio.gather"
        assert re.fullmatch(r"_asyncio.Future 0x\w+ \(1 of 2 are done\), in asyncio.gather", tasks["future"])
        assert tasks["limited"].startswith("task in_limit")


def test_module_that_waits_for_a_thread_that_imports_this_module_is_a_deadlock(python):
    with hung(python, "imports") as (pid, [first, second]):
        dump = dump_when(pid, deadlocks)
        assert waits(dump)[second]["what"] == "the import lock of module half_imported"
        assert (waits(dump)[first]["tid"], waits(dump)[second]["tid"]) == (second, first)


def test_threads_at_a_barrier_name_it_and_count_those_that_have_arrived(python):
    with hung(python, "barrier") as (pid, threads):
        found = waits(dump_when(pid, lambda dump: str(waits(dump)).count("Barrier 0x") == 2))
        [what] = {found[tid]["what"] for tid in threads}
        assert what.startswith("the other threads at Barrier 0x")
        assert what.endswith(": 2 of 3 have arrived")


def test_only_an_rlock_of_multiprocessing_has_a_certain_owner(python):
    with hung(python, "semlocks") as (pid, [holder, twice, recursive, plain, semaphore, full]):
        dump = dump_when(pid, lambda dump: "multiprocessing.Lock 0x" in str(waits(dump).get(plain))
                                           and waits(dump).get(full))  # fmt: skip
        found = waits(dump)
        assert (found[recursive]["kind"], found[recursive]["tid"]) == ("rlock", holder)
        assert found[recursive]["what"].startswith("multiprocessing.RLock 0x")
        assert (found[plain]["tid"], found[plain]["note"]) == (holder, "in a with statement")
        assert (found[twice]["tid"], found[twice]["note"]) == (None, "last taken by itself")
        assert "multiprocessing" not in str(found.get(semaphore))
        assert found[full]["kind"] == "semaphore", "room in a Queue of one item is no lock"
        assert deadlocks(dump) == []  # another process may release the Lock


def test_lock_of_multiprocessing_that_another_process_has_taken_says_so(python):
    with hung(python, "taken") as (pid, [recursive, plain]):
        found = waits(dump_when(pid, lambda dump: {recursive, plain} <= waits(dump).keys()))
        assert (found[recursive]["tid"], found[recursive]["note"]) == (None, "another process holds it")
        assert found[plain]["note"] == "a Lock notes no owner; another process took it"


def test_lock_of_a_condition_that_a_task_waits_for_is_not_held(python):
    with hung(python, "task_locks") as (pid, [_]):
        dump = dump_when(pid, deadlocks)
        held = {task["name"]: task["held_by"] for task in dump["processes"][0]["threads"][0]["tasks"]}
        assert (held["want"], held["again"]) == (None, "again")
        assert [finding["text"].partition(" in ")[0] for finding in deadlocks(dump)] == [
            "DEADLOCK: asyncio task again waits for itself"]  # fmt: skip


@pytest.mark.parametrize("seeds", [range(8), extended(range(8, 60))], ids=str)
@pytest.mark.parametrize("way", ["rlocks", "pool2", "tasks", "locals"])
def test_memory_that_is_damaged_gives_facts_or_none(python, way, seeds):
    """A random part of the words is replaced, so pointers lead to objects of another type."""
    with hung(python, way) as (pid, _):
        dump_when(pid, lambda dump: deadlocks(dump) or waits(dump))
        process = LiveProcess(pid, attach=False)
        stacks = [thread.python for thread in sfsample.dump(pid).threads if thread.python]
        interpreter = find_interpreter(process.modules, lambda at, size: read_memory(pid, at, size))
        assert interpreter is not None
        assert stacks
        for seed in seeds:
            chance, seen = random.Random(seed), [0, 1, (1 << 64) - 1]  # noqa: S311

            def read(at, size, chance=chance, seen=seen):
                data = read_memory(pid, at, size)
                if data and size == 8:
                    seen.append(int.from_bytes(data, "little"))
                    return chance.choice(seen).to_bytes(8, "little") if chance.random() < 0.05 else data
                return data

            reader = ThreadReader(interpreter, read, find_table(process.modules), lambda: False)
            for stack in stacks:
                assert len(reader.facts(stack, pid, seen[-1]).tasks) <= 12_000
                assert all(len(text) < 500 for frame in reader.locals(stack) for _, text in frame)
        process.close()


def test_locals_are_short_texts(python):
    with hung(python, "locals") as (pid, [main]):
        dump = dump_when(pid, lambda dump: "Lock" in str(waits(dump).get(main)), "--locals")
        [thread] = dump["processes"][0]["threads"]
        assert thread["python"][0]["function"] == "locals_.<locals>.shown"
        assert thread["python"][0]["locals"] == {
            "number": "7", "text": f"'{'x' * 80}'...", "rest": "<tuple of 1: 1>",
            "names": "<dict of 1: 'key': 2>", "nothing": "None", "yes": "True", "large": str(-(1 << 70)),
            "half": "0.5", "raw": r"b'\x00a'", "items": "<list of 2: 1, 2>",
            "cell": "<dict of 1: 'k': 1>", "blocked": "<_thread.lock>",
        }  # fmt: skip
        assert b"        number = 7\n" in run_cli("dump", "-p", pid, "--locals").out
        assert b"number = 7" not in run_cli("dump", "-p", pid).out
