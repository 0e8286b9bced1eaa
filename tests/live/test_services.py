"""A service is a name within its owner: no claim of a process leads to the service of another."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.live.cli_runner import begun, ended, is_root, sfsample
from tests.live.targets import LineReader, wait_until
from tests.watching.push.fake_backend import backend, decode

pytestmark = [
    pytest.mark.live,
    pytest.mark.any_load,
    pytest.mark.skipif(not is_root(), reason="needs two users (root)"),
]
REAL, FAKE = 62_001, 62_002  # uids


@contextmanager
def claiming(name: str, uid: int) -> Iterator[int]:
    """Run a busy program of a user that says which service it is; yield its pid."""
    user = ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups"]
    words = [*user, sys.executable, "-S", "-c", "print(flush=True)\nwhile True: pass"]
    environment = {**os.environ, "OTEL_SERVICE_NAME": name}
    with subprocess.Popen(words, stdout=subprocess.PIPE, env=environment) as child:
        try:
            assert child.stdout is not None
            LineReader(child.stdout.fileno()).line()
            yield child.pid
        finally:
            child.kill()


def slices(history: Path) -> list[dict[str, object]]:
    done = sfsample("history", "list", "--json", "--history", history)
    return json.loads(done.out)["slices"] if done.code == 0 else []  # type: ignore[no-any-return]


def services(history: Path) -> set[object]:
    return {each["service"] for each in slices(history)}


def test_one_claim_of_two_users_is_two_services(tmp_path: Path) -> None:
    history = ("--history", tmp_path / "h")
    names = {f"user-{uid}/redis" for uid in (REAL, FAKE)}
    with claiming("redis", FAKE) as fake, claiming("redis", REAL) as real, backend() as store:
        words = (
            "watch",
            "-p",
            f"{fake},{real}",
            "--every",
            "1s",
            *history,
            "--push",
            f"otlp={store.address}",
        )
        with begun(*words) as child:
            wait_until(lambda: services(tmp_path / "h") == names, "both are kept")
            wait_until(lambda: len(store.taken) >= 2, "both are pushed")
            child.send_signal(signal.SIGTERM)
            assert ended(child).code == 0
        assert {decode("otlp", request)[1]["service.name"] for request in store.taken} == names
    for each in slices(tmp_path / "h"):
        assert each["labels"]["service.name"] == each["service"]  # type: ignore[index]
    for name in names:
        shown = sfsample("history", "show", "--service", name, *history)
        assert (shown.code, shown.out.decode().partition(":")[0]) == (0, name)
    text = sfsample("history", "show", "--service", "redis", *history).refused(1)
    assert text.startswith(f"sfsample: several services have this name: {', '.join(sorted(names))}\n")


def test_claim_that_comes_first_locks_nobody_out(tmp_path: Path) -> None:
    history = ("--every", "1s", "--history", tmp_path / "h")
    with ExitStack() as stack:
        watches = []
        for uid in (FAKE, REAL):
            pid = stack.enter_context(claiming("redis", uid))
            watches.append(stack.enter_context(begun("watch", "-p", pid, *history)))
            wait_until(lambda uid=uid: f"user-{uid}/redis" in services(tmp_path / "h"), "it is kept")  # type: ignore[misc]
        for child in watches:
            child.send_signal(signal.SIGTERM)
        for child in watches:
            done = ended(child)
            assert (done.code, [line for line in done.err if "another watch" in line]) == (0, [])


def test_target_that_flags_name_is_the_service_whatever_it_claims(tmp_path: Path) -> None:
    name = f"sfclaim{os.getpid()}"
    program = tmp_path / name
    program.symlink_to(sys.executable)
    words = [program, "-S", "-c", "print(flush=True)\nwhile True: pass"]
    environment = {**os.environ, "OTEL_SERVICE_NAME": "redis"}
    with subprocess.Popen(words, stdout=subprocess.PIPE, env=environment) as target, ExitStack() as stack:
        stack.callback(target.kill)
        assert target.stdout is not None
        LineReader(target.stdout.fileno()).line()
        for labels, label in (((), name), (("--label", "service.name=shop"), "shop")):
            history = tmp_path / f"history-{label}"
            with begun("watch", "-n", name, "--every", "1s", "--history", history, *labels) as child:
                wait_until(lambda history=history: slices(history), "a slice")  # type: ignore[misc]
                child.send_signal(signal.SIGTERM)
                done = ended(child)
            assert done.code == 0, done.err
            found = {(each["service"], each["labels"]["service.name"]) for each in slices(history)}  # type: ignore[index]
            assert found == {(name, label)}
