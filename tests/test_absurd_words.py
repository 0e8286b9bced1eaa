"""Each door takes absurd words, and gives a value or a refusal of one line: no exception, no endless wait."""

import errno
import json
import os
import shutil
import socket
import sqlite3
import threading
import time
from contextlib import closing, suppress
from math import isfinite
from pathlib import Path
from types import SimpleNamespace

import pytest

from sfsample.cli import main
from sfsample.cli.commands import ENTRIES
from sfsample.cli.environment import symbol_options
from sfsample.cli.options import NameFlags
from sfsample.cli.parse import _command_parser
from sfsample.cli.terminal import say_at
from sfsample.cli.values import when
from sfsample.core.filesystem import Root, open_regular
from sfsample.core.foreign import natural, utc
from sfsample.core.python_view import PythonView
from sfsample.core.quantities import BadValue
from sfsample.errors import BadInput, SfsampleError
from sfsample.formats.protobuf import integer, message
from sfsample.history.facts import COLUMNS, Selection
from sfsample.history.paths import file_names
from sfsample.history.store import History
from sfsample.process import proc_text
from sfsample.process.facts.descriptors import SocketTable
from sfsample.process.facts.file_locks import parse_locks
from sfsample.process.find_target import TargetFinder
from sfsample.process.target import Target
from sfsample.report.formats import parse as parse_profile
from sfsample.report.formats import profile_json
from sfsample.symbolize.debuginfod import Debuginfod
from sfsample.symbolize.perf_map import PerfMap
from sfsample.watching import slice_recorder
from sfsample.watching.pull.door import Door
from sfsample.watching.push.backend import Mark, headers_for, parse_backend
from sfsample.watching.push.pusher import Pusher
from tests.builders.absurd import BYTES, CLOCKS_S, TEXTS, VALUES
from tests.builders.histories import DAY_S, MIDNIGHT_S, minute
from tests.builders.reports import full
from tests.watching.pull.http_client import get, serving
from tests.watching.push.fake_backend import backend

texts = pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
words = pytest.mark.parametrize("word", BYTES.values(), ids=BYTES)
values = pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> int:
    """Run a command; what it refuses is one line, and lines of help."""
    code = main([*arguments])
    said = capsys.readouterr().err.splitlines()
    assert code in (0, 1, 2, 3)
    assert all(line.startswith(("sfsample: ", "  ")) for line in said)
    assert code == 0 or said or "check" in arguments
    return code


# -- single words


@texts
def test_number(text: str) -> None:
    number = natural(text)
    assert number is None or str(number) == text
    assert natural(text.encode("utf-8", "surrogatepass")) == number


