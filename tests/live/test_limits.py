"""sfsample reports what the system does not provide: descriptors, threads, a visible /proc.

Each case is one line with a remedy and a documented exit code; the target is unharmed.
"""

import _thread
import subprocess
from collections.abc import Callable, Iterator
from functools import partial

import pytest

import sfsample as library
from sfsample.process.procfs import ProcFs
from tests.live.cli_runner import NOBODY, Done, is_root, sampled, sfsample
from tests.live.targets import Target, fixture, running

pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def leaf() -> Iterator[Target]:
    with running(fixture("v3"), "leaf") as target:
        yield target


def has_result(done: Done) -> bool:
    return done.code == 0 or "no files" in done.err[0]


@pytest.mark.parametrize("run", [partial(sampled, "record", enough=has_result), partial(sfsample, "dump")],
                         ids=["record", "dump"])  # fmt: skip
def test_few_descriptors_are_reported(leaf: Target, run: Callable[..., Done]) -> None:
    """How many are enough depends on Python and its imports; the failure is never a traceback."""
    for limit in (10, 13, 16, 20):
        done = run("-p", leaf.pid, wrapper=["sh", "-c", f'ulimit -n {limit}; exec "$@"', "sh"])
        if done.code or limit == 10:
            text = done.refused(1)
            assert text.startswith("sfsample: no files left to open")
            assert "ulimit -n" in text
    leaf.assert_unharmed()


def test_missing_thread_is_reported(leaf: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(_thread, "start_new_thread", refuse)
    with pytest.raises(library.SfsampleError, match="cannot start a thread") as refusal:
        library.record(leaf.pid, 1)
    assert "ulimit -u" in str(refusal.value.help)


def test_memory_map_that_is_refused_later_ends_no_recording(
    leaf: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For other users than root, prctl(PR_SET_DUMPABLE, 0) has this effect."""
    profile, read, refused = library.Profile(99), ProcFs.maps, []

    def maps(proc: ProcFs) -> object:
        if not profile.stats.samples:
            return read(proc)
        refused.append(proc)
        raise library.NotPermitted(proc.pid, "not permitted to read the memory map")

    monkeypatch.setattr(ProcFs, "maps", maps)
    library.record(leaf.pid, should_stop=lambda: bool(refused), profile=profile)
    assert profile.stats.samples
    assert (
        "not permitted to read the memory map any more; what was mapped later has no names"
        in profile.stats.problems
    )


def hiding(level: int) -> list[str]:
    """Return words that run a command as user 65534, with a /proc that hides processes of other users."""
    mount = f'mount -t proc -o hidepid={level} proc /proc && exec "$@"'
    return ["unshare", "--mount", "--propagation", "private", "sh", "-c", mount, "sh", *NOBODY]


def may_hide() -> bool:
    return is_root() and not subprocess.run([*hiding(2), "true"], capture_output=True, check=False).returncode


@pytest.mark.skipif(not may_hide(), reason="may not mount /proc (needs root)")
@pytest.mark.parametrize("level", [1, 2])
def test_hidden_process_is_reported(leaf: Target, level: int) -> None:
    text = sfsample("-p", leaf.pid, "-d", "100ms", wrapper=hiding(level)).refused(4)
    assert text.startswith(f"sfsample: not permitted to look at: {leaf.pid}\n")
    assert "hidepid" in text
    leaf.assert_unharmed()
