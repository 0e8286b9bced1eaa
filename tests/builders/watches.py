"""Builds the watches that `sfsample watch` would start."""

from sfsample.cli.interrupt import Interrupt
from sfsample.cli.parse import parse
from sfsample.cli.watch import make_watch
from sfsample.watching.loop import Watch


def watch_of(*words: str) -> Watch:
    """Return the watch of `sfsample watch WORDS`."""
    return make_watch(parse(["watch", *words]), Interrupt())
