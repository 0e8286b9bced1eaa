"""Runs threads with the GIL and without it; the argument says which.

Prints the ids of threads that hold the GIL whenever they run, then waits for the end of its input.  The hash
is one call that releases the GIL and goes on for hours.
"""

import ctypes
import hashlib
import json
import sys
import threading
import time

BURN = "while True: pass"
got: "list[int]" = []
all_got = threading.Event()


def note(count: int) -> None:
    got.append(threading.get_native_id())
    if len(got) == count:
        all_got.set()


def burn_python() -> None:
    note(1)
    while True:
        pass


def burn_hash() -> None:
    hashlib.pbkdf2_hmac("sha256", b"", b"", 1 << 30)


def wait() -> None:
    time.sleep(1 << 20)


def sleep_with_gil() -> None:
    note(1)
    print(json.dumps(got), flush=True)  # no other thread can print from now on
    ctypes.PyDLL(None).sleep(1 << 20)


def burn_in_own_interpreter() -> None:
    if sys.version_info >= (3, 13):
        import _interpreters as interpreters

        made = interpreters.create()
    else:
        import _xxsubinterpreters as interpreters

        made = interpreters.create(isolated=True)
    note(2)
    interpreters.run_string(made, BURN)


WAYS = {
    "burn": [burn_python, burn_hash, wait, wait],
    "sleep": [sleep_with_gil, wait],
    "interpreters": [burn_in_own_interpreter, burn_in_own_interpreter, wait],
}

for work in WAYS[sys.argv[1]]:
    threading.Thread(target=work, daemon=True).start()
if sys.argv[1] != "sleep":
    all_got.wait()
    print(json.dumps(got), flush=True)
sys.stdin.read()
