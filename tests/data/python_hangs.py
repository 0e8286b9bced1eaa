"""Hangs in the way that its argument names; prints the ids of its threads, in order of their start."""

import asyncio
import json
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from queue import Queue

ids = []


def here():
    ids.append(threading.get_native_id())


def tell():
    print(json.dumps(ids), flush=True)


def crossed(make):
    first, second = make(), make()
    both = threading.Barrier(2, tell)

    def work(mine, other):
        here()
        with mine:
            both.wait()
            with other:
                pass

    threading.Thread(target=work, args=(first, second)).start()
    threading.Thread(target=work, args=(second, first)).start()


def joined():
    here()
    main = threading.main_thread()

    def work():
        here()
        tell()
        main.join()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def pool(workers):
    executor, all_run = ThreadPoolExecutor(workers), threading.Barrier(workers, tell)

    def outer():
        here()
        all_run.wait()
        executor.submit(int).result()

    for future in [executor.submit(outer) for _ in range(workers)]:
        future.result()


def busy_pool():
    """One worker waits for a call that the other one begins when it has done its own."""
    executor = ThreadPoolExecutor(2)

    def spin():
        while True:
            pass

    def wait():
        here()
        tell()
        executor.submit(int).result()

    executor.submit(spin)
    executor.submit(wait).result()


def backlog():
    """Calls are queued at many workers, and other threads wait for each other."""
    executor = ThreadPoolExecutor(64)
    for _ in range(2000):
        executor.submit(threading.Event().wait)
    crossed(threading.Lock)


def queue():
    def consume():
        here()
        tell()
        Queue().get()

    threading.Thread(target=consume).start()


def released():
    """One thread waits inside the `with` of a lock that it has released; another one holds it unseen."""
    lock = threading.Lock()
    condition = threading.Condition(lock)

    def wait():
        here()
        with lock:
            condition.wait()

    def want():
        here()
        tell()
        with lock:
            pass

    threading.Thread(target=wait).start()
    while not condition._waiters:
        pass
    lock.acquire()
    threading.Thread(target=want).start()
    threading.Event().wait()


def again():
    """A thread takes a Lock again that it has, in one function; the main thread calls `acquire` inside."""
    own, other = threading.Lock(), threading.Lock()

    def work():
        here()
        with own:
            both.wait()
            with own:
                pass

    both = threading.Barrier(2, tell)
    threading.Thread(target=work).start()
    with other:
        both.wait()
        other.acquire()


async def tasks():
    first, second, never = asyncio.Lock(), asyncio.Lock(), asyncio.Queue()
    reached = asyncio.Event()

    async def work(mine, other):
        async with mine:
            await reached.wait()
            async with other:
                pass

    async def get():
        await never.get()

    async def end():
        pass

    here()
    ended = asyncio.create_task(end(), name="ended")
    work_tasks = [
        asyncio.create_task(work(first, second), name="credit"),
        asyncio.create_task(work(second, first), name="debit"),
    ]
    consumer = asyncio.create_task(get(), name="consumer")
    await asyncio.sleep(0)
    reached.set()
    await ended
    tell()
    await asyncio.gather(*work_tasks, consumer)


async def task_locks():
    """A task waits for a Condition, whose Lock another one holds unseen; a task takes its own Lock again."""
    lock, own = asyncio.Lock(), asyncio.Lock()
    condition = asyncio.Condition(lock)

    async def wait():
        async with lock:
            await condition.wait()

    async def hold():
        await lock.acquire()
        await asyncio.Event().wait()

    async def want():
        async with lock:
            pass

    async def again():
        async with own:
            await inner()

    async def inner():
        async with own:
            pass

    here()
    tasks = []
    for each in (wait, hold, want, again):
        tasks.append(asyncio.create_task(each(), name=each.__name__))
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    tell()
    await asyncio.gather(*tasks)


def locals_():
    def shown(number, text="wörd", *rest, **names):
        nothing, yes, large, half, raw, items, cell = None, True, -(1 << 70), 0.5, b"\0a", [1, 2], {"k": 1}
        here()
        tell()
        blocked.acquire()
        unbound = [nothing, yes, large, half, raw, items]
        return unbound, lambda: cell

    blocked = threading.Lock()
    blocked.acquire()
    shown(7, "x" * 100, 1, key=2)


ways = {
    "rlocks": lambda: crossed(threading.RLock),
    "locks": lambda: crossed(threading.Lock),
    "join": joined,
    "pool1": lambda: pool(1),
    "pool2": lambda: pool(2),
    "busy_pool": busy_pool,
    "backlog": backlog,
    "queue": queue,
    "again": again,
    "released": released,
    "tasks": lambda: asyncio.run(tasks()),
    "task_locks": lambda: asyncio.run(task_locks()),
    "locals": locals_,
}
ways[sys.argv[1]]()
