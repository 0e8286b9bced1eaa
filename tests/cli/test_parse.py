"""What each flag accepts, and the values that it refuses; no input makes a traceback.

A mistake is a UsageError (exit code 2) of one line.  Flags that do not go together, and what is printed for
them: test_refused.py.
"""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfsample.cli.commands import name_of
from sfsample.cli.options import Command
from sfsample.cli.parse import parse
from sfsample.core.walk_limits import DEFAULT_ORDER
from sfsample.errors import UsageError
from sfsample.unwind.unwinder import CHOICES

WATCH = ["watch", "-p", "1", "--output-dir", "d"]


def usage_error(*argv: str) -> str:
    with pytest.raises(UsageError) as caught:
        parse(list(argv))
    assert caught.value.exit_code == 2
    return str(caught.value)


def test_record_is_the_default_command() -> None:
    assert parse(["-p", "12"]) == parse(["record", "-p", "12"])


@pytest.mark.parametrize("command", ["record", "dump", "top", "doctor"])
def test_bare_number_is_a_pid(command: str) -> None:
    assert parse([command, "12", "34,56"]).target == parse([command, "-p", "12,34,56"]).target
    assert parse([command, "12", "-p", "34"]).target.pid == (34, 12)


def test_bare_number_alone_is_recorded() -> None:
    assert parse(["12,34", "-d", "1"]) == parse(["record", "12,34", "-d", "1"])


def test_freq_is_rate() -> None:
    assert parse(["1", "-F", "49"]).options.rate == parse(["1", "--freq", "49"]).options.rate == 49


@pytest.mark.parametrize("command", ["dump", "doctor", "inspect"])
def test_reports_are_text_or_json_by_suffix(command: str) -> None:
    target = [command, "-p", "1"]
    assert parse(target).output.format == parse([*target, "-o", "x.txt"]).output.format == "text"
    assert (
        parse([*target, "-o", "x.json"]).output.format == parse([*target, "--json"]).output.format == "json"
    )
    assert parse([*target, "-o", "x.json", "-f", "text"]).output.format == "text"
    assert "no such format: x.html" in usage_error(*target, "-o", "x.html")


@pytest.mark.parametrize(
    "argv",
    [
        ["-p", "1,2,3"],
        ["-p1,2,3"],
        ["--pid=1,2,3"],
        ["-p", "1", "-p", "2,3"],
        ["-p", "1,2", "--pid", "3"],
    ],
)
def test_pids_are_repeatable_and_comma_separated(argv: list[str]) -> None:
    assert parse(argv).target.pid == (1, 2, 3)


@pytest.mark.parametrize(
    "pids",
    ["0", "-1", "", ",", "1,", ",1", "1,,2", "x", "1.5", "1 2", "+1", "٣", "1_0", "nan", "0x10",
     "99999999999999999999", "9" * 10_000, "\udcff", str(1 << 31)],
)  # fmt: skip
def test_pid_must_be_positive_integer(pids: str) -> None:
    message = usage_error(f"--pid={pids}")
    assert "not a process id" in message
    assert len(message) < 200


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("10", 10), ("0.5", 0.5), (".5", 0.5), ("500ms", 0.5), ("2m", 120), ("1h", 3600), ("1d", 86400),
     ("1w", 604800), ("250us", 0.00025), ("1.5s", 1.5), ("1e-1", 0.1), ("1e3", 1000), ("2.", 2)],
)  # fmt: skip
def test_time_accepts_units(text: str, seconds: float) -> None:
    assert parse(["-p", "1", "-d", text]).duration == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text",
    ["0", "-1", "0ms", "", "s", "ms", "1x", "1 s", "nan", "inf", "-inf", "infinity", "1e400", "1e9",
     "9" * 400, "1_0", "٣", "1e", "1S", "0x10", "10,5", "+5", " 5", "1ms2", "\udcff"],
)  # fmt: skip
@pytest.mark.parametrize("flag", ["--duration", "--interval"])
def test_time_must_be_positive(flag: str, text: str) -> None:
    assert "not a time" in usage_error("-p", "1", f"{flag}={text}")


@pytest.mark.parametrize(
    "text", ["0", "-1", "nan", "inf", "1e400", "1e-320", "10001", "", "x", "1_0", "99hz", "9" * 400]
)
def test_rate_must_be_in_range(text: str) -> None:
    assert "not a rate" in usage_error("-p", "1", f"--rate={text}")


