"""A sleeping thread whose CFA needs a register is stopped once, not at each tick.

The registers of that stop are valid as long as the thread sleeps in the same call.
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
from tests.live.compiled import compile_c, needs_gcc, started
from tests.live.hanging import calls
from tests.live.recording import record_samples
from tests.live.targets import ARCH, states, wait_until

pytestmark = [pytest.mark.live, needs_gcc]

# pause(2), or on AArch64, which has none, ppoll(2) without a time limit.  It is made inline, as functions of
# libc may save the frame pointer on the stack.
PAUSE = {
    AMD64: 'long n = 34; __asm__ volatile("syscall" : "+a"(n) : : "rcx", "r11", "memory");',
    AARCH64: """
    register long n __asm__("x8") = 73, a __asm__("x0") = 0, b __asm__("x1") = 0, c __asm__("x2") = 0;
    register long d __asm__("x3") = 0;
    __asm__ volatile("svc #0" : "+r"(a) : "r"(n), "r"(b), "r"(c), "r"(d) : "memory");
    """,
    S390X: '__asm__ volatile("svc 29" : : : "r2", "memory");',
}[ARCH]
# The CFA of `asleep` depends on the frame pointer.
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
""".replace("PAUSE", PAUSE)


def test_sleeping_thread_is_stopped_once(tmp_path):
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


# It sleeps at two places in turn, with equal pc, sp and argument registers.  syscall() has no frame: its
# return address is in a register, where the architecture has one for that.
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


def test_thread_is_stopped_once_for_each_sleep(tmp_path):
    with targets.started([str(compile_c(tmp_path, "turns", TURNS))]) as target:

        def record(_: object) -> None:
            live = LiveProcess(target.pid)
            capturer = ThreadCapturer(live, Unwinder(live.modules))
            callers = []
            for _ in range(4):
                stacks = [capture_asleep(capturer, target)]
                while stacks[-1].stops:  # it may be stopped again on its way back to sleep
                    stacks.append(capture_asleep(capturer, target))
                callers.append({captured.stack.frames[1].pc for captured in stacks})
                assert bool(stacks[0].stops) is (ARCH is not AMD64)
                target.send(b"x")
            live.close()
            [first], [second], *others = callers
            assert first < second
            assert others == [{first}, {second}]

        TracerThread(record, lambda: False).run()
        target.assert_unharmed()


def capture_asleep(capturer: ThreadCapturer, target: targets.Target) -> CapturedStack:
    """Capture the thread when it has read the byte and sleeps again."""
    unread = array.array("i", [0])

    def sleeps() -> bool:
        fcntl.ioctl(target.process.stdin, termios.FIONREAD, unread)
        return unread[0] == 0 and calls(target.pid) == {"read": 1}

    wait_until(sleeps, "it sleeps")
    captured = capturer.capture(capturer._process.thread(target.pid), "S")
    assert isinstance(captured, CapturedStack)
    assert captured.stack.stop_reason is StopReason.OUTERMOST
    return captured
