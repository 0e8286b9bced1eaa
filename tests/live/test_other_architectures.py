"""The live tests on other architectures, in guests under qemu (scripts/test-arch).

A few of them, since all of it is emulated: kinds of stacks, SFrame generations, signals, dumps.  Those that
count samples in a given time (record, watch) may find none in a guest that slow, and are not among them.
To run all: `scripts/test-arch arm64`.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.live

ROOT = Path(__file__).parents[2]
QEMU = {"arm64": "qemu-system-aarch64", "s390x": "qemu-system-s390x"}
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
CHAINS = (
    "(running and v3-target and not nopie and (leaf or plt or qsort or framepointer or nested or nullcall))"
    " or (running and not nopie and (v1-target or v2-target) and nested)"
    " or (sleep-v3-target and not nopie and not alone)"
)
OTHERS = (
    "tests/live/test_signals.py::test_a_signal_that_finds_the_thread_held_is_delivered",
    "tests/live/test_cli_dump.py::test_a_sleeping_thread_tells_its_system_call",
)


@pytest.mark.parametrize("guest", QEMU)
def test_live(guest):
    missing = [name for name in (QEMU[guest], "cpio", "apt-get") if shutil.which(name) is None]
    missing += [] if KEYRING.exists() else ["debian-archive-keyring"]
    if missing:
        pytest.skip(f"no {guest} guest: {', '.join(missing)} not installed")
    pytest_in_guest = "python3 -m pytest -q --color=no -p no:cacheprovider --tb=short"
    command = (f"{pytest_in_guest} tests/live/test_chains.py -k '{CHAINS}' && "
               f"{pytest_in_guest} {' '.join(OTHERS)}")  # fmt: skip
    words = (sys.executable, ROOT / "scripts/test-arch", guest, "--command", command)
    found = subprocess.run(words, capture_output=True, text=True, check=False)

    assert found.returncode == 0, found.stdout + found.stderr
    assert len(re.findall(r"^\d+ passed", found.stdout, re.MULTILINE)) == 2
