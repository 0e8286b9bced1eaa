"""Settings for every test: signal handlers, hypothesis without time limits, and the option `--all`.

Without `--all` the run needs no network and takes minutes.  It leaves out tests marked `extended` (other
architectures under qemu, programs that read sfsample's formats, long live tests), and its last lines say so.
"""

import signal
from importlib.util import find_spec

import pytest

# a shell that starts us in the background has us ignore Ctrl-C, nohup(1) a terminal that goes away, and
# programs that we start inherit that
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

if find_spec("hypothesis"):  # a guest of another architecture has none, and runs no test that wants it
    from hypothesis import HealthCheck, settings

    settings.register_profile("no time limits", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("no time limits")


_left_out = pytest.StashKey[int]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add this project's options."""
    parser.addoption("--all", action="store_true", help="run the tests that are marked `extended` too")
    parser.addoption("--update-golden", action="store_true", help="write tests/golden instead of comparing")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out extended tests, unless they were asked for by `--all` or by name."""
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
