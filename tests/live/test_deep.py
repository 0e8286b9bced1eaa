"""Every stack in a deep recursion is whole, although sfsample reuses parts of the stack before it."""

from pathlib import Path

import pytest

import sfsample
from sfsample.core.stack import StopReason
from sfsample.process import stack_copy
from tests.live.compiled import compile_c, needs_gcc, started
from tests.live.recording import fewer
from tests.live.targets import HANG_S, assert_untraced, wait_until

pytestmark = [pytest.mark.live, pytest.mark.any_load, needs_gcc]

# `down` is 3,000 times on the stack; then `over` and `up` call themselves to any depth up to 700.  The
# callees of an `up` are only ups.
PROGRAM = """
#include <stdio.h>
#define FUNCTION __attribute__((noinline, noclone, optimize("no-optimize-sibling-calls")))
static volatile long turns;
FUNCTION long up(long left) { turns++; return left ? up(left - 1) + 1 : turns; }
FUNCTION long over(long left) { turns++; return left ? over(left - 1) + up(left) + 1 : turns; }
FUNCTION long down(long left)
{
    if (left) return down(left - 1) + 1;
    puts("ready"); fflush(stdout);
    for (;;) over(turns % 700);
    return turns;
}
int main(int count, char **words) { (void)words; return down(2998 + count) != 0; }
"""
SAMPLES = fewer(150)


def user_time(pid: int) -> int:
    """Return user CPU time in ticks."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11])


def test_stack_that_takes_too_long_to_copy_is_cut_short(tmp_path, monkeypatch):
    """With a limit of 1 ns only the first piece is copied: sfsample uses the piece, and counts the loss."""
    monkeypatch.setattr(stack_copy, "_PIECE_BYTES", 16 * 1024)
    with started(compile_c(tmp_path, "deep", PROGRAM, "-O2")) as process:
        stats = (profile := sfsample.Profile(500)).stats
        options = sfsample.RecordOptions(rate=500, mode="wall", max_pause=1e-9, max_frames=10_000)
        sfsample.record(
            process.pid, HANG_S, options, profile=profile, should_stop=lambda: stats.samples >= 20
        )
        assert set(stats.stacks) == {StopReason.STACK_COPY_ENDED}
        assert all(len(key.locations) > 100 for key in profile.counts)
        assert any("longer than --max-pause" in text for text in stats.problems)
        before = user_time(process.pid)
        wait_until(lambda: user_time(process.pid) > before, "it runs")
        assert_untraced(process.pid)


def test_every_stack_of_a_deep_recursion_is_whole(tmp_path):
    with started(compile_c(tmp_path, "deep", PROGRAM, "-O2")) as process:
        before = user_time(process.pid)
        wait_until(lambda: user_time(process.pid) > before + 2, "it has written `ready` and works")
        profile = sfsample.Profile(500)
        stats = profile.stats
        options = sfsample.RecordOptions(rate=500, mode="wall", max_frames=8000, stack_bytes=4 << 20)
        sfsample.record(
            process.pid, 4 * HANG_S, options, profile=profile, should_stop=lambda: stats.samples >= SAMPLES
        )
    assert stats.samples >= SAMPLES
    assert set(stats.stacks) == {StopReason.OUTERMOST}
    for line in sfsample.folded(profile).splitlines():
        names = line.rpartition(" ")[0].split(";")
        first, last = names.index("main") + 1, names.index("main") + 3001
        assert set(names[first:last]) == {"down"}, line
        inner = [name for name in names[last:] if name != "[runnable: no CPU]"]
        assert inner == sorted(inner), line  # over ... over, up ... up
        assert set(inner) <= {"over", "up"}
        assert len(inner) <= 700
