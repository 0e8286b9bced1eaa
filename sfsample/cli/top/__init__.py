"""`sfsample top`: a live view in the terminal."""

from sfsample.cli.top.command import run

__all__ = ["run"]
