"""The man page has every command and flag, and man(1) finds no mistake in it."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sfsample.cli.commands import ENTRIES
from sfsample.cli.parse import describe

SCRIPT = Path(__file__).parents[2] / "scripts/man-page"


def test_page_has_every_command_and_flag() -> None:
    page = subprocess.run([sys.executable, SCRIPT], capture_output=True, text=True, check=True).stdout
    for command in ENTRIES:
        section = page.partition(f".SS sfsample {command}\n")[2].partition(".SS ")[0]
        for flag in describe(command):
            assert all(name.replace("-", r"\-") in section for name in flag.names)
    if shutil.which("groff") is None:
        pytest.skip("groff is not installed")
    command = ["groff", "-man", "-Tutf8", "-ww", "-z"]
    checked = subprocess.run(command, input=page, capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stderr) == (0, "")
