"""Declares the commands, grouped by task.  The value of a command is a dataclass with the user's flags."""

from argparse import ArgumentParser
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

from sfsample.cli import flags, history_flags

if TYPE_CHECKING:
    from sfsample.cli.options import Command


class Entry(NamedTuple):
    """A command, or an action of `history`."""

    name: str
    value: str  # module below `cli` and class of the command's value: "options.DumpCommand"
    add_flags: Callable[[ArgumentParser], None]
    summary: str
    examples: tuple[tuple[str, str], ...]  # words of a command line, and a caption

    @property
    def kind(self) -> "type[Command]":
        """The class of the command's value, imported when it is needed."""
        module, _, name = self.value.partition(".")
        kind: type[Command] = getattr(import_module(f"sfsample.cli.{module}"), name)
        return kind


GROUPS = (
    ("sample processes", (
        Entry("record", "record_options.RecordCommand", flags.record_flags,
              "sample processes for a while and write a profile (the default)", (
            ("1234 -d 10 -o out.html", "CPU use in 10 s, as a flame graph"),
            ("1234 -d 10 > out.folded", "CPU use in 10 s, as text with one line per stack"),
            ("1234 -d 10 --mode wall -t", "running and sleeping threads"),
            ("-o out.json -- ./program arg", "start a program and record it to its end"),
        )),
        Entry("top", "record_options.TopCommand", flags.top_flags,
              "show live which functions take most time, and what threads wait for", (
            ("top 1234", "what the process does now"),
            ("top 1234 --mode wall --blame", "sleeping threads, too; key w: locks and their holders"),
            ("top -s -n gunicorn --all", "all gunicorn processes, and processes that they start"),
        )),
        Entry("dump", "options.DumpCommand", flags.dump_flags,
              "show every thread's stack, and what the process waits for", (
            ("dump 1234", "why the process hangs"),
            ("dump --core core --exe ./program", "the threads of a core file"),
        )),
        Entry("watch", "watch_options.WatchCommand", flags.watch_flags,
              "record a slice at regular intervals, for months", (
            ("watch -n redis-server", "keep a history, which `sfsample history` shows"),
            ("watch --unit nginx --output-dir DIR --keep-for 7d", "a systemd unit, one file per slice"),
            ("watch --busiest 20", "the services of the 20 processes that use most CPU"),
            ("watch 1234 --output-dir DIR --listen 127.0.0.1:6060", "also send profiles over HTTP"),
            ("watch -n redis-server --push pyroscope=http://HOST:4040", "also send the slices to a store"),
        )),
    )),
    ("convert and compare profiles", (
        Entry("convert", "file_options.ConvertCommand", flags.convert_flags,
              "change the format of profiles, merge them, filter their stacks", (
            ("convert out.json -o out.pprof", "for another viewer"),
            ("convert a.json b.json -o ab.html", "several profiles merged into one"),
            ("convert out.json --focus dictFind", "only dictFind and the functions that it calls"),
            ("convert out.json --symbolize -o out.html", "add names, from files of this machine"),
        )),
        Entry("diff", "file_options.DiffCommand", flags.diff_flags,
              "show which functions differ between two profiles beyond noise", (
            ("diff before.json after.json", "which functions grew, shrank, or stayed within noise"),
            ("diff monday/ tuesday/ --relative", "shares of all samples; each directory is merged"),
        )),
        Entry("history", "watch_options.HistoryCommand", history_flags.history_flags,
              "list, show, export and compare the slices of `watch`", (
            ("history list --since 2h", "the slices of the last two hours"),
            ("history export --service redis --at -1h -o hour.html", "an hour as a flame graph"),
            ("history diff --service redis --at 'yesterday 14:00' --for 1h --with now", "compare two hours"),
        )),
    )),
    ("check permissions and unwind tables", (
        Entry("doctor", "file_options.DoctorCommand", flags.doctor_flags,
              "show whether sfsample may attach, and if not, what to do", (
            ("doctor 1234", "whether sfsample may attach to process 1234"),
            ("doctor", "what this user may do on this machine"),
        )),
        Entry("inspect", "file_options.InspectCommand", flags.inspect_flags,
              "show unwind tables, and the share of code that they cover", (
            ("inspect ./libfoo.so", "the unwind tables of a file, and the code without a table"),
            ("inspect -p 1234", "the unwind tables of every module of a process"),
            ("inspect --rows ./libfoo.so", "every function and every row of the SFrame table"),
        )),
    )),
    ("set up sfsample", (
        Entry("service", "file_options.ServiceCommand", flags.service_flags,
              "show or install a systemd unit that runs `watch`", (
            ("service show", "print the unit, which has least privileges"),
            ("service install --config /etc/sfsample/watch.toml", "write the unit for systemd"),
            ("watch --config /etc/sfsample/watch.toml --check", "check the configuration"),
        )),
        Entry("completion", "file_options.CompletionCommand", flags.completion_flags,
              "print the completion script for a shell", (
            ("completion bash > ~/.sfsample.bash", "then source this file in ~/.bashrc"),
        )),
    )),
)  # fmt: skip
_ACTIONS = (
    Entry("history list", "watch_options.HistoryList", history_flags.list_flags,
          "list slices, and gaps between them", (
        ("history list --since 2h", "the slices of the last two hours"),)),
    Entry("history show", "watch_options.HistoryShow", history_flags.show_flags,
          "show which functions took the time", (
        ("history show --service redis --since 1h", "the functions of the last hour"),)),
    Entry("history export", "watch_options.HistoryExport", history_flags.export_flags,
          "write slices as one profile", (
        ("history export --service redis --at -1h -o hour.html", "an hour as a flame graph"),)),
    Entry("history diff", "watch_options.HistoryDiff", history_flags.diff_flags,
          "show which functions differ between two times beyond noise", (
        ("history diff --at 'yesterday 14:00' --with now", "an hour of yesterday and the last hour"),
        ("history diff --service redis --deploy", "before and after the last new build"))),
    Entry("history prune", "watch_options.HistoryPrune", history_flags.prune_flags,
          "merge old slices, delete the oldest", (
        ("history prune --keep-for 30d", "delete slices older than 30 days"),)),
    Entry("history check", "watch_options.HistoryCheck", history_flags.check_flags,
          "check that every slice can be read", (("history check", "exit code 1 if a slice is damaged"),)),
    Entry("history push", "watch_options.HistoryPush", history_flags.push_flags,
          "send slices to a profile store", (
        ("history push --push parca=http://127.0.0.1:7070", "send the slices that Parca lacks"),)),
)  # fmt: skip
COMMANDS = {entry.name: entry for _, commands in GROUPS for entry in commands}
ENTRIES = {**COMMANDS, **{entry.name: entry for entry in _ACTIONS}}  # commands, and actions of `history`
_NAMES = {entry.value.rpartition(".")[2]: name for name, entry in ENTRIES.items()}


def name_of(command: "Command") -> str:
    """Return the name of the command that has this value: "record", "history list"."""
    return _NAMES[type(command).__name__]
