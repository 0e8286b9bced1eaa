import queue
import threading
import time


def leaf(count):
    total = 0
    for number in range(count):
        total += number
    return total


def busy(kind):  #<
    while True:
        work(kind)  #> work
        if kind > 2:
            time.sleep(0.001)


def work(kind):
    return again(kind) + leaf(500)  #> again leaf


def again(kind):
    return 0 if kind == 0 else work(kind - 1)  #> work


def waiting():  #<
    never.wait()  #> *


def getting():  #<
    while True:
        box.get()  #> *
        leaf(100)  #> leaf


def putting():  #<
    while True:
        box.put(1)  #> *
        time.sleep(0.002)


def spawning():  #<
    while True:
        short = threading.Thread(target=busy_once)  #> *
        short.start()  #> *
        short.join()  #> *


def busy_once():  #<
    work(3)  #> work


never, box = threading.Event(), queue.Queue()
for number in range(4):
    threading.Thread(target=busy, args=(number,), daemon=True).start()  #> *
for target in (waiting, getting, putting, spawning):
    threading.Thread(target=target, daemon=True).start()  #> *
print("ready", flush=True)
never.wait()  #> *
