"""The words of each child are read as the command that is meant, whatever the flags of the watch are."""

from hypothesis import given
from hypothesis import strategies as st

from sfsample.cli.options import DumpCommand, NameFlags, OutputOptions
from sfsample.cli.parse import parse
from sfsample.cli.watch_options import HistoryPrune, HistoryPush
from sfsample.core.walk_limits import DEFAULT_ORDER
from sfsample.dumping.options import DumpOptions
from sfsample.history import Retention
from sfsample.process.target import Target
from sfsample.recording.options import RecordOptions
from sfsample.watching.options import Push
from sfsample.watching.own_program import dump_words, prune_words, push_words
from sfsample.watching.push.backend import parse_backend

CHARACTERS = st.characters(codec="utf-8", exclude_characters="\0")
# argparse of Python 3.11 drops a value "--", so no user can give it
TEXTS = st.text(CHARACTERS, min_size=1, max_size=10).filter(lambda text: text != "--")
SECONDS = st.floats(min_value=0, max_value=1e9, exclude_min=True, exclude_max=True)
BACKENDS = st.sampled_from(["parca=http://h:7070", "otlp=https://h/x", "pyroscope=http://127.0.0.1"])
CHOSEN = st.lists(st.sampled_from(DEFAULT_ORDER), min_size=1, unique=True).map(tuple)


@given(TEXTS, SECONDS, st.integers(1 << 20, 1 << 49))
def test_prune(history: str, keep_for: float, keep_bytes: int) -> None:
    retention = Retention(keep_for=keep_for, keep_bytes=keep_bytes)
    assert parse(prune_words(history, retention)) == HistoryPrune(history=history, retention=retention)


@given(TEXTS, st.lists(BACKENDS, min_size=1, unique=True), st.none() | TEXTS)
def test_push(history: str, backends: list[str], auth_file: str | None) -> None:
    push = Push(backends=tuple(map(parse_backend, backends)), auth_file=auth_file)
    assert parse(push_words(history, push)) == HistoryPush(history=history, push=push, follow=True)


@given(st.lists(st.integers(1, (1 << 31) - 1), min_size=1), TEXTS, CHOSEN, st.booleans(), st.lists(TEXTS))
def test_dump(pids: list[int], path: str, steppers: tuple[str, ...], stop: bool, debug: list[str]) -> None:
    options = RecordOptions(steppers=steppers, stop=stop)
    assert parse(dump_words(pids, path, options, debug)) == DumpCommand(
        target=Target(pid=tuple(pids)),
        options=DumpOptions(steppers=steppers, stop=stop),
        names=NameFlags(debug_dirs=tuple(debug)),
        output=OutputOptions(path=path, format="text"),
        quiet=True,
    )
