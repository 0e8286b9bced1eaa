"""A thread that sleeps where its stack hangs on a register is stopped once, not at each tick.

Law: what such a stop has told is true for as long as the thread sleeps there, and no longer.
"""

import array
import fcntl
import termios

import pytest

import sfsample
from sfsample.core.arch import AARCH64, AMD64, S390X
from sfsample.core.snapshot import Capture
from sfsample.core.stack import StopReason
from sfsample.process.capture import CapturedStack, ThreadCapturer
from sfsample.process.process import LiveProcess
from sfsample.process.tracer_thread import TracerThread
from sfsample.unwind.unwinder import Unwinder
from tests.live import targets
from tests.live.hanging import calls
from tests.live.recording import record_samples
from tests.live.targets import ARCH, states, wait_until
from tests.live.compiled import compile_c, needs_gcc, started

pytestmark = [pytest.mark.live, needs_gcc]

# pause(2) where it is called; ppoll(2) without an end on AArch64, which has none.  Functions of libc may keep
# the frame pointer on the stack.
SUSPEND_LOCK = {
    AMD64: 'long n = 34; __asm__ volatile("syscall" : "+a"(n) : : "rcx", "r11", "memory");',
    AARCH64: """
    register long n __asm__("x8") = 73, a __asm__("x0") = 0, b __asm__("x1") = 0, c __asm__("x2") = 0;
    register long d __asm__("x3") = 0;
    __asm__ volatile("svc #0" : "+r"(a) : "r"(n), "r"(b), "r"(c), "r"(d) : "memory");
    """,
    S390X: '__asm__ volatile("svc 29" : : : "r2", "memory");',
}[ARCH]
# The frame of `asleep` has a size that only the frame pointer knows.
SLEEPER = """
#include <stdio.h>
#include <string.h>
__attribute__((noinline)) void asleep(int size)
{
    char frame[size];
    memset(frame, 0, size);
    puts(frame[0] ? "no" : "ready");
    fflush(stdout);
    PAUSE
    __asm__ volatile("" : : "r"(frame) : "memory");
}
int main(int count, char **words) { (void)words; asleep(100 * count); return 0; }
""".replace("SUSPEND_LOCK", SUSPEND_LOCK)


def test_one_stop_tells_for_as_long_as_it_sleeps_there(tmp_path):
    with started(compile_c(tmp_path, "sleeper", SLEEPER)) as process:
        wait_until(lambda: states(process.pid) == {"S"}, "it sleeps")
        profile = record_samples(process.pid, 40, rate=50, mode="wall")

    stats = profile.stats
    assert stats.pauses.count == 1
    assert stats.captures[Capture.READ] + stats.captures[Capture.REUSED] > 0
    assert stats.captures.total() == stats.samples
    assert set(stats.stacks) == {StopReason.OUTERMOST}
    [line] = sfsample.folded(profile).splitlines()
    assert ";main;asleep" in line


# It sleeps in turns at two places, with equal pc, sp and argument registers.  syscall() has no frame: where
# it was called is in a register, if the machine has one for that.
TURNS = """
#include <unistd.h>
#include <sys/syscall.h>
static char byte;
__attribute__((noinline)) void wait_twice(void)
{
    syscall(SYS_read, 0, &byte, 1, 0, 0, 0);
    syscall(SYS_read, 0, &byte, 1, 0, 0, 0);
    __asm__ volatile("");
}
int main(void) { for (;;) wait_twice(); }
"""


def test_who_called_a_leaf_is_asked_once_each_time_that_it_sleeps(tmp_path):
    with targets.started([str(compile_c(tmp_path, "turns", TURNS))]) as target:

        def record(_: object) -> None:
            live = LiveProcess(target.pid)
            looker = ThreadCapturer(live, Unwinder(live.modules))
            callers = []
            for _ in range(4):
                looks = [look_asleep(looker, target)]
                while looks[-1].stops:  # it may have been held up on its way back to sleep
                    looks.append(look_asleep(looker, target))
                callers.append({look.stack.frames[1].pc for look in looks})
                assert bool(looks[0].stops) is (ARCH is not AMD64)
                target.send(b"x")
            live.close()
            [first], [second], *others = callers
            assert first < second
            assert others == [{first}, {second}]

        TracerThread(record, lambda: False).run()
        target.assert_unharmed()


def look_asleep(looker: ThreadCapturer, target: targets.Target) -> CapturedStack:
    """Look at it once it has taken what was written, and sleeps again."""
    unread = array.array("i", [0])

    def sleeps() -> bool:
        fcntl.ioctl(target.process.stdin, termios.FIONREAD, unread)
        return unread[0] == 0 and calls(target.pid) == {"read": 1}

    wait_until(sleeps, "it sleeps")
    found = looker.capture(looker._process.thread(target.pid), "S")
    assert isinstance(found, CapturedStack)
    assert found.stack.stop_reason is StopReason.OUTERMOST
    return found
