"""Hangs in the way that its argument names; prints the ids of its threads, in order of their start."""

import asyncio
import json
import multiprocessing
import os
import select
import socket
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib import import_module
from importlib.machinery import ModuleSpec
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


class Account:
    def __init__(self):
        self.lock = threading.Lock()


def by_hand():
    """Two threads call `acquire` of Locks, which are attributes and globals."""
    global LEFT, RIGHT
    account, both = Account(), threading.Barrier(2, tell)
    LEFT, RIGHT = account.lock, threading.Lock()

    def debit():
        here()
        account.lock.acquire()
        both.wait()
        RIGHT.acquire()

    def credit():
        here()
        RIGHT.acquire()
        both.wait()
        LEFT.acquire()

    for function in (debit, credit):
        threading.Thread(target=function).start()


def gil():
    """Four threads want the GIL all the time."""

    def burn():
        here()
        while True:
            pass

    for _ in range(4):
        threading.Thread(target=burn, daemon=True).start()
    while len(ids) < 4:
        pass
    tell()
    burn()


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


def full():
    """Two threads put items into a queue that is full."""
    queue = Queue(1)
    queue.put(0)

    def produce():
        here()
        queue.put(0)

    for number in range(2):
        threading.Thread(target=produce).start()
        while len(ids) < number + 1:
            pass
    tell()


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


def imports():
    """A module waits for a thread that imports this module."""

    class Finder:
        @staticmethod
        def find_spec(name, *_):
            return ModuleSpec(name, Finder()) if name == "half_imported" else None

        def create_module(self, _spec):
            return None

        def exec_module(self, _module):
            here()
            thread = threading.Thread(target=other)
            thread.start()
            thread.join()

    def other():
        here()
        tell()
        import_module("half_imported")

    sys.meta_path.insert(0, Finder)
    import_module("half_imported")


def barrier():
    """Two of three threads arrive at a Barrier; a function in its method shares `self` (until 3.15)."""
    three = threading.Barrier(3)

    def wait():
        here()
        if len(ids) == 2:
            tell()
        three.wait()

    for _ in range(2):
        threading.Thread(target=wait).start()


def semlocks():
    """Threads wait for an RLock of multiprocessing, a Lock in a `with`, a semaphore, and room in a Queue."""
    recursive, plain, none = multiprocessing.RLock(), multiprocessing.Lock(), multiprocessing.Semaphore(0)

    def hold():
        here()
        recursive.acquire()
        with plain:
            held.set()
            threading.Event().wait()

    def twice():
        here()
        once.acquire()
        once.acquire()

    def want(lock):
        here()
        lock.acquire()

    def put():
        queue.put(0)
        here()
        queue.put(1)

    held, once, queue = threading.Event(), multiprocessing.Lock(), multiprocessing.Queue(1)
    threading.Thread(target=hold).start()
    held.wait()
    threading.Thread(target=twice).start()
    while len(ids) < 2:
        pass
    for number, lock in enumerate((recursive, plain, none)):
        threading.Thread(target=want, args=(lock,)).start()
        while len(ids) < number + 3:
            pass
    threading.Thread(target=put).start()
    while len(ids) < 6:
        pass
    tell()


def taken():
    """Threads wait for locks of multiprocessing that a child has taken; the child ends with the parent."""
    locks = multiprocessing.RLock(), multiprocessing.Lock()
    own_end, childs_end = socket.socketpair()
    if os.fork() == 0:
        own_end.close()
        for lock in locks:
            lock.acquire()
        childs_end.send(b"+")
        childs_end.recv(1)
        os._exit(0)
    childs_end.close()
    own_end.recv(1)

    def want(lock):
        here()
        lock.acquire()

    for number, lock in enumerate(locks):
        threading.Thread(target=want, args=(lock,)).start()
        while len(ids) < number + 1:
            pass
    tell()
    threading.Event().wait()  # `own_end` stays open


async def families():
    """Tasks wait for others, of which some have ended."""

    async def end():
        pass

    async def never():
        await asyncio.Event().wait()

    async def gather():
        await asyncio.gather(end(), end(), named("in_gather"))

    async def group():
        async with asyncio.TaskGroup() as tasks:
            for name in ("one", "two"):
                tasks.create_task(never(), name=name)

    async def futures():
        some = [asyncio.get_running_loop().create_future() for _ in range(5)]
        some[0].set_result(None)
        asyncio.get_running_loop().call_soon(some[1].set_result, None)
        task = asyncio.create_task(only_future(some[0]), name="future")
        await asyncio.gather(*some, task)

    async def only_future(done):
        await asyncio.gather(done, asyncio.get_running_loop().create_future())

    async def limited():
        await asyncio.wait_for(named("in_limit"), 1 << 20)

    async def wait():
        await asyncio.wait([named("in_wait"), asyncio.create_task(end())])

    def named(name):
        return asyncio.create_task(never(), name=name)

    here()
    asyncio.get_running_loop().call_later(0.1, tell)
    each = gather, group, wait, futures, limited
    await asyncio.gather(*(asyncio.create_task(one(), name=one.__name__) for one in each))


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


class ForeignLoop(asyncio.SelectorEventLoop):
    """An event loop that runs tasks without frames of asyncio, and waits in C, as uvloop does."""

    run_forever = staticmethod(partial(select.select, [sys.stdin], [], []))

    def run_until_complete(self, coroutine):
        task = self.create_task(coroutine, name="foreign")
        asyncio._set_running_loop(self)
        while self._ready:
            self._ready.popleft()._run()
        here()
        tell()
        self.run_forever()
        return task


def foreign():
    async def wait():
        await asyncio.Event().wait()

    loop = ForeignLoop()
    loop.run_until_complete(wait())


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
    "by_hand": by_hand,
    "gil": gil,
    "join": joined,
    "pool1": lambda: pool(1),
    "pool2": lambda: pool(2),
    "busy_pool": busy_pool,
    "backlog": backlog,
    "queue": queue,
    "full": full,
    "again": again,
    "imports": imports,
    "barrier": barrier,
    "semlocks": semlocks,
    "taken": taken,
    "families": lambda: asyncio.run(families()),
    "released": released,
    "tasks": lambda: asyncio.run(tasks()),
    "task_locks": lambda: asyncio.run(task_locks()),
    "locals": locals_,
    "foreign": foreign,
}
ways[sys.argv[1]]()
