"""scripts/compare-symbols finds no difference on files of this machine, with few addresses."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sfsample.symbolize.dwarf_lines import available

ROOT = Path(__file__).resolve().parents[2]
LIBRARIES = Path("/usr/lib/x86_64-linux-gnu")
FILES = [path for name in ("libc.so.6", "libstdc++.so.6") if (path := LIBRARIES / name).exists()]
FILES += [ROOT / "tests/fixtures/v3/target"]

needs_binutils = pytest.mark.skipif(
    not (shutil.which("nm") and shutil.which("addr2line")), reason="binutils are not installed"
)


def compare(*words):
    command = [sys.executable, ROOT / "scripts/compare-symbols", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@needs_binutils
@pytest.mark.parametrize("path", FILES, ids=str)
def test_functions_are_those_of_nm(path):
    assert "300 of 300 as nm has it" in compare("--addresses", 300, path)


@needs_binutils
@pytest.mark.skipif(not available(), reason="symbolic is not installed: pip install 'sfsample[lines]'")
def test_lines_are_those_of_addr2line(tmp_path):
    source = ROOT / "tests/fixtures/src/inlines-dwarf5.s"
    subprocess.run(["as", "-o", "a.o", source], cwd=tmp_path, check=True)
    subprocess.run(["ld", "-shared", "-o", "a.so", "a.o"], cwd=tmp_path, check=True)
    out = compare("--inlines", "--addresses", 300, tmp_path / "a.so")
    assert "addr2line: " in out
    assert out.count("agree for 100.0 %") == out.count("addresses, ")
