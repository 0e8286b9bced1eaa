"""Flags and fields have each other, and a command that is spelled is read as the same one."""

from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfsample.cli import values, when
from sfsample.cli.commands import ENTRIES
from sfsample.cli.parse import _command_parser, as_words, parse
from sfsample.cli.words import defaults
from sfsample.core import quantities
from sfsample.core.python_view import PythonView
from sfsample.errors import UsageError

KINDS = [name for name in ENTRIES if name != "history"]
READ_OTHERWISE = {"help", "pids"}  # `pids` are added to `pid`
# fields that no flag of the command sets
WITHOUT_FLAG = {
    "record": {"program", "timeline", "bad_stacks", "unit"},
    "top": {"timeline", "bad_stacks", "unit", "stop", "max_pause", "max_overhead", "labels", "environ"},
    "dump": {"unit"},
    "watch": {"timeline", "bad_stacks"},
    "inspect": {"unit", "cgroup", "container", "pod", "user", "busiest"},
    "doctor": {"unit", "cgroup", "container", "pod", "user", "busiest"},
    "history show": {"mark_python"},
    "history diff": {"since"},
}


def field_names(kind: type) -> list[str]:
    names = []
    for field in fields(kind):
        names += field_names(field.type) if is_dataclass(field.type) else [field.name]
    return names


@pytest.mark.parametrize("command", KINDS)
def test_each_flag_has_one_field_and_each_field_a_flag(command: str) -> None:
    names = field_names(ENTRIES[command].kind)
    assert len(names) == len({*names})
    flags = {action.dest for action in _command_parser(command)._actions} - READ_OTHERWISE
    assert flags <= {*names}
    assert {*names} - flags == WITHOUT_FLAG.get(command, set())


@pytest.mark.parametrize("command", KINDS)
def test_flags_have_the_defaults_of_their_fields(command: str) -> None:
    usual = defaults(ENTRIES[command].kind)
    for action in _command_parser(command)._actions:
        if action.dest in usual:
            default = action.default
            assert (tuple(default) if isinstance(default, list) else default) == usual[action.dest]
        assert "{default}" not in (action.help or "")


NUMBERS = st.integers(1, 10**6).map(str) | st.floats(1e-3, 1e6).map(repr)
TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=10)
IDS = st.text("0123456789abcdef", min_size=8, max_size=16)
TIMES = st.builds(
    "{}{}".format, st.integers(1, 10**6) | st.floats(1e-3, 1e3), st.sampled_from(["ms", "s", "m", "d"])
)
MOMENTS = (
    st.datetimes(datetime(1971, 1, 1), datetime(2020, 1, 1), timezones=st.just(UTC)).map(datetime.isoformat)  # noqa: DTZ001
    | st.just("-2h")
)
SIZES = st.builds("{}{}".format, st.integers(1, 9), st.sampled_from("MG"))
TEXTS_OF = {  # by the function that parses
    None: TEXTS,
    quantities.seconds: TIMES, values.age: TIMES, quantities.large_size: SIZES,
    values.size: st.builds("{}{}".format, st.integers(1, 1 << 10), st.sampled_from("KM")),
    values.positive: st.integers(1, 1 << 30).map(str), values.dump_samples: st.integers(1, 1000).map(str),
    values.rate: st.floats(1e-3, 1e4).map(repr) | st.integers(1, 10**4).map(str),
    values.interval: st.floats(1e-4, 1e3).map(lambda s: f"{s!r}s"),
    values.percent: st.floats(1e-6, 100).map(repr) | st.integers(1, 100).map(str),
    values.growth: NUMBERS, values.pids: st.lists(st.integers(1, 1 << 22), min_size=1).map(
        lambda pids: ",".join(map(str, pids))),
    values.steppers: st.lists(st.sampled_from(["sframe", "eh_frame", "frame_pointer", "scan"]),
                              min_size=1, unique=True).map(",".join),
    values.name: TEXTS.filter(str.strip), values.unit: IDS, values.cgroup: TEXTS.map("/{}".format),
    values.container: IDS, values.pod: IDS, values.name_as_kept: TEXTS,
    values.label: st.builds("{}={}".format, st.sampled_from(["team", "service.name"]), IDS),
    values.condition: st.sampled_from(["cpu>80", "cpu > p99", "rss>2G", "delay>10%", "stuck>30s"]),
    values.listen: st.sampled_from(["127.0.0.1:6060", "[::1]:1", "unix:/run/x", "localhost:0"]),
    values.push: st.sampled_from(["parca=http://h:7070", "otlp=https://h/x", "pyroscope=http://127.0.0.1"]),
    PythonView: st.sampled_from(["auto", "only", "off"]),
    when.when: MOMENTS | st.just("now"), when.since: MOMENTS | st.just("3d"),
    when.when_or_build: MOMENTS | IDS | st.just("now"), when.build: IDS,
}  # fmt: skip
NEEDED = {  # words without which the command is a mistake
    "convert": ["in"], "diff": ["a", "b"], "replay": ["f"], "service": ["show"], "completion": ["bash"],
    "doctor": [], "history diff": ["--deploy"], "history push": ["--push=parca=http://127.0.0.1:1"],
}  # fmt: skip


@st.composite
def typed(draw: st.DrawFn, command: str) -> list[str]:
    """Draw words for a command: some of its flags, each with a value."""
    flags = [action for action in _command_parser(command)._actions if action.option_strings]
    words = []
    for action in draw(st.lists(st.sampled_from(flags), max_size=6)):
        if action.dest in ("help", "config"):  # a file would have further flags
            continue
        flag = draw(st.sampled_from(action.option_strings))
        if action.nargs == 0:
            words.append(flag)
            continue
        value = draw(st.sampled_from(action.choices) if action.choices else TEXTS_OF[action.type])
        words.append(f"{flag}={value}" if flag.startswith("--") else f"{flag}{value}")
    return [*command.split(), *NEEDED.get(command, ["1"] if "history" not in command else []), *words]


@pytest.mark.parametrize("command", KINDS)
@given(st.data())
def test_spelled_words_are_read_as_the_same_command(command: str, data: st.DataObject) -> None:
    try:
        once = parse(data.draw(typed(command)))
    except UsageError:  # flags that do not go together
        return
    assert parse(as_words(once)) == once


def test_words_are_those_that_differ_from_the_defaults() -> None:
    assert as_words(parse(["watch", "1", "--every", "60s", "--keep-for", "7d"])) == [
        "watch", "--pid=1", "--keep-for=7d"]  # fmt: skip
    words = ["-d", "90", "--mode", "cpu", "--", "ls", "-l"]
    assert as_words(parse(words)) == ["record", "--duration=90s", "--format=folded", "--", "ls", "-l"]
    assert parse(["history", "list", "--at", "now"]).choice.at == inf
