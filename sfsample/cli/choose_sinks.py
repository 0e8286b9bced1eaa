"""Decides where the slices of `watch` are kept, by its flags."""

from argparse import Namespace

from sfsample.cli.history_sink import HistorySink
from sfsample.cli.sinks import Sink
from sfsample.cli.slice_files import FileSink
from sfsample.cli.when import history_directory


def history_of(arguments: Namespace) -> str | None:
    """Return the directory of the history that is kept; None: there are only files."""
    wants_one = arguments.history or arguments.push or arguments.output_dir is None
    return history_directory(arguments.history) if wants_one and not arguments.no_history else None


def choose_sinks(arguments: Namespace, label: str) -> list[Sink]:
    """Return the sinks; that of the history comes before that which pushes it."""
    sinks, history = list[Sink](), history_of(arguments)
    if arguments.output_dir is not None:
        sinks.append(FileSink(arguments, label))
    if history is not None:
        sinks.append(HistorySink(arguments, history))
    if history is not None and arguments.push:
        from sfsample.cli.push.sink import PushSink  # http.client takes long to import

        sinks.append(PushSink(arguments, history))
    return sinks
