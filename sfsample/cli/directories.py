"""Finds the directories of the user: of the history, and of caches (XDG Base Directory Specification)."""

import os


def history_directory(chosen: str | None) -> str:
    """Return the directory of the history: the chosen one, or that of the user."""
    return chosen or os.path.join(_home("XDG_STATE_HOME", "~/.local/state"), "sfsample", "history")


def cache_home() -> str:
    """Return the directory of all caches of the user."""
    return _home("XDG_CACHE_HOME", "~/.cache")


def _home(variable: str, usual: str) -> str:
    """Return the directory that a variable names; a relative path does not count."""
    directory = os.environ.get(variable, "")
    return directory if os.path.isabs(directory) else os.path.expanduser(usual)
