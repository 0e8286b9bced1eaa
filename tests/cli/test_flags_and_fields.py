"""Each flag has a field and each field a flag, with the same default."""

from dataclasses import fields, is_dataclass

import pytest

from sfsample.cli.commands import ENTRIES
from sfsample.cli.parse import _command_parser, defaults

KINDS = [name for name in ENTRIES if name != "history"]
READ_OTHERWISE = {"help", "pids"}  # `pids` are added to `pid`
# fields that no flag of the command sets
WITHOUT_FLAG = {
    "record": {"program", "timeline", "unit"},
    "top": {"timeline", "unit", "stop", "max_pause", "max_overhead", "labels", "environ"},
    "dump": {"unit"},
    "watch": {"timeline"},
    "inspect": {"unit", "cgroup", "container", "pod", "user", "busiest"},
    "doctor": {"unit", "cgroup", "container", "pod", "user", "busiest"},
    "history show": {"by", "mark_python", "lines"},
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
