"""A thread that holds the GIL for a long time, in C, and two that wait for it; prints their thread ids."""

import ctypes
import json
import threading
import time

ids = {}
seconds = ctypes.PyDLL(None).sleep  # PyDLL does not release the GIL


def wait(name):
    ids[name] = threading.get_native_id()
    while True:
        time.sleep(0.001)


def hold():
    ids["holds"] = threading.get_native_id()
    print(json.dumps(ids), flush=True)
    seconds(600)


for number in range(2):
    threading.Thread(target=wait, args=(f"waits {number}",), daemon=True).start()
while len(ids) < 2:
    time.sleep(0.001)
hold()
