"""What the load of processes is, from a /proc that the test writes, and once from the real one."""

import os
import time

import pytest

from sfsample.process import load
from sfsample.process.load import METRICS, LoadMeter
from sfsample.process.proc_text import Stat

TICKS = os.sysconf("SC_CLK_TCK")


class Proc:
    """Processes with their threads: state, and the three counters of schedstat."""

    def __init__(self, monkeypatch):
        self.now_s = 100.0
        self.stats, self.threads, self.texts = {}, {}, {}
        monkeypatch.setattr(load, "stat_of", self.stats.get)
        monkeypatch.setattr(load, "read_text", self.read)
        monkeypatch.setattr(
            load.os, "listdir", lambda path: [str(tid) for tid in self.threads[int(path.split("/")[2])]]
        )
        monkeypatch.setattr(load, "path_of", lambda pid: self.texts.get(("group", pid)))
        monkeypatch.setattr(load, "unified_mount_point", lambda: "/groups")

    def process(self, pid, *, cpu_s=0.0, rss=0, threads=None, start=5):
        self.threads[pid] = threads or {pid: ("S", 0, 0, 0)}
        self.stats[pid] = Stat(
            "x", "S", 0, start, threads=len(self.threads[pid]), cpu=round(cpu_s * TICKS), rss=rss
        )
        for tid, (state, *_) in self.threads[pid].items():
            self.stats[f"{pid}/task/{tid}"] = Stat("x", state, 0, start)

    def read(self, path):
        if path in self.texts:
            return self.texts[path]
        if path.endswith("/schedstat"):
            _, _, pid, _, tid, _ = path.split("/")
            return " ".join(map(str, self.threads[int(pid)][int(tid)][1:]))
        return ""

    def meter(self, *wanted):
        return LoadMeter(wanted, lambda: self.now_s)


@pytest.fixture
def proc(monkeypatch):
    return Proc(monkeypatch)


def test_cpu_is_that_of_all_processes_since_the_last_look(proc):
    meter = proc.meter("cpu")
    proc.process(1, cpu_s=100)
    proc.process(2, cpu_s=7)
    assert "cpu" not in meter.read([1, 2])
    proc.now_s += 5
    proc.process(1, cpu_s=104)
    proc.process(2, cpu_s=8)
    assert meter.read([1, 2])["cpu"] == pytest.approx(100)


def test_process_that_is_new_or_has_a_used_pid_counts_from_the_next_look_on(proc):
    meter = proc.meter("cpu")
    proc.process(1, cpu_s=1)
    proc.process(2, cpu_s=50)
    meter.read([1, 2])
    proc.now_s += 10
    proc.process(1, cpu_s=2)
    proc.process(2, cpu_s=0.5, start=6)
    proc.process(3, cpu_s=9)
    assert meter.read([1, 2, 3])["cpu"] == pytest.approx(10)


def test_process_that_has_ended_counts_no_more(proc):
    meter = proc.meter("cpu")
    proc.process(1, rss=1)
    meter.read([1])
    del proc.stats[1]
    proc.now_s += 5
    assert meter.read([1]) == {"threads": 0, "rss": 0}


def test_memory_and_threads_are_added(proc):
    proc.process(1, rss=10, threads={1: ("S", 0, 0, 0), 3: ("S", 0, 0, 0)})
    proc.process(2, rss=5)
    values = proc.meter("rss").read([1, 2])
    assert values == {"threads": 3, "rss": 15 * os.sysconf("SC_PAGE_SIZE")}


def test_pressure_is_the_highest_of_the_groups(proc):
    for pid, group in ((1, "/a"), (2, "/b"), (3, "/gone"), (4, None)):
        proc.process(pid)
        proc.texts["group", pid] = group
    proc.texts["/groups/a/cpu.pressure"] = "some avg10=1.50 avg60=9.00 avg300=0.00 total=1\nfull avg10=50.00"
    proc.texts["/groups/b/cpu.pressure"] = "some avg10=31.25 avg60=9.00 avg300=0.00 total=1\n"
    assert proc.meter("psi.cpu").read([1, 2, 3, 4])["psi.cpu"] == 31.25
    assert "psi.cpu" not in proc.meter("psi.cpu").read([3, 4])
    assert "psi.cpu" not in proc.meter("cpu").read([1])


def test_pressure_of_the_root_is_that_of_the_machine(proc):
    proc.process(1)
    proc.texts["group", 1] = "/"
    proc.texts["/proc/pressure/cpu"] = "some avg10=4.00 avg60=0"
    assert proc.meter("psi.cpu").read([1])["psi.cpu"] == 4


@pytest.mark.parametrize(
    ("ran_s", "waited_s", "delay"), [(3.0, 1.0, 25), (0.0, 2.0, 100), (0.01, 0.02, 0)],
    ids=["a quarter of the time", "no CPU at all", "too little to tell"],
)  # fmt: skip
def test_delay_is_the_share_of_the_time_that_was_wanted(proc, ran_s, waited_s, delay):
    meter = proc.meter("delay")
    proc.process(1, threads={1: ("R", 10**12, 10**12, 9), 2: ("S", 5, 5, 5)})
    assert meter.read([1])["delay"] == 0
    proc.now_s += 5
    ran_ns, waited_ns = round(ran_s * 1e9), round(waited_s * 1e9)
    proc.process(1, threads={1: ("R", 10**12 + ran_ns, 10**12 + waited_ns, 12), 2: ("S", 5, 5, 5)})
    assert meter.read([1])["delay"] == pytest.approx(delay)


def test_thread_is_stuck_as_long_as_it_is_in_the_same_uninterruptible_sleep(proc):
    meter, stuck_s = proc.meter("stuck"), []
    looks = [("S", 7), ("D", 8), ("D", 8), ("D", 8), ("D", 9), ("D", 9), ("S", 10)]
    for state, times in looks:
        proc.process(1, threads={1: (state, 0, 0, times), 2: ("S", 0, 0, 4)})
        stuck_s.append(meter.read([1])["stuck"])
        proc.now_s += 5
    assert stuck_s == [0, 0, 5, 10, 0, 5, 0]


def test_kernel_without_counters_gives_no_value(proc):
    proc.process(1, threads={1: ("D", "", "", "")})
    assert not {"stuck", "delay"} & proc.meter("stuck", "delay").read([1]).keys()


def test_own_load_is_measured():
    meter = LoadMeter(METRICS)
    meter.read([os.getpid()])
    begin_s, used_s = time.monotonic(), time.process_time()
    while time.process_time() < used_s + 0.3:
        pass
    passed_s = time.monotonic() - begin_s
    values = meter.read([os.getpid()])
    assert 0 < values["cpu"] <= 100 * (0.3 + 0.3) / passed_s
    assert values["threads"] >= 1
    assert values["rss"] > 1 << 20