@pytest.mark.parametrize("time_s", CLOCKS_S)
def test_time_that_no_calendar_has_is_printed(
    time_s: float, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(time, "time", lambda: time_s)
    assert utc(time_s)
    say_at("it goes on")
    assert capsys.readouterr().err.endswith(" it goes on\n")
    with suppress(BadValue):
        assert when("yesterday 14:00") >= 0


@texts
def test_value_of_a_flag(text: str) -> None:
    actions = [action for name in ENTRIES for action in _command_parser(name)._actions]
    parsers = {action.type for action in actions if callable(action.type)}
    assert len(parsers) > 20
    for each in parsers:
        try:
            each(text)
        except BadValue:
            pass
        except ValueError:  # argparse refuses it too, and no command line can have half a letter
            assert each is PythonView or text == TEXTS["half a letter"]


@texts
def test_name_of_a_user(text: str) -> None:
    if not text:  # the flag refuses it
        return
    with suppress(SfsampleError):
        TargetFinder(Target(user=text)).pids()


# -- paths


@texts
def test_path(text: str) -> None:
    for opener in (open_regular, Root().open):
        with pytest.raises(OSError, match=r"."):
            opener(f"/{text}" if text.startswith("a") else f"/nowhere/{text}")


@pytest.mark.parametrize("command", ["config", "convert", "inspect", "core", "push", "listen"])
def test_path_of_a_fifo_or_a_directory_or_nothing(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(tmp_path / "fifo")
    History(str(tmp_path / "history")).close()
    for path in (str(tmp_path / "fifo"), str(tmp_path), "/dev/zero", ""):
        line = {
            "config": ["watch", "-n", "x", "--check", "--config", path],
            "core": ["dump", "--core", path],
            "push": ["history", "push", "--history", str(tmp_path / "history"),
                     "--push", "otlp=https://localhost", "--push-auth-file", path],
            "listen": ["watch", "-p", str(os.getpid()), "--output-dir", str(tmp_path / "out"),
                       "--listen", "127.0.0.1:0", "--listen-token-file", path],
        }.get(command, [command, path])  # fmt: skip
        assert run(capsys, *line)


# -- a configuration


@texts
def test_config(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "watch.toml"
    quoted = json.dumps(text)
    keys = ("every", "output-dir", "name", "push", "trigger", "label", "listen")
    lines = [f"{key} = {word}\n" for key in keys for word in (quoted, text, f"[[{text}]]")]
    for line in [*lines, f"label = {{a = {text}}}\n", f"label = {{{quoted} = {quoted}}}\n", f"{text} = 1\n"]:
        path.write_bytes(line.encode("utf-8", "surrogatepass"))
        run(capsys, "watch", "-u", "x", "--config", str(path), "--check")


def test_mistake_of_a_config_names_file_and_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "watch.toml"
    for line, what in (
        ('every = "5x"', "--every: not a time"), ("every =", "not TOML: Invalid value (at "),
        ("every = " + TEXTS["5,000 digits"], "not TOML: Exceeds the limit"),
        ("every = " + TEXTS["5,000 hexadecimal digits"], "every: not a text or a number"),
        ('output-dir = "a\\u0000b"', "output-dir: not a text or a number"),
        (TEXTS["20,000 dots"] + " = 1", "more than 1000 dots"),
        ("label.service.name = 'x'", "label: not a text or a number"),
    ):  # fmt: skip
        path.write_text(line)
        assert main(["watch", "-n", "x", "--config", str(path), "--check"]) == 2
        assert capsys.readouterr().err.startswith(f"sfsample: with {path}: {what}")


# -- backends


def filled(path: Path) -> History:
    history = History(str(path))
    for at in range(3):
        history.add(minute(at))
    return history


def raw(data: bytes) -> object:
    return lambda client: client.sendall(data)


ANSWERS = {
    "Retry-After": b"HTTP/1.1 503 x\r\nRetry-After: %b\r\nContent-Length: 0\r\n\r\n",
    "status": b"HTTP/1.1 %b x\r\nContent-Length: 0\r\n\r\n",
    "reason": b"HTTP/1.1 503 %b\r\nContent-Length: 0\r\n\r\n",
    "version": b"HTTP/%b 503 x\r\nContent-Length: 0\r\n\r\n",
    "length": b"HTTP/1.1 503 x\r\nContent-Length: %b\r\n\r\nab",
    "chunk": b"HTTP/1.1 503 x\r\nTransfer-Encoding: chunked\r\n\r\n%b\r\nab",
    "encoding": b"HTTP/1.1 503 x\r\nTransfer-Encoding: %b\r\n\r\nab",
    "refusal": b"HTTP/1.1 503 x\r\n\r\n%b",
    "header": b"HTTP/1.1 503 x\r\n%b: %b\r\n\r\n",
}


@words
def test_answer_of_a_backend_stops_no_other_one(
    word: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with closing(filled(tmp_path / "history")) as history, backend() as liar, backend() as good:
        pushers = [
            Pusher(history, parse_backend(f"otlp={fake.address}"), None, say_at) for fake in (liar, good)
        ]
        for answer in ANSWERS.values():
            liar.behaviours = [raw(answer.replace(b"%b", word))]
            begun_s = time.monotonic()
            assert not pushers[0].push()
            assert 0 < pushers[0].due_s - begun_s < 2 * 3600
        assert pushers[1].push()
        assert len(good.taken) == 3
        assert pushers[0].push()
        assert len(liar.taken) == 3
    said = capsys.readouterr().err.splitlines()
    assert all(line.startswith(("sfsample: ", "  ")) for line in said)


def test_whatever_a_pusher_meets_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise OverflowError("a bug")

    with closing(filled(tmp_path / "history")) as history:
        pusher = Pusher(history, parse_backend("otlp=http://127.0.0.1:1"), None, say_at)
        monkeypatch.setattr("sfsample.watching.push.pusher.post", fail)
        assert not pusher.push()
        assert pusher.due_s
    assert "cannot push to otlp=http://127.0.0.1:1: a bug" in capsys.readouterr().err


@values
def test_mark_of_a_backend(value: str, tmp_path: Path) -> None:
    mark = Mark(str(tmp_path), "b")
    mark.save()
    whole = Path(mark.path).read_text(encoding="ascii")
    member = f'{{"a": {value}}}'
    texts = [value, *(whole.replace(f'"{key}": ', f'"{key}": {value}, "_": ') for key in json.loads(whole)),
             whole.replace("{}", member, 1), whole.replace("{}", member)]  # fmt: skip
    for text in texts:
        Path(mark.path).write_text(text, encoding="ascii")
        found = Mark(str(tmp_path), "b")
        assert found.sent >= 0
        assert isfinite(found.until_s)
        found.dropped["a"] += 1
        found.done["1"] = found.done.get("1", 0) + 1
        found.save()


def test_mark_that_is_a_fifo_is_none(tmp_path: Path) -> None:
    path = Mark(str(tmp_path), "b").path
    os.mkfifo(path)
    assert Mark(str(tmp_path), "b").sent == 0


@words
def test_file_of_credentials(word: bytes, tmp_path: Path) -> None:
    path = tmp_path / "auth"
    for line in (word, b"A: " + word, word + b": a", b"[" + word + b"]"):
        path.write_bytes(line)
        path.chmod(0o600)
        with suppress(SfsampleError):
            assert all(
                text.isascii() for text in headers_for(parse_backend("otlp=https://a"), str(path)).values()
            )


@words
def test_answer_of_a_debuginfod_server(word: bytes, tmp_path: Path) -> None:
    for name in ("status", "version", "length", "chunk", "header"):
        with backend() as fake:
            answer = ANSWERS[name].replace(b"503", b"200").replace(b"%b", word)
            fake.behaviours = [raw(answer)]
            ask = Debuginfod([fake.address], str(tmp_path / name), 10, lambda _: None)
            with suppress(SfsampleError):
                ask("ab" * 20)


@texts
def test_timeout_of_debuginfod(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        os, "environ", {**os.environ, "DEBUGINFOD_TIMEOUT": text, "DEBUGINFOD_URLS": "http://a"}
    )
    fetch = symbol_options(NameFlags(debuginfod=True), quiet=True).fetch
    assert isinstance(fetch, Debuginfod)
    with socket.socket() as client:
        client.settimeout(fetch._timeout_s)
    assert fetch._timeout_s > 0


# -- clients


@texts
def test_request_of_a_client(text: str) -> None:
    door = Door(60, 10)
    with serving(door) as where:
        head = text.replace("\0", "%00")[:4000]
        profile = "/debug/pprof/profile?"
        for path in (f"seconds={head}", f"seconds=1&rate={head}", f"mode={head}", f"{head}=1", "/x"):
            reply = get(where, (profile + path).encode("utf-8", "surrogatepass").decode("latin-1"))
            assert 400 <= reply.status < 500
            assert reply.body.count(b"\n") == 1
        for header in ("Content-Length", "Host", "Authorization", "Expect", "Connection", "Sec-Fetch-Site"):
            line = f"{header}: {text[:4000]}".encode("utf-8", "surrogatepass").decode("latin-1")
            assert get(where, "/healthz", line).status in (200, 400, 403, 417)
        assert get(where, "/healthz").status == 200
    assert not door.is_due()


def test_answers_are_no_cost_of_sampling(monkeypatch: pytest.MonkeyPatch) -> None:
    door = Door(60, 10)
    share = slice_recorder.Share(0.01, lambda: time.process_time() - door.served_s)
    with serving(door) as where:
        for _ in range(30):
            assert get(where, "/metrics").status == 200
    assert door.served_s > 0
    # as if all CPU time of this process had gone to the server since
    own_s, began_s = time.process_time() - door.served_s, share._began_s
    monkeypatch.setattr(time, "process_time", lambda: own_s + door.served_s)
    monkeypatch.setattr(share, "_cpu_s", own_s)
    monkeypatch.setattr(time, "monotonic", lambda: began_s + 60)
    door.served_s += 50
    assert share.left() == pytest.approx(0.01)


def test_flood_has_a_tenth_of_a_cpu() -> None:
    door, begun_s, ends = Door(60, 10), time.monotonic(), threading.Event()
    with serving(door) as where:

        def ask() -> None:
            while not ends.is_set():
                with suppress(OSError):
                    get(where, "/metrics")

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        while door.served_s < 0.2:
            time.sleep(0.01)
        passed_s, served_s = time.monotonic() - begun_s, door.served_s
        ends.set()
        for thread in threads:
            thread.join()
    assert served_s <= 0.1 * (passed_s + 0.25) + 0.05  # what is saved, and what is served at once


def test_answer_that_fails_is_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> str:
        raise OverflowError("a bug")

    monkeypatch.setattr(Door, "metrics", fail)
    with serving(Door(60, 10)) as where:
        reply = get(where, "/metrics")
        assert (reply.status, reply.body) == (500, b"the answer failed\n")
        assert get(where, "/healthz").status == 200


# -- a history


def _literal(value: str) -> str:
    """Return a value of JSON as SQL has it."""
    try:
        known = json.loads(value)
    except (ValueError, RecursionError):
        known = value
    if known is None or isinstance(known, bool | int | float):
        return {"nan": "NULL", "inf": "9e999", "-inf": "-9e999"}.get(str(known), str(known or 0))
    text = value if isinstance(known, dict | list) else str(known)
    return f"CAST(X'{text.encode('utf-8', 'surrogatepass').hex()}' AS TEXT)"


@pytest.fixture(scope="module")
def two_days(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("history")
    with closing(filled(path)) as history:
        for at in range(3):
            history.add(minute(1440 + at, service="shop", build_id="abcdef12"))
        history.add_gap("shop", MIDNIGHT_S + DAY_S, MIDNIGHT_S + DAY_S + 5, "down")
    return path


FIELDS = [*(("slice", name) for name, *_ in COLUMNS), ("gap", "begin_s"), ("gap", "end_s"), ("gap", "why"),
          ("stacks", "stats"), ("stacks", "rows"), ("names", "batch")]  # fmt: skip
ADDED = ("begin_s", "labels", "samples", "cpu_charged_ns", "rows")  # when slices are merged


LITERALS = {_literal(value): name for name, value in VALUES.items()}  # different values may be one in SQL


@pytest.mark.parametrize("literal", LITERALS, ids=LITERALS.values())
def test_fields_of_a_history(
    literal: str, two_days: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for table, column in FIELDS:
        directory = tmp_path / f"{table}-{column}"
        shutil.copytree(two_days, directory)
        with closing(sqlite3.connect(file_names(str(directory))[1].path, isolation_level=None)) as database:
            database.execute("PRAGMA synchronous=OFF")
            database.execute(f"UPDATE {table} SET {column} = {literal} WHERE rowid = 1")  # noqa: S608
        common = ["--history", str(directory)]
        times = ["--at", "2024-10-05", "--with", "2024-10-05T00:01"]
        for words in (["list"], ["diff", "--service", "shop", *times], ["show", "--service", "shop"]):
            run(capsys, "history", *words, *common)
        with closing(History(str(directory))) as history:
            list(history.findings())  # it ends
            if column in ADDED:
                history.tidy(MIDNIGHT_S + 5 * DAY_S)
                assert len(history.slices(Selection("redis"))) == 1  # of the other day: they were merged
            assert history.report(Selection("redis")).total() == 15


# -- profiles

DOCUMENT = json.loads(profile_json.write(full(), threads=False))


def _places(value: object, place: tuple[object, ...] = ()) -> list[tuple[object, ...]]:
    """Return the place of each value in a document; of a list that of its first member."""
    members = (
        value.items() if isinstance(value, dict) else enumerate(value[:1]) if isinstance(value, list) else ()
    )
    return [place, *(each for key, member in members for each in _places(member, (*place, key)))]


def _replaced(place: tuple[object, ...], value: str) -> str:
    document = json.loads(json.dumps(DOCUMENT))
    inner = document
    for key in place[:-1]:
        inner = inner[key]
    if not place:
        return value
    inner[place[-1]] = "@@"
    return json.dumps(document).replace('"@@"', value)


@values
def test_profile_in_json(value: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, out = tmp_path / "a.json", str(tmp_path / "out")
    for place in _places(DOCUMENT):
        data = _replaced(place, value).encode()
        with suppress(BadInput):
            parse_profile(data)
            path.write_bytes(data)
            for suffix in ("html", "pprof", "svg"):
                run(capsys, "convert", str(path), "-o", f"{out}.{suffix}")
            run(capsys, "diff", str(path), str(path), "-o", f"{out}.txt")


@words
def test_folded_profile(word: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.folded"
    for line in (b"a;b " + word, word + b" 1", b"a;" + word + b";c 1", word, b"a/" + word + b";b 1"):
        path.write_bytes(b"a;b 1\n" + line + b"\n")
        run(capsys, "convert", str(path), "-o", str(tmp_path / "out.json"))
        run(capsys, "diff", str(path), str(path), "-o", str(tmp_path / "out.txt"))


@pytest.mark.parametrize("number", [1 << 62, (1 << 63) - 1, 1 << 63, (1 << 64) - 1])
def test_numbers_of_pprof(number: int) -> None:
    for field in range(1, 16):
        for inner in (
            integer(field, number),
            message(field, integer(1, number)),
            message(field, b"\xff" * 10),
        ):
            strings = b"".join(message(6, text) for text in (b"", b"samples", b"count"))
            with suppress(BadInput):
                parse_profile(message(1, integer(1, 1), integer(2, 2)) + inner + strings)


# -- a kernel, /proc, and perf maps


def test_refused_call_is_not_blamed_on_stdout(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def wake_promptly() -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr("sfsample.process.tracer_thread.wake_promptly", wake_promptly)
    assert main(["record", "-p", str(os.getpid()), "-d", "1"]) in (1, 4)
    said = capsys.readouterr().err
    assert said.startswith(
        "sfsample: the kernel refuses a system call: Operation not permitted: in wake_promptly"
    )


def test_name_of_a_socket_with_lines_of_its_own() -> None:
    lines = "Num RefCount\nA B C zz E F 5 x\n0: 00000002 00000000 00010000 0002 01 5 real\n"
    proc = SimpleNamespace(
        pid=1, link=lambda _name: None, read=lambda name: lines.encode() if name == "net/unix" else b""
    )
    assert SocketTable(proc).text(5) == "socket 5"  # type: ignore[arg-type]


PROC = {
    "parse_stat": b"7 (a) S 1 " + b" ".join(b"%d" % at for at in range(5, 53)),
    "parse_syscall": b"232 0x5 0x6 0x7 0x8 0x9 0xa 0xb 0xc",
    "parse_schedstat": b"1 2 3",
    "parse_last_run": b"se.exec_start : 1.5\nnr_switches : 7\nse.avg.last_update_time : 8\n",
    "parse_last_id": b"0.1 0.2 0.3 1/2 7",
    "parse_kernel_stack": b"[<0>] f+0x1/0x2\n",
    "parse_status": "Name:\ta\nUid:\t0 0 0 0\n",
    "control_groups": "0::/a.service\n1:name=systemd:/b\n",
    "control_group_paths": "0::/a\n",
    "container_ids": "0::/docker/" + "a" * 64 + "\n",
    "pod_uids": "0::/kubepods/pod" + "a" * 32 + "\n",
    "cgroup_paths": "4:cpu,cpuacct:/a\n0::/b\n",
    "parse_cpu_idle": "cpu0 1 2 3 4 5 6 7\n",
}


@texts
@pytest.mark.parametrize("name", PROC)
def test_text_of_proc(name: str, text: str) -> None:
    usual, parser = PROC[name], getattr(proc_text, name)
    assert parser(usual)
    parts = usual.split(" " if isinstance(usual, str) else b" ")
    word = text if isinstance(usual, str) else text.encode("utf-8", "surrogatepass")
    for at in range(len(parts)):
        parser((" " if isinstance(usual, str) else b" ").join([*parts[:at], word, *parts[at + 1 :]]))
    parser(word)
    parser(usual[: len(usual) // 2])
    parse_locks(f"1: POSIX ADVISORY WRITE {text} 08:01:5 0 EOF\n1: -> {text}\n{text}\n")


def test_line_of_a_control_group_ends_at_the_newline_only() -> None:
    container = "a" * 64
    hostile = f"0::/user.slice/x\u2028\r0::/docker/{container}\x85\n"
    assert proc_text.control_group_paths(hostile) == [hostile[3:-1]]
    assert proc_text.parse_status("Name:\tx\u2028NSpid:\t1\r\n") == {"Name": "x\u2028NSpid:\t1"}


@words
def test_perf_map(word: bytes) -> None:
    for line in (word + b" 10 f", b"1000 " + word + b" f", b"1000 10 " + word, word):
        found = PerfMap(b"ffff00002000 10 g\n" + line + b"\n")
        assert found.find(0xFFFF00002005).name == "g"
        for address in (0, 0x1005, (1 << 64) - 1, 1 << 64, -1):
            found.find(address)
