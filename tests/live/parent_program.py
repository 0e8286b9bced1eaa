"""A target that starts children on request, and reports them."""

import contextlib
import os
import signal
import sys
from collections.abc import Iterator

from tests.live.targets import Target, fixture, started

# Reads an order from each line.  child: start a program that spins.  grandchild: start a shell that starts
# such a program.  kill: kill the first child.  Any other: start 50 programs one after the other that end at
# once.  It writes the id of the new process, or the exit status.
PARENT = """
import os, subprocess, sys, time
out = os.fdopen(int(sys.argv[1]), "w", buffering=1)
target = sys.argv[2]
say = lambda *words: print(*words, file=out)
children = []
say("ready", os.getpid())
for line in sys.stdin:
    if line == "child\\n":
        children.append(subprocess.Popen([target, "leaf", "1"], stdout=subprocess.PIPE))
        say("child", children[-1].stdout.readline().split()[1].decode())
    elif line == "grandchild\\n":
        words = ["sh", "-c", f"'{target}' recursion 1 & wait"]
        children.append(subprocess.Popen(words, stdout=subprocess.PIPE))
        say("child", children[-1].stdout.readline().split()[1].decode())
    elif line == "kill\\n":
        children[0].kill()
        say("ended", children.pop(0).wait())
    else:
        say("ended", sum(subprocess.call(["true"]) for _ in range(50)))
for child in children:
    child.kill()
    child.wait()
"""


@contextlib.contextmanager
def parent() -> Iterator[Target]:
    """Run the program in its own session; kill the session at the end."""
    with started(
        [sys.executable, "-c", PARENT, "{fd}", str(fixture("v3"))], start_new_session=True
    ) as target:
        try:
            target.await_ready()
            yield target
            target.assert_unharmed()
        finally:
            os.killpg(target.pid, signal.SIGKILL)


def send_order(target: Target, order: str, answer: str = "child") -> int:
    """Send an order; return the number in the answer."""
    target.send(f"{order}\n".encode())
    return target.reader.number(answer)
