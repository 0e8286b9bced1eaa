"""Interpreted work: recursion, sorting with a key, expressions, JSON, compression, exceptions, threads."""

import contextlib
import json
import re
import threading
import zlib


def fib(n):
    return n if n < 2 else fib(n - 1) + fib(n - 2)


def fails(n):
    if not n:
        raise ValueError("the end")
    return fails(n - 1)


def work():
    while True:
        fib(14)
        values = sorted(range(500), key=lambda i: (i * 7919) % 500)
        text = json.dumps({str(v): [v, v / 7] for v in values})
        json.loads(text)
        zlib.compress(text.encode() * 3)
        re.sub(r"(\d+)\.(\d*?)(5+)", lambda m: m[2], text)
        with contextlib.suppress(ValueError):
            fails(20)


threading.Thread(target=work).start()
work()
