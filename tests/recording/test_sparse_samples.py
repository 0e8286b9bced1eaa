"""Too few samples are too few only if that is not by chance."""

from types import SimpleNamespace

import pytest

from sfsample.recording.sparse_samples import SparseSamples
from sfsample.recording.stats import Stats


def sparse(enough=0.5):
    cpu = SimpleNamespace(ns=10**9)
    stats = Stats(100)
    stats.samples, stats.cpu_sampled_ns = 50, 5 * 10**8
    return SparseSamples(SimpleNamespace(cpu_ns=lambda: cpu.ns), stats, enough), cpu, stats


@pytest.mark.parametrize(
    ("due", "samples", "few"),
    [(8, 0, False), (10, 0, True), (100, 49, True), (100, 50, False), (1000, 499, True), (0, 0, False)],
)
def test_samples_are_compared_with_the_cpu_time(due, samples, few):
    check, cpu, stats = sparse()
    cpu.ns += due * 10**7
    stats.samples += samples
    stats.cpu_sampled_ns += samples * 10**7
    assert check.too_few() is check.stand_for_little() is few


def test_many_samples_may_stand_for_little():
    check, cpu, stats = sparse()
    cpu.ns += 10**9
    stats.samples += 90
    stats.cpu_sampled_ns += 3 * 10**8
    assert not check.too_few()
    assert check.stand_for_little()


def test_ticks_that_were_left_out_are_not_missing():
    check, cpu, stats = sparse(0.8)
    cpu.ns += 10**9
    stats.samples += 20
    assert check.too_few()
    stats.late_ticks, stats.spared_ticks = 40, 40
    assert not check.too_few()
    check.restart()
    cpu.ns += 10**9
    assert check.too_few()


def test_end_of_a_process_is_no_loss():
    check, cpu, _ = sparse()
    cpu.ns = 0
    assert not check.too_few()
