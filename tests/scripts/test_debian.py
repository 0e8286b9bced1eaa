"""A cache of the scripts (scripts/lib/debian.py) is filled once, also by two processes at a time."""

import subprocess
import sys
from pathlib import Path

from tests.live.targets import HANG_S, first_line, wait_until

FILL = """
import sys
from pathlib import Path
from scripts.lib.debian import filling
root = Path(sys.argv[1])
for empty in filling(root):
    print("filling", flush=True)
    sys.stdin.readline()
    (empty / "made").touch()
print((root / "made").exists())
"""


def start_filling(root: Path) -> "subprocess.Popen[bytes]":
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-c", FILL, root], stdin=pipe, stdout=pipe, stderr=pipe)


def waits_for_a_lock(pid: int) -> bool:
    waiting = (line.split() for line in Path("/proc/locks").read_text().splitlines() if "->" in line)
    return any(str(pid) in words for words in waiting)


def test_second_process_waits_for_the_first(tmp_path):
    with start_filling(tmp_path / "cache/guest") as first:
        assert first_line(first) == "filling"
        with start_filling(tmp_path / "cache/guest") as second:
            wait_until(lambda: waits_for_a_lock(second.pid), "the second waits")
            assert first.communicate(b"\n", HANG_S)[0] == b"True\n"
            assert second.communicate(b"\n", HANG_S) == (b"True\n", b"")
