"""Sampling by an ordinary user costs no setuid program its privileges.

execve(2) gives a program none while a process without CAP_SYS_PTRACE traces the calling thread.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sfsample.process.exec_guard import TOO_YOUNG
from tests.live.cli_runner import NOBODY, STOPPING, is_root, sampled, sfsample
from tests.live.compiled import compile_c, needs_gcc, started
from tests.live.recording import fewer
from tests.live.targets import HANG_S, assert_untraced
from tests.live.test_cli_errors import make_public

pytestmark = [
    pytest.mark.live,
    needs_gcc,
    pytest.mark.skipif(not is_root() or shutil.which("setpriv") is None, reason="needs root and setpriv"),
]

SPIN = '#include <stdio.h>\nint main(void) { puts("ready"); fflush(stdout); for (;;); }\n'
HELPER = "#include <unistd.h>\nint main(void) { return geteuid() != 0; }\n"
CHILDREN, ARGUMENTS = 50, fewer(20_000)
# Creates children, some at a time.  Each runs for a while, and executes the helper with many arguments, so
# that execve(2) takes long: `forked` itself, `wrapped` as another program.
PARENT = f"""
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
static char *arguments[{ARGUMENTS} + 2];
static void burn_and_execute(void) {{
    while (clock() < CLOCKS_PER_SEC / 50);
    for (int i = 1; i <= {ARGUMENTS}; i++) arguments[i] = "an argument of some thirty bytes";
    arguments[0] = "./helper";
    execv("./helper", arguments);
    _exit(2);
}}
int main(int count, char **words) {{
    if (!strcmp(words[1], "child")) burn_and_execute();
    int started = 0, ended = 0, results[3] = {{0, 0, 0}}, status;
    while (ended < {CHILDREN}) {{
        if (started < {CHILDREN} && started - ended < 3) {{
            started++;
            if (fork()) continue;
            if (!strcmp(words[1], "forked")) burn_and_execute();
            execl(words[0], words[0], "child", (char *)0);
            _exit(2);
        }}
        wait(&status);
        ended++;
        results[WEXITSTATUS(status) % 3]++;
    }}
    fprintf(stderr, "kept %d, lost %d, failed %d\\n", results[0], results[1], results[2]);
}}
"""


@pytest.fixture
def parent(tmp_path: Path) -> Path:
    """Compile the programs; others may execute them, and the helper is a setuid program of root."""
    make_public(tmp_path)
    if os.statvfs(tmp_path).f_flag & os.ST_NOSUID:
        pytest.skip(f"{tmp_path} is mounted with nosuid")
    compile_c(tmp_path, "helper", HELPER).chmod(0o4755)
    return compile_c(tmp_path, "parent", PARENT)


@pytest.mark.parametrize("way", ["forked", "wrapped"])
def test_children_keep_the_privileges_of_a_setuid_program(parent: Path, way: str) -> None:
    words = ["record", "-s", "-r", 1000, "--mode", "wall", "-o", os.devnull, "-v", "--", parent, way]
    done = sfsample(*words, wrapper=NOBODY, cwd=parent.parent)
    (result,) = (line for line in done.err if line.startswith("kept "))
    assert result == f"kept {CHILDREN}, lost 0, failed 0"
    assert TOO_YOUNG in "\n".join(done.err)  # so children were due to be stopped


def test_a_process_that_is_no_longer_young_is_stopped(tmp_path: Path) -> None:
    make_public(tmp_path)
    spin = compile_c(tmp_path, "spin", SPIN)
    with started(spin, wrapper=NOBODY) as process:
        done = sampled(process.pid, *STOPPING, wrapper=NOBODY, cwd=tmp_path)
        assert_untraced(process.pid)
    assert done.stacks()
    assert re.search(r"(?m)^  pause .* stops?\)$", "\n".join(done.err))


@pytest.mark.parametrize(("target", "permitted"), [("os.getpid()", True), ("os.getppid()", False)])
def test_access_is_found_out_without_tracing(target: str, permitted: bool) -> None:
    code = f"import os; from sfsample.process.vm import may_access; print(may_access({target}))"
    words = [*NOBODY, sys.executable, "-c", code]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, timeout=HANG_S, check=True)
    assert done.stdout == f"{permitted}\n"