@pytest.mark.parametrize("text", ["1us", "99us", "0.00001"])
def test_interval_has_the_bounds_of_rate(text: str) -> None:
    assert "at least 100us" in usage_error("-p", "1", f"--interval={text}")
    assert parse(["-p", "1", "--interval", "100us"]).options.rate == pytest.approx(1e4)


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "", "x", "1e3", str(1 << 31)])
@pytest.mark.parametrize("flag", ["--max-frames", "--stack-bytes"])
def test_count_must_be_positive_integer(flag: str, text: str) -> None:
    assert "not a" in usage_error("-p", "1", f"{flag}={text}")


@pytest.mark.parametrize(
    ("text", "size"), [("1024", 1024), ("64K", 65536), ("64k", 65536), ("1M", 1 << 20), ("1G", 1 << 30)]
)
def test_size_accepts_units(text: str, size: int) -> None:
    assert parse(["-p", "1", "--stack-bytes", text]).options.stack_bytes == size


def test_what_is_kept_is_at_least_a_megabyte() -> None:
    assert parse(["watch", "1", "--keep-bytes", "1M"]).options.keep.keep_bytes == 1 << 20


@pytest.mark.parametrize("text", ["1023", "2G", "K", "1T", "1KB"])
def test_size_must_be_in_range(text: str) -> None:
    assert "not a size" in usage_error("-p", "1", "--stack-bytes", text)


@pytest.mark.parametrize(
    "text", ["", ",", "sframe,", "sframe,sframe", "signal_frame", "SFRAME", "sframe eh_frame"]
)
def test_unwind_must_be_list_of_known_steppers(text: str) -> None:
    assert "not a list out of sframe,eh_frame,frame_pointer" in usage_error("-p", "1", f"--unwind={text}")


def test_unwind_keeps_order() -> None:
    assert parse(["-p", "1", "--unwind", "frame_pointer,sframe"]).options.steppers == (
        "frame_pointer",
        "sframe",
    )


def test_unwind_names_every_stepper() -> None:
    assert tuple(CHOICES) == DEFAULT_ORDER


@pytest.mark.parametrize("flag", ["--dur", "--out", "--thr", "--max", "--stack", "--inter", "--verb", "--ra"])
def test_flags_cannot_be_abbreviated(flag: str) -> None:
    """A script that says --dur would break when a second flag begins like that."""
    assert "unrecognized arguments" in usage_error("-p", "1", flag)


def test_program_keeps_its_own_flags() -> None:
    assert parse(["-d", "1", "--", "ls", "-l", "--", "-p", "2"]).program == ("ls", "-l", "--", "-p", "2")
    assert parse(["--", "-weird"]).program == ("-weird",)
    assert parse(["record", "--", ""]).program == ("",)
    assert parse(["-p", "1"]).program is None


def test_defaults_are_those_of_the_contract() -> None:
    given = parse(["-p", "1"])
    options, output = given.options, given.output
    assert (options.rate, given.duration, output.path) == (99, None, "-")
    assert (output.format, options.mode) == ("folded", "cpu")
    assert (output.threads, options.max_frames, options.stack_bytes) == (False, 1024, 256 << 10)
    assert options.steppers == ("sframe", "eh_frame", "frame_pointer")
    assert (given.stats, given.quiet, given.verbose) == (None, False, False)


def test_watch_samples_all_threads_slowly_without_a_gap() -> None:
    given = parse(WATCH).options
    assert (given.record.rate, given.record.mode, given.record.max_overhead) == (19, "wall", 0.03)
    assert (given.every, given.slice_s) == (60, 60)
    assert parse([*WATCH, "--every", "5s"]).options.slice_s == 5
    assert parse([*WATCH, "--for", "5s"]).options.every == 60
    record = parse(["1"]).options
    assert (record.rate, record.mode, record.max_overhead) == (99, "cpu", None)


def test_watch_keeps_json() -> None:
    given = parse([*WATCH, "--keep", "3", "--keep-for", "7d"]).options
    assert (given.files.format, given.keep.keep, given.keep.keep_for) == ("json", 3, 7 * 86400)


