"""Makes one real recording for all consumers: all threads of the demonstration workload, in every format."""

import subprocess
import sys
from pathlib import Path

import pytest

from sfsample.report.formats import FORMATS, read_report
from sfsample.report.report import Report
from tests.browser.conftest import browser
from tests.live.targets import FIXTURES

__all__ = ["browser"]


@pytest.fixture(scope="session")
def recorded(tmp_path_factory):
    """Return the report, and the directory with `out.FORMAT` for each format of it."""
    directory = tmp_path_factory.mktemp("recorded")
    path = directory / "out.json"
    command = [
        sys.executable,
        "-m",
        "sfsample",
        "-d",
        "2s",
        "--mode",
        "wall",  # on a busy machine too few samples find a thread on a CPU
        "-q",
        "-o",
        str(path),
        "--",
        str(FIXTURES / "v3/workload"),
        "60",
    ]
    report = _record(command, path)
    while report.total() <= 10:  # on a busy machine the sampler may miss nearly all ticks
        report = _record(command, path)
    for name, writer in FORMATS.items():
        (directory / f"out.{name}").write_bytes(writer.write(report))
    return report, directory


def _record(command: list[str], path: Path) -> Report:
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    return read_report(str(path))
