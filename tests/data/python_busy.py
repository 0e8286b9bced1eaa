"""Runs without end in many kinds of calls; prints which function may call which, then works."""

import functools
import json
import re
import threading

CALLS = {
    "<module>": ["work"],
    "Thread._bootstrap": ["Thread._bootstrap_inner"],
    "Thread._bootstrap_inner": ["Thread.run"],
    "Thread.run": ["work"],
    "work": [
        "recursion",
        "through_generators",
        "through_c",
        "Made.__init__",
        "through_re",
        "through_coroutines",
        "through_exec",
    ],
    "recursion": ["recursion", "leaf"],
    "through_generators": ["through_generators.<locals>.<genexpr>", "generator"],
    "through_generators.<locals>.<genexpr>": ["generator"],
    "generator": ["leaf"],
    "through_c": ["compare"],
    "compare": ["leaf"],
    "Made.__init__": ["leaf"],
    "through_re": ["through_re.<locals>.<lambda>"],
    "through_re.<locals>.<lambda>": ["leaf"],
    "through_coroutines": ["outer"],
    "outer": ["inner"],
    "inner": ["Awaited.__await__"],
    "Awaited.__await__": ["leaf"],
    "through_exec": ["<module>"],  # of the text
    "leaf": [],
}


def leaf(turns=40):
    total = 0
    for number in range(turns):
        total += number
    return total


def recursion(depth):
    return recursion(depth - 1) if depth else leaf()


def generator():
    yield leaf()
    yield leaf()


def through_generators():
    return sum(each for each in generator())


def compare(one, other):
    return leaf() - leaf() + one - other


def through_c():
    return sorted([3, 1, 2], key=functools.cmp_to_key(compare))


class Made:
    def __init__(self):
        self.value = leaf()


PATTERN = re.compile("a")


def through_re():
    return PATTERN.sub(lambda _: str(leaf()), "abc" * 3)


class Awaited:
    def __await__(self):
        leaf()
        yield from ()


async def inner():
    await Awaited()


async def outer():
    await inner()


def through_coroutines():
    coroutine = outer()
    try:
        coroutine.send(None)
    except StopIteration:
        pass


TEXT = compile("work_is_done = sum(range(30))", "<text>", "exec")


def through_exec():
    exec(TEXT, {})


def work():
    while True:
        recursion(30)
        through_generators()
        through_c()
        Made()
        through_re()
        through_coroutines()
        through_exec()


print(json.dumps(CALLS), flush=True)
threading.Thread(target=work, daemon=True).start()
work()
