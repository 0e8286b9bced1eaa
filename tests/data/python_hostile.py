"""Changes the lists of its own interpreter, so that a reader from outside would never end.

Its one word says what it lists.  It prints a line when it runs, reads where the fields are (JSON), prints
another line when the lists are changed, and works.
"""

import ctypes
import json
import mmap
import struct
import sys
import threading
import time

KEPT = []
WORD = ctypes.c_uint64.from_address


def area(size):
    """Return the address of memory that stays."""
    KEPT.append(mmap.mmap(-1, size))
    return ctypes.addressof(ctypes.c_char.from_buffer(KEPT[-1]))


def put(address, word):
    WORD(address).value = word


def interpreters(at, count=3, threads=20_000):
    """List interpreters, each with thread states that overlap: only what a list needs is there."""
    stride = 24  # bytes: a word, the next thread state, the interpreter
    for _ in range(count):
        owner, states = area(1 << 14), area(threads * stride + 1024)
        each = (struct.pack("<QQQ", 0, states + stride * number, owner) for number in range(1, threads))
        KEPT[-1][: (threads - 1) * stride] = b"".join(each)
        put(states + (threads - 1) * stride + 16, owner)
        put(owner + at["threads"], states)
        put(owner + at["interpreter_next"], WORD(at["head"]).value)
        put(at["head"], owner)


def tables(at, count=60, size=250_000):
    """Give this thread another state, whose frames run functions with a large line table (3.13 and later)."""
    table, name, owner, state = area(size + 64), area(4096), area(1 << 14), area(4096)
    put(table + at["bytes_size"], size)
    ctypes.memset(table + at["bytes_data"], 0xF8, size)  # an entry a byte
    put(name + at["string_length"], 4)
    put(name + at["string_state"], 0b11001 << at["kind_bit"])  # compact ASCII
    ctypes.memset(name + at["ascii_data"], ord("x"), 4)
    frame = area((count + 1) * 128)
    for number in range(count):
        code = area(4096)
        put(code, 5)
        put(code + at["type"], id(type(area.__code__)))
        put(code + at["code_size"], size)
        put(code + at["first_line"], 1)
        put(code + at["code_version"], number + 1)
        for field, value in (("qualname", name), ("filename", name), ("linetable", table)):
            put(code + at[field], value)
        put(frame + 128 * number + at["executable"], code)
        put(frame + 128 * number + at["previous"], frame + 128 * (number + 1))
        put(frame + 128 * number + at["instruction"], code + at["code_bytes"])
    real = WORD(at["head"]).value
    mark = WORD(WORD(real + at["threads"]).value + at["thread_frame"]).value
    while ctypes.c_uint8.from_address(mark + at["owner"]).value not in (3, 4):
        mark = WORD(mark + at["previous"]).value
    put(frame + 128 * (count - 1) + at["previous"], mark)
    put(state + at["thread_interpreter"], owner)
    put(state + at["native_thread_id"], threading.get_native_id())
    put(state + at["thread_frame"], frame)
    put(owner + at["threads"], state)
    put(real + at["interpreter_next"], owner)


def work():
    while True:
        until = time.monotonic() + 0.002
        while time.monotonic() < until:
            pass
        time.sleep(0.002)


print("running", flush=True)
if sys.argv[1] != "nothing":
    globals()[sys.argv[1]](json.loads(sys.stdin.readline()))
    print("changed", flush=True)
work()
