"""Starts child processes of sfsample: makes the command line that runs the same sfsample again.

`watch` may run as root in a directory that other users may write to.  So absolute paths name the interpreter
and the package.  With -I, Python ignores the current directory, the variables PYTHON* and the user's modules.
`sfsample.__main__` then appends the directory of the package to the search path, because
`pip install --user` and `--target` put the dependencies there.

Source: Python's documentation, "Command line and environment", -I; "The initialization of sys.path".
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress

from sfsample.history import Retention
from sfsample.recording.options import RecordOptions
from sfsample.watching.options import Push
from sfsample.watching.program import Trouble

# absolute paths, made at the start, because the current directory may be removed later
_PYTHON = os.path.abspath(sys.executable or os.readlink("/proc/self/exe"))
_NICE = 19
_MAIN = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "__main__.py")


def own_program(*words: str) -> list[str]:
    """Return the command line that runs this sfsample with these words."""
    return [_PYTHON, "-I", _MAIN, *words]


# Invariant: `parse` turns a child's words into the parent's options (tests/watching/test_own_program.py)


def prune_words(history: str, retention: Retention) -> list[str]:
    """Return the words of the child that tidies a history."""
    limits = f"--keep-for={retention.keep_for!r}s", f"--keep-bytes={retention.keep_bytes}"
    return ["history", "prune", f"--history={history}", *limits]


def push_words(history: str, push: Push) -> list[str]:
    """Return the words of the child that pushes a history."""
    backends = [f"--push={backend.text}" for backend in push.backends]
    auth = [] if push.auth_file is None else [f"--push-auth-file={push.auth_file}"]
    return ["history", "push", f"--history={history}", *backends, *auth, "--follow"]


def dump_words(pids: Sequence[int], path: str, options: RecordOptions, dirs: Sequence[str]) -> list[str]:
    """Return the words of the child that dumps processes to a file, with the unwind options of a watch."""
    chosen = [f"--unwind={','.join(map(str, options.steppers))}", *([] if options.stop else ["--no-stop"])]
    chosen += [f"--debug-dir={directory}" for directory in dirs]
    return ["dump", *map(str, pids), f"--output={path}", "--format=text", "--quiet", *chosen]


def start_child(
    words: list[str], trouble: Trouble, *, stdin: int = subprocess.DEVNULL, stderr: int | None = None
) -> "subprocess.Popen[bytes] | None":
    """Start sfsample in a new session, at the lowest priority; None: it did not start, see `trouble`."""
    try:
        child = subprocess.Popen(own_program(*words), stdin=stdin, stdout=subprocess.DEVNULL, stderr=stderr,
                                 start_new_session=True)  # fmt: skip
    except OSError as failure:
        trouble.met(f"cannot start: sfsample {' '.join(words[:2])}: {failure.strerror}")
        return None
    with suppress(OSError):  # the child has ended
        os.setpriority(os.PRIO_PROCESS, child.pid, _NICE)
    trouble.over()
    return child
