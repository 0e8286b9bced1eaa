"""Each slice of a history reaches each backend, whatever that does; and what does not is counted."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from sfsample.cli import main
from sfsample.cli.terminal import say_at
from sfsample.history.facts import Selection
from sfsample.history.store import History
from sfsample.report.time_slices import TIME_UNIT_NS
from sfsample.watching.push.backend import parse_backend
from sfsample.watching.push.pusher import Pusher
from tests.builders.histories import DAY_S, MIDNIGHT_S, delete, minute
from tests.watching.push.fake_backend import (
    answer,
    backend,
    decode,
    drip,
    endless_body,
    endless_head,
    garbage,
    hang,
    hang_up,
    reset,
)

KINDS = ("pyroscope", "parca", "otlp")
LABELS = {"service.name": "shop", "host.name": "web1", "team": "a"}
TEMPORARY = {
    "garbage": garbage, "no answer": hang_up, "reset": reset, "endless head": endless_head,
    "429": answer("429 Too Many Requests", b"slow down"),
    "503": answer("503 Service Unavailable"), "502": answer("502 Bad Gateway"),
    "504": answer("504 Gateway Timeout"), "500": answer("500 Internal Server Error"),
    "301": answer("301 Moved Permanently", b"", "Location: http://127.0.0.1:1/"),
}  # fmt: skip


@pytest.fixture
def fake():
    with backend() as it:
        yield it


@pytest.fixture
def history(tmp_path):
    it = History(str(tmp_path / "history"))
    fill(it, 0, 3)
    yield it
    it.close()


def fill(history, begin, count, **facts):
    for at in range(begin, begin + count):
        rows = (("main;work", 5 + at, 70, 40), ("main;idle", 7, 70, 0))
        history.add(minute(at, *rows, **{"labels": LABELS, **facts}))


def pusher_to(fake, history, kind="pyroscope", auth=None):
    return Pusher(history, parse_backend(f"{kind}={fake.address}"), auth, say_at)


def left(pusher):
    return sum(1 for _ in pusher.unsent())


def totals(history):
    report = history.report(Selection())
    sums = Counter()
    for stack in report.stacks:
        names = tuple(report.frames[at].text for at in stack.frames)
        for kind, weight in zip(report.weights, stack.weights, strict=True):
            sums[names, kind] += weight
    return +sums


def decoded(fake, kind="pyroscope"):
    """Return the sums of all that was taken; a slice that came twice counts once."""
    found = {}
    for at, request in enumerate(fake.taken):
        unique, _, sums = decode(kind, request)
        found[unique or at] = sums
    return sum(found.values(), Counter())


@pytest.mark.parametrize("kind", KINDS)
def test_backend_gets_all_of_the_history_once(fake, history, kind, capsys):
    words = ["history", "push", "--history", history.directory, "--push", f"{kind}={fake.address}/base/"]
    assert main(words) == 0
    assert "3 slices sent, 0 left" in capsys.readouterr().err
    assert decoded(fake, kind) == totals(history)
    path = {"pyroscope": "/push.v1.PusherService/Push", "parca": "/api/profiles/writeraw",
            "otlp": "/v1development/profiles"}[kind]  # fmt: skip
    assert {request.line for request in fake.requests} == {f"POST /base{path} HTTP/1.1"}
    assert main(words) == 0
    assert len(fake.requests) == 3
    fill(history, 3, 2)
    assert main(words) == 0
    assert len(fake.requests) == 5
    assert decoded(fake, kind) == totals(history)


@pytest.mark.parametrize("kind", KINDS)
def test_labels_of_the_slice_name_the_series(fake, history, kind):
    pusher_to(fake, history, kind).push()
    _, labels, _ = decode(kind, fake.taken[0])
    if kind == "otlp":
        assert labels == LABELS
    else:
        assert labels == {"__name__": "process_cpu", "service_name": "shop", "host_name": "web1", "team": "a"}


@pytest.mark.parametrize("failure", TEMPORARY)
@pytest.mark.parametrize("kind", KINDS)
def test_slice_waits_while_a_backend_fails(fake, history, kind, failure, capsys):
    fake.behaviours = [TEMPORARY[failure], TEMPORARY[failure]]
    pusher = pusher_to(fake, history, kind)
    begin_s = time.monotonic()
    for _ in range(2):
        assert not pusher.push()
        assert left(pusher) == 3
        assert pusher.due_s > begin_s
    assert capsys.readouterr().err.count("cannot push to") == 1  # said once
    assert pusher.push()
    assert not pusher.mark.dropped
    assert decoded(fake, kind) == totals(history)
    assert "pushed again" in capsys.readouterr().err
    assert len({request.body for request in fake.requests[:3]}) == 1  # the same slice each time


def test_pauses_grow_and_are_not_all_the_same(fake, history):
    pauses = []
    for _ in range(4):
        fake.behaviours = [answer("503 Later")] * 6
        pusher = pusher_to(fake, history)
        row = []
        for _ in range(6):
            begin_s = time.monotonic()
            pusher.push()
            row.append(pusher.due_s - begin_s)
        pauses.append(row)
    assert min(row[5] for row in pauses) > max(row[0] for row in pauses)
    assert len({row[5] for row in pauses}) > 1


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 422])
def test_refused_slice_is_counted_and_said_once(fake, history, status, capsys):
    fake.behaviours = [answer(f"{status} No", b"out\x1b[0m of order")] * 2
    pusher = pusher_to(fake, history)
    assert pusher.push()
    assert pusher.mark.dropped == {f"status {status}": 2}
    assert pusher.mark.sent == len(fake.taken) == 1
    said = capsys.readouterr().err
    assert said.count(f"status {status}") == 1
    assert "out?[0m of order" in said


def test_slice_at_which_a_backend_always_fails_is_given_up(fake, history):
    fake.behaviours = [answer("500 Internal Server Error")] * 10
    pusher = pusher_to(fake, history)
    assert [pusher.push() for _ in range(10)] == [False] * 9 + [True]
    assert pusher.mark.dropped == {"status 500": 1}
    assert len(fake.taken) == 2


@pytest.mark.parametrize("behaviour", [hang, drip])
def test_backend_that_hangs_is_left(fake, history, behaviour, monkeypatch):
    monkeypatch.setattr("sfsample.watching.push.pusher._TOTAL_S", 0.05)
    fake.behaviours = [behaviour]
    pusher = pusher_to(fake, history)
    assert not pusher.push()
    monkeypatch.undo()
    assert left(pusher) == 3
    assert pusher.push()
    assert decoded(fake) == totals(history)


def test_endless_body_is_not_read_to_its_end(fake, history):
    fake.behaviours = [endless_body] * 3
    pusher = pusher_to(fake, history)
    assert pusher.push()
    assert pusher.mark.sent == 3


def test_failure_that_lasts_is_said_once_whatever_the_backend_adds(fake, history, capsys):
    fake.behaviours = [answer("503 Later", f"request {number}".encode()) for number in range(3)]
    pusher = pusher_to(fake, history)
    for _ in range(3):
        pusher.push()
    said = capsys.readouterr().err
    assert said.count("status 503") == 1
    assert "request 0" in said


def test_refused_connection(tmp_path, history, capsys):
    with backend() as gone:
        pusher = pusher_to(gone, history)
    assert not pusher.push()
    assert "Connection refused" in capsys.readouterr().err


KILLED = """
import os, sys
from sfsample.cli import main
from sfsample.watching.push.backend import Mark
save = Mark.save
Mark.save = lambda mark: os.kill(os.getpid(), 9) if mark.sent == 2 else save(mark)
main(sys.argv[1:])
"""


@pytest.mark.parametrize("kind", KINDS)
def test_process_killed_between_answer_and_mark_sends_the_slice_again(fake, history, kind):
    words = ["history", "push", "--history", history.directory, "--push", f"{kind}={fake.address}"]
    done = subprocess.run([sys.executable, "-c", KILLED, *words], check=False)
    assert done.returncode == -signal.SIGKILL
    assert len(fake.taken) == 2
    assert main(words) == 0
    bodies = [request.body for request in fake.taken]
    assert len(bodies) == 4
    assert bodies[1] == bodies[2]  # with the same id
    if kind != "parca":
        assert decoded(fake, kind) == totals(history)
    else:  # which has no id
        del fake.taken[1]
        assert decoded(fake, kind) == totals(history)


def test_two_processes_do_not_push_the_same(fake, history, capsys):
    with pusher_to(fake, history).mark.locked():
        words = ["history", "push", "--history", history.directory, "--push", f"pyroscope={fake.address}"]
        assert main(words) == 1
    said = capsys.readouterr().err
    assert said.count("another process pushes this history to this backend") == 1
    assert "0 slices sent, 3 left" in said
    assert not fake.requests


def test_each_backend_gets_each_slice_of_each_service_once(fake, history):
    fill(history, 3, 2, service="bank", labels={})
    assert pusher_to(fake, history).push()
    fill(history, 6, 1)
    assert pusher_to(fake, history).push()
    assert len(fake.taken) == 3 + 2 + 1
    assert decoded(fake) == totals(history)
    assert pusher_to(fake, history, "parca").push()
    assert len(fake.taken) == 6 + 6


def test_failures_that_alternate_are_said_once_until_it_works_again(fake, history, capsys):
    fake.behaviours = [answer("503 Later"), hang_up, answer("502 Bad Gateway"), answer("200 OK"), reset]
    pusher = pusher_to(fake, history)
    for _ in range(5):
        pusher.push()
    said = [line.partition("Z ")[2] for line in capsys.readouterr().err.splitlines() if "push" in line]
    assert [line.split()[0] for line in said] == ["cannot", "pushed", "cannot", "pushed"]
    assert "status 503" in said[0]


@pytest.mark.parametrize("deleted", [range(2, 3), range(1, 3), range(1, 2), range(3)])
def test_slices_after_deleted_ones_are_sent(fake, history, deleted):
    """Their numbers are not those of the deleted ones; where all are deleted, the file is another one."""
    pusher = pusher_to(fake, history)
    assert pusher.push()
    begin_s = MIDNIGHT_S + 60.0 * deleted[0]
    delete(history, Selection(None, begin_s, begin_s + 60.0 * len(deleted)))
    fill(history, 5, 3)
    fake.taken.clear()
    assert pusher.push()
    assert pusher.push()
    assert len(fake.taken) == 3
    assert sum(decoded(fake).values()) == sum(5 + at + 7 + 180 * TIME_UNIT_NS for at in (5, 6, 7))


def test_backend_that_fails_does_not_hold_another_one(fake, history):
    with backend() as gone:
        url = gone.address
    words = ["history", "push", "--history", history.directory, "--push", f"parca={url}"]
    assert main([*words, "--push", f"pyroscope={fake.address}"]) == 1
    assert decoded(fake) == totals(history)


def test_slice_that_was_merged_before_it_was_sent_is_not_sent(fake, history):
    fake.behaviours = [answer("200 OK"), answer("503 Later")]
    pusher = pusher_to(fake, history)
    assert not pusher.push()
    history.tidy(MIDNIGHT_S + 4 * DAY_S)
    fill(history, 4 * 1440, 1)
    assert pusher.push()
    assert pusher.mark.sent == 2


def test_mark_that_cannot_be_written_is_a_failed_attempt(fake, history, capsys):
    pusher = pusher_to(fake, history)
    os.mkdir(pusher.mark.path)
    assert not pusher.push()
    assert "Is a directory" in capsys.readouterr().err
    os.rmdir(pusher.mark.path)
    assert pusher.push()
    assert decoded(fake) == totals(history)


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"done": 7}', '{"done": {"a": [1]}, "dropped": {}}', "\0"])
def test_damaged_mark_is_no_mark(fake, history, text):
    pusher = pusher_to(fake, history)
    assert pusher.push()
    Path(pusher.mark.path).write_text(text)
    again = pusher_to(fake, history).mark
    assert (again.sent, again.done) == (0, {})


def test_mark_is_private_and_has_no_secret(fake, history, tmp_path):
    auth = tmp_path / "auth"
    auth.write_text("Authorization: Bearer abc123\nX-Scope-OrgID: team\n")
    auth.chmod(0o600)
    fake.behaviours = [answer("422 No", b"I do not know Bearer abc123")]
    pusher = pusher_to(fake, history, auth=str(auth))
    assert pusher.push()
    assert {request.headers["authorization"] for request in fake.requests} == {"Bearer abc123"}
    assert {request.headers["x-scope-orgid"] for request in fake.requests} == {"team"}
    assert os.stat(pusher.mark.path).st_mode & 0o777 == 0o600
    for path in Path(history.directory).iterdir():
        assert b"abc123" not in path.read_bytes()


def test_secret_that_a_backend_repeats_is_not_said(fake, history, tmp_path, capsys):
    auth = tmp_path / "auth"
    auth.write_text("Authorization: Bearer abc123\n")
    auth.chmod(0o600)
    fake.behaviours = [answer("422 No", b"unknown: abc123"), answer("503 No", b"unknown: abc123")]
    pusher_to(fake, history, auth=str(auth)).push()
    said = capsys.readouterr().err
    assert said.count("unknown: ***") == 2
    assert "abc123" not in said


def test_what_is_left_is_exit_code_1(fake, history, capsys):
    fake.behaviours = [answer("503 Later")]
    words = ["history", "push", "--history", history.directory, "--push", f"parca={fake.address}"]
    assert main(words) == 1
    assert "0 slices sent, 3 left" in capsys.readouterr().err
    fake.behaviours = [answer("422 No")]
    assert main(words) == 1
    assert "2 slices sent, 1 dropped (status 422), 0 left" in capsys.readouterr().err
    assert json.loads(Path(pusher_to(fake, history, "parca").mark.path).read_text())["sent"] == 2


WAITS = [("120", 119), ("99999999999", 3599), ("soon", 0), ("-5", 0),
         ("Wed, 21 Oct 2099 07:28:00 GMT", 0)]  # fmt: skip


@pytest.mark.parametrize(("text", "at_least_s"), WAITS)
def test_store_is_left_alone_as_long_as_it_asks(fake, history, text, at_least_s):
    fill(history, 0, 1)
    fake.behaviours = [answer("429 Too Many Requests", b"", f"Retry-After: {text}")]
    pusher = pusher_to(fake, history)
    assert not pusher.push()
    assert at_least_s <= pusher.due_s - time.monotonic() <= max(at_least_s + 1, 2)
