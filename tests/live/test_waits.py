"""A recording in wall mode says what threads wait for; the test knows the answer for each thread."""

import os
from collections import Counter
from pathlib import Path

import pytest

import sfsample
from sfsample.core.snapshot import Capture
from sfsample.report.waits import fold_idle
from tests.live.compiled import compile_c, needs_gcc, started
from tests.live.hanging import wait_for_calls
from tests.live.recording import record_samples
from tests.live.targets import assert_untraced, first_line, python

pytestmark = [pytest.mark.live, needs_gcc]
# Each thread waits in its own way; the mutex is held by a thread that sleeps in `holds`.
SOURCE = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
static pthread_mutex_t cache_lock = PTHREAD_MUTEX_INITIALIZER, work_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t work = PTHREAD_COND_INITIALIZER;
static sem_t room;
static pthread_barrier_t all;
static int ends[2], sockets[2];
static char byte, fifo[4096], other_fifo[4096];
static pthread_once_t table = PTHREAD_ONCE_INIT;
static void begin(void) { write(ends[1], "x", 1); for (;;) sleep(1000); }
static void *holds(void *p) { pthread_mutex_lock(&cache_lock); write(ends[1], "x", 1); for (;;) sleep(1000); }
static void *waits_mutex(void *p) { pthread_mutex_lock(&cache_lock); return 0; }
static void *waits_cond(void *p)
{
    pthread_mutex_lock(&work_lock);
    for (;;) pthread_cond_wait(&work, &work_lock);
}
static void *waits_sem(void *p) { sem_wait(&room); return 0; }
static void *waits_barrier(void *p) { pthread_barrier_wait(&all); return 0; }
static void *waits_pipe(void *p) { read(ends[0], &byte, 1); return 0; }
static void *waits_socket(void *p) { recv(sockets[0], &byte, 1, 0); return 0; }
static void *waits_fifo(void *p) { open(fifo, O_RDONLY); return 0; }
static void *waits_select(void *p)
{
    int end = open(other_fifo, O_RDWR);
    fd_set set;
    FD_ZERO(&set); FD_SET(end, &set);
    select(end + 1, &set, 0, 0, 0);
    return 0;
}
static void *begins(void *p) { flockfile(stderr); pthread_once(&table, begin); return 0; }
static void *waits_once(void *p) { pthread_once(&table, begin); return 0; }
static void *waits_stdio(void *p) { fputs("x", stderr); return 0; }
static void *waits_child(void *p) { waitpid(-1, 0, 0); return 0; }
static void *waits_poll(void *p)
{
    struct pollfd files[2] = {{sockets[0], 0}, {ends[0], 0}};
    poll(files, 2, -1);
    return 0;
}
int main(int count, char **arguments)
{
    void *(*all_of_them[])(void *) = {waits_mutex, waits_mutex, waits_cond, waits_sem, waits_barrier,
                                      waits_pipe, waits_socket, waits_fifo, waits_child, waits_poll,
                                      waits_once, waits_stdio, waits_select};
    pthread_t thread;
    snprintf(fifo, sizeof fifo, "%s.fifo", arguments[0]);
    mkfifo(fifo, 0600);
    snprintf(other_fifo, sizeof other_fifo, "%s.other", arguments[0]);
    mkfifo(other_fifo, 0600);
    pipe(ends);
    socketpair(AF_UNIX, SOCK_STREAM, 0, sockets);
    sem_init(&room, 0, 0);
    pthread_barrier_init(&all, 0, 2);
    if (!fork()) for (prctl(PR_SET_PDEATHSIG, SIGKILL);;) pause();
    pthread_create(&thread, 0, holds, 0);
    read(ends[0], &byte, 1);
    pthread_create(&thread, 0, begins, 0);
    read(ends[0], &byte, 1);
    for (int i = 0; i < 13; i++) pthread_create(&thread, 0, all_of_them[i], 0);
    puts("ready"); fflush(stdout);
    for (;;) pause();
}
"""
FRAMES = {
    "holds": ("[sleep]", "sleep"), "waits_mutex": ("[mutex cache_lock]", "lock"),
    "waits_cond": ("[condition variable work]", "condition"), "waits_sem": ("[semaphore room]", "condition"),
    "waits_barrier": ("[barrier all]", "condition"), "waits_pipe": ("[read: pipe]", "pipe"),
    "waits_socket": ("[recvfrom: unix]", "network"), "waits_child": ("[child]", "child"),
    "waits_select": ("[pselect6: pipe]", "pipe"),
    "begins": ("[sleep]", "sleep"), "waits_once": ("[initialisation table]", "lock"),
    "waits_stdio": ("[libc lock]", "lock"),
    "waits_poll": ("[poll]", "event"), "waits_fifo": ("[open fifo]", "pipe"), "main": ("[signal]", "signal"),
}  # fmt: skip


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_c(tmp_path_factory.mktemp("waits"), "waits", SOURCE, "-pthread", "-g")


def waits(profile: sfsample.Profile) -> dict[str, Counter[tuple[str, str]]]:
    """Return the waits of each function of the program, with their samples."""
    report = sfsample.named(profile)
    found: dict[str, Counter[tuple[str, str]]] = {}
    for stack in report.stacks:
        frames = [report.frames[at] for at in stack.frames]
        own = next(frame.text for frame in frames if frame.text in FRAMES)
        wait = next(((frame.text, frame.raw) for frame in frames if frame.kind == "w"), ("", ""))
        found.setdefault(own, Counter())[wait] += stack.weights[0]
    return found


def test_each_sample_of_a_sleeping_thread_has_its_wait(program: Path) -> None:
    with started(program) as process:
        profile = record_samples(process.pid, 400, rate=50, mode="wall", waits=True)
        found = waits(profile)
        assert found.keys() == FRAMES.keys()
        for function, counts in found.items():
            brief = {wait: n for wait, n in counts.items() if wait != FRAMES[function]}
            assert sum(brief.values()) <= 2, (function, counts)  # samples of its first instants
        assert profile.stats.captures[Capture.READ]
        assert profile.stats.eintr_prone_stops == 0
        most = sfsample.named(profile).stats.most_waiters
        assert (most["[mutex cache_lock]"], most["[condition variable work]"]) == (2, 1)
        assert_untraced(process.pid)


def test_threads_of_python_wait_for_the_gil() -> None:
    code = (
        "import threading\n"
        "def spin():\n    while True: pass\n"
        "for _ in range(2): threading.Thread(target=spin, daemon=True).start()\n"
        "print('ready', flush=True)\nspin()"
    )
    with python(code) as process:
        assert first_line(process) == "ready"
        report = sfsample.named(record_samples(process.pid, 200, rate=50, mode="wall", waits=True))
        shares: Counter[str | None] = Counter()
        for stack in report.stacks:
            wait = next((report.frames[at].raw for at in stack.frames if report.frames[at].kind == "w"), None)
            shares[wait] += stack.weights[0]
        assert shares["gil"] > 50, "two of three threads wait for the GIL, unless they wait for a CPU"
        assert shares.keys() <= {"gil", "cpu", None}
        assert_untraced(process.pid)


POOL = r"""
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t work = PTHREAD_COND_INITIALIZER, answers[2];
static int ready;
static void *wait_at(void *condition)
{
    pthread_mutex_lock(&lock);
    for (ready++;;) pthread_cond_wait(condition, &lock);
}
static void *worker(void *p) { return wait_at(&work); }
static void *session(void *p) { return wait_at(p); }
int main(void)
{
    pthread_t thread;
    for (int i = 0; i < 2; i++) pthread_create(&thread, 0, worker, 0);
    for (int i = 0; i < 2; i++) pthread_create(&thread, 0, session, &answers[i]);
    for (int all = 0; !all;) {
        pthread_mutex_lock(&lock); all = ready == 4; pthread_mutex_unlock(&lock);
    }
    puts("ready"); fflush(stdout);
    for (;;) pause();
}
"""


def test_workers_that_wait_long_at_one_condition_variable_are_idle(tmp_path: Path) -> None:
    with started(compile_c(tmp_path, "pool", POOL, "-pthread", "-g")) as process:
        options = sfsample.RecordOptions(rate=20, mode="wall")
        folded, idle = fold_idle(sfsample.named(sfsample.record(process.pid, 2.5, options)))
        assert [*idle] == ["pool"]
        shown = [[folded.frames[at].text for at in stack.frames] for stack in folded.stacks]
        assert not any("worker" in texts for texts in shown)
        assert any("session" in texts for texts in shown), "each session waits for its own answer"
        brief = sfsample.named(sfsample.record(process.pid, 0.3, options))
        assert fold_idle(brief)[1] == {}, "a second has not passed"
        assert_untraced(process.pid)


@pytest.mark.any_load
def test_a_fifo_on_stdin_is_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    code = (
        "import os, sys\n"
        "os.dup2(os.open(sys.argv[1], os.O_RDWR), 0)\n"
        "print('ready', flush=True)\nos.read(0, 1)"
    )
    with python(code, tmp_path / "fifo") as process:
        assert first_line(process) == "ready"
        wait_for_calls(process.pid, read=1)
        report = sfsample.named(record_samples(process.pid, 10, rate=50, mode="wall", waits=True))
        found = {(frame.text, frame.raw) for frame in report.frames if frame.kind == "w"}
        assert found == {("[read: pipe]", "pipe")}
        assert_untraced(process.pid)
