"""`--blame` finds the holder of a wait in another process of this machine; each answer is known."""

from math import sqrt
from pathlib import Path

import pytest

import sfsample
from tests.live.compiled import compile_c, needs_gcc, started
from tests.live.hanging import wait_for_calls
from tests.live.recording import record_samples
from tests.live.targets import assert_untraced, first_line, python

pytestmark = [pytest.mark.live]
# The child needs three times as long in `resize` as in `store` for each answer.
PIPES = r"""
#include <stdio.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>
static volatile int spent;
static void nap(int ms) { struct timespec t = {0, ms * 1000000}; nanosleep(&t, 0); spent++; }
static void __attribute__((noinline)) resize(void) { nap(30); spent++; }
static void __attribute__((noinline)) store(void) { nap(10); spent++; }
int main(void)
{
    int to[2], from[2]; char byte;
    if (pipe(to) || pipe(from))
        return 1;
    if (!fork()) {
        close(to[1]); close(from[0]); prctl(PR_SET_NAME, "resizer");
        while (read(to[0], &byte, 1) == 1) {
            resize(); store();
            if (write(from[1], &byte, 1) != 1) return 1;
        }
        return 0;
    }
    close(to[0]); close(from[1]);
    puts("ready"); fflush(stdout);
    while (write(to[1], &byte, 1) == 1 && read(from[0], &byte, 1) == 1);
    return 1;
}
"""
# Threads of one process wait for others, each in its own way.  `two` and `shared` have no holder: two
# processes may write to the one pipe, and the waiting process itself may write to the other one.  `handed`
# neither: /proc/locks names the process that took the flock, but a child has it.
WAITS = r'''
import fcntl, os, socket, subprocess, sys, threading
SLEEP = """
import ctypes, fcntl, threading, time
ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG: the child ends with the test
def {0}(): time.sleep(1000)
{1}
print('ready', flush=True)
{0}()
"""
def child(function, *fds, first=""):
    code = SLEEP.format(function, first)
    made = subprocess.Popen([sys.executable, "-c", code], pass_fds=fds, stdout=subprocess.PIPE)
    made.stdout.readline()
    return made
lock = sys.argv[1]
holders = [child("keeps_lock", first=f"f = open({lock!r}, 'w'); fcntl.flock(f, fcntl.LOCK_EX)"),
           child("keeps_record", first=f"f = open({lock!r} + '2', 'w'); fcntl.lockf(f, fcntl.LOCK_EX)")]
listener = socket.create_server(("127.0.0.1", 0))
near, far = socket.create_connection(listener.getsockname()), listener.accept()[0]
left, right = socket.socketpair()
full, one, two, shared = os.pipe(), os.pipe(), os.pipe(), os.pipe()
holders += [child("serves_tcp", far.fileno()), child("serves_unix", right.fileno()),
            child("drains_pipe", full[0]), child("fills_pipe", one[1]),
            child("fills_two", two[1]), child("fills_two", two[1]), child("fills_shared", shared[1])]
several = child("has_threads", right2 := os.dup((pair := socket.socketpair())[1].fileno()),
                first="threading.Thread(target=has_threads, daemon=True).start()")
handed = open(lock + "3", "w")
fcntl.flock(handed, fcntl.LOCK_EX)
holders.append(child("has_flock", handed.fileno()))
for each in (far, right, pair[1], handed): each.close()
for fd in (right2, full[0], one[1], two[1]): os.close(fd)
def flock(): fcntl.flock(open(lock), fcntl.LOCK_EX)
def handed_on(): fcntl.flock(open(lock + "3"), fcntl.LOCK_EX)
def record(): fcntl.lockf(open(lock + "2", "w"), fcntl.LOCK_EX)
def tcp(): near.recv(1)
def unix(): left.recv(1)
def threads(): pair[0].recv(1)
def fill(): os.write(full[1], bytes(1 << 20))
def empty(): os.read(one[0], 1)
def two_writers(): os.read(two[0], 1)
def own_writer(): os.read(shared[0], 1)
def reaps(): os.waitpid(holders[0].pid, 0)
for each in (flock, handed_on, record, tcp, unix, threads, fill, empty, two_writers, own_writer, reaps):
    threading.Thread(target=each, daemon=True).start()
print("ready", flush=True)
sys.stdin.read()
'''
FOUND = {
    "flock": "keeps_lock", "record": "keeps_record", "tcp": "serves_tcp", "unix": "serves_unix",
    "fill": "drains_pipe", "empty": "fills_pipe", "reaps": "keeps_lock",
    "threads": "[one of several threads]", "handed_on": "", "two_writers": "", "own_writer": "",
}  # fmt: skip


def chains(profile: sfsample.Profile) -> list[tuple[list[str], int]]:
    """Return the texts of each stack, outermost first, without places in files, and its samples."""
    report = sfsample.named(profile)
    return [([report.frames[at].text.partition(" (")[0] for at in reversed(stack.frames)], stack.weights[0])
            for stack in report.stacks]  # fmt: skip


@needs_gcc
def test_shares_of_blame_are_those_of_the_time_that_another_process_needs(tmp_path: Path) -> None:
    with started(compile_c(tmp_path, "pipes", PIPES, "-g")) as process:
        profile = record_samples(process.pid, 400, rate=150, mode="wall", waits=True, blame=True)
        found = chains(profile)
        of = {name: sum(n for texts, n in found if "[held by]resizer/resizer" in texts and name in texts)
              for name in ("resize", "store")}  # fmt: skip
        total = sum(of.values())
        assert total > 0.5 * sum(n for _, n in found), "a loaded machine leaves some stacks uncaptured"
        # a busy machine makes both naps longer by the same time
        assert abs(of["resize"] / total - 0.75) < 4 * sqrt(0.75 * 0.25 / total) + 0.05
        assert profile.stats.pauses.count < 0.1 * profile.stats.samples, "sleepers are read"
        assert_untraced(process.pid)


@pytest.mark.any_load
def test_each_way_to_wait_for_another_process_leads_to_its_function(tmp_path: Path) -> None:
    with python(WAITS, tmp_path / "lock") as process:
        assert first_line(process) == "ready"
        wait_for_calls(process.pid, flock=2, fcntl=1, recvfrom=3, write=1, read=4, wait4=1)
        profile = record_samples(process.pid, 600, rate=100, mode="wall", waits=True, blame=True)
        for waiter, holder in FOUND.items():
            stacks = [(texts, n) for texts, n in chains(profile) if waiter in texts]
            with_holder = sum(n for texts, n in stacks if any(each.startswith("[held by]") for each in texts))
            known = sum(n for texts, n in stacks if holder and holder in texts[texts.index(waiter) :])
            assert with_holder == known, (waiter, stacks)
            assert stacks
            assert bool(known) is bool(holder), (waiter, stacks)
        assert profile.stats.eintr_prone_stops == 0
        assert_untraced(process.pid)
