"""Threads that wait in stacks of many kinds; prints what sys._current_frames says of them, then waits."""

import functools
import json
import sys
import threading
import time

ready = []
never = threading.Event()


def recursion(depth, then):
    return then() if depth == 0 else recursion(depth - 1, then)


class Ключ:
    def __init__(self, then):
        self.then = then
        self.value = then()  # a class that is called: the interpreter has a frame of its own here

    def __lt__(self, other):
        return self.then() or True


def generator(then):
    yield then()


def through_generators(then):
    return [*generator(lambda: next(generator(then)))]


def through_c(then):
    return sorted([1, 2], key=functools.cmp_to_key(lambda *_: then() or 0))


async def coroutine(then):
    return then()


async def outer(then):
    return await coroutine(then)


def through_coroutines(then):
    try:
        outer(then).send(None)
    except StopIteration:
        pass


def through_exec(then):
    exec(compile("def ñandú():\n    return then()\nñandú()", "<évalué>", "exec"), {"then": then})


def through_class_body(then):
    class Body:
        value = then()

    return Body


def wait():
    ready.append(threading.get_native_id())
    never.wait()


def chain():
    def inner():
        through_generators(lambda: through_coroutines(lambda: Ключ(wait)))

    recursion(30, lambda: through_c(lambda: through_exec(lambda: through_class_body(inner))))


threads = [threading.Thread(target=chain, daemon=True) for _ in range(3)]
for thread in threads:
    thread.start()
deepest = threading.Thread(target=lambda: recursion(900, wait), daemon=True)
deepest.start()
idents = [one.ident for one in (*threads, deepest)]
while len(ready) < 4:
    time.sleep(0.001)


def is_still(frames):
    """Whether all threads have reached the innermost wait."""
    names = [(frame.f_code.co_name, frame.f_back.f_code.co_name) for frame in map(frames.get, idents)]
    return names == [("wait", "wait")] * len(idents)


while not is_still(frames := sys._current_frames()):
    time.sleep(0.001)
stacks = {}
for thread in (*threads, deepest):
    frame, stack = frames[thread.ident], []
    while frame:
        code = frame.f_code
        stack.append([code.co_filename, code.co_qualname, frame.f_lineno])
        frame = frame.f_back
    stacks[thread.native_id] = stack
print(json.dumps(stacks), flush=True)
sys.stdin.read()