@pytest.mark.parametrize(
    ("text", "where"),
    [("127.0.0.1:6060", ("127.0.0.1", 6060)), ("localhost:0", ("127.0.0.1", 0)), ("unix:a:b c", "a:b c"),
     ("[::1]:65535", ("::1", 65535)), ("127.8.9.1:1", ("127.8.9.1", 1))],
)  # fmt: skip
def test_listen_without_a_token(text: str, where: object) -> None:
    assert parse([*WATCH, "--listen", text]).options.listen.address == where


def test_listen_elsewhere_with_a_token() -> None:
    given = parse(
        [*WATCH, "--listen", "[::]:1", "--listen-token-file", "t", "--listen-host", "a", "--listen-host", "b"]
    ).options.listen
    assert (given.address, given.token_file, given.hosts) == (("::", 1), "t", ("a", "b"))


SHORT = list("pnrdoftqvh")
LONG = ["pid", "name", "all", "rate", "interval", "duration", "output", "format", "mode", "threads",
        "unwind", "max-frames", "stack-bytes", "stats", "json", "every", "for", "output-dir", "keep",
        "keep-for", "listen", "help", "version"]  # fmt: skip
PLAIN = [
    "record",
    "dump",
    "watch",
    "--",
    "-",
    "=",
    "1",
    "0",
    "1,2",
    "cpu",
    "wall",
    "folded",
    "sframe",
    "10ms",
]
WORDS = st.sampled_from([*PLAIN, *(f"-{flag}" for flag in SHORT), *(f"--{flag}" for flag in LONG)])
ODD = (
    st.text(st.characters(codec=None), max_size=30) | st.just("9" * 5000) | st.just("\udcff\x1b[31m%s%(x)s{}")
)
JOINED = st.tuples(WORDS, ODD).map("=".join)


@given(st.lists(WORDS | ODD | JOINED, max_size=8))
def test_any_words_are_parsed_or_a_usage_error(argv: list[str]) -> None:
    result: object = None
    try:
        result = parse(argv)
    except (UsageError, SystemExit) as end:
        result = end
    if isinstance(result, SystemExit):
        assert result.code in (0, None)  # --help, --version
    elif isinstance(result, UsageError):
        assert str(result)
    else:
        assert isinstance(result, Command)
        assert name_of(result) in ("record", "dump", "watch")


@pytest.mark.parametrize(
    ("label", "rule"), [("a=b\nc", "no control characters"), (f"a={'b' * 257}", "at most 256 characters")]
)
def test_value_of_a_label_is_a_short_line(label: str, rule: str) -> None:
    assert rule in usage_error("-p", "1", "--label", label)


def test_action_of_history_is_its_first_word() -> None:
    given = parse(["history", "list", "--history", "d", "--service", "s"])
    assert (name_of(given), given.history, given.service) == ("history list", "d", "s")
    for words in ([], ["--history", "d", "list"], ["lits"]):
        assert usage_error("history", *words) == "history needs an action, as its first word"


@pytest.mark.parametrize("when", ["-2h", "-.5h"])
def test_time_before_now_is_no_flag(when: str) -> None:
    for words in (["--at", when], [f"--at={when}"]):
        assert parse(["history", "list", *words]).at < time.time()


@pytest.mark.parametrize("action", ["list", "show", "export", "diff", "prune", "check", "push"])
def test_each_action_has_a_help_of_its_own(action: str, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["history", action, "--help"], ["help", "history", action]):
        with pytest.raises(SystemExit):
            parse(words)
        assert capsys.readouterr().out.startswith(f"usage: sfsample history {action} ")


@pytest.mark.parametrize("flags", [(), ("--mode", "cpu"), ("--mode", "wall", "--gil")])
def test_tasks_need_wall_mode_and_all_threads(flags: tuple[str, ...]) -> None:
    needs = "tasks need mode wall and Python frames, and no gil"
    assert needs in usage_error("1", "--tasks", *flags)
    assert needs in usage_error("1", "--tasks", "--mode", "wall", "--python", "off")
    assert parse(["1", "--tasks", "--mode", "wall"]).options.tasks


@pytest.mark.parametrize("command", ["record", "top"])
def test_blame_needs_wall_mode(command: str) -> None:
    assert "blame needs mode wall" in usage_error(command, "1", "--blame")
    assert parse([command, "1", "--blame", "--mode", "wall"]).options.blame


def test_kernel_frames_are_those_of_running_threads_unless_asked() -> None:
    options = [parse(["1", *flags]).options.kernel for flags in ([], ["--kernel"], ["--no-kernel"])]
    assert options == [None, True, False]
