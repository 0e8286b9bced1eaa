"""Settings of every test: signal handlers, Hypothesis without time limits, and the option `--all`.

Without `--all` the run needs no network and takes about 11 minutes on two CPUs.  It leaves out tests that
are marked `extended`: long ones, older versions of SFrame where all run the same code, other architectures
under qemu, and programs that read sfsample's formats.  Its last lines say so.
"""

import compileall
import signal
from importlib.util import find_spec
from pathlib import Path

import pytest

# A shell that starts pytest in the background ignores SIGINT for it, nohup(1) ignores SIGHUP, and programs
# that the tests start inherit this.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

if find_spec("hypothesis"):  # the guests of other architectures have none, and need none
    from hypothesis import HealthCheck, settings

    settings.register_profile("no time limits", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("no time limits")


_left_out = pytest.StashKey[int]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add this project's options."""
    parser.addoption("--all", action="store_true", help="run the tests that are marked `extended` too")
    parser.addoption("--update-golden", action="store_true", help="write tests/golden instead of comparing")


def pytest_sessionstart(session: pytest.Session) -> None:
    """Compile the package: tests start it hundreds of times.

    With PYTHONDONTWRITEBYTECODE, which images of containers set, each start would compile 200 modules, for a
    second.
    """
    if not hasattr(session.config, "workerinput"):  # once, not in each worker of pytest-xdist
        compileall.compile_dir(Path(__file__).parents[1] / "sfsample", quiet=2)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out extended tests, unless `--all` or their own names select them."""
    by_name = any("::" in argument for argument in config.args)
    if config.option.all or by_name:
        return
    extended = [item for item in items if item.get_closest_marker("extended")]
    config.stash[_left_out] = len(extended)
    config.hook.pytest_deselected(items=extended)
    items[:] = [item for item in items if not item.get_closest_marker("extended")]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say how many tests were left out, and how to run them."""
    if count := config.stash.get(_left_out, 0):
        terminalreporter.write_line(f"{count} extended tests were left out; sh scripts/test --all runs them")
