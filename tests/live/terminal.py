"""A real terminal for tests: a shell in tmux.

Law: what is on the screen is asked for until it is so; nothing waits for a length of time.
"""

import re
import subprocess
from pathlib import Path

import pytest

from tests.live.targets import wait_until


class Terminal:
    """A terminal of its own in tmux, with a shell in it."""

    def __init__(self, directory: Path, width: int = 80, height: int = 24) -> None:
        self._socket = str(directory / "tmux")
        size = ["-x", str(width), "-y", str(height)]
        self._tmux(
            "new-session", "-d", *size, "-c", str(directory), "env PS1='ready> ' bash --norc --noprofile"
        )
        self.wait_for("ready>")

    def _tmux(self, *words: str, check: bool = True) -> str:
        command = ["tmux", "-S", self._socket, "-f", "/dev/null", *words]
        return subprocess.run(command, check=check, capture_output=True, text=True).stdout

    def run(self, command: str) -> None:
        self._tmux("send-keys", "-l", command)
        self.keys("Enter")

    def keys(self, *keys: str) -> None:
        self._tmux("send-keys", *keys)

    def text(self) -> str:
        return self._tmux("capture-pane", "-p")

    def wait_for(self, pattern: str) -> str:
        """Wait until the screen shows it; return the screen."""
        seen: list[str] = []

        def shown() -> bool:
            seen[:] = [self.text()]
            return re.search(pattern, seen[0]) is not None

        try:
            wait_until(shown, f"the terminal shows {pattern}")
        except AssertionError:
            pytest.fail(f"the terminal never shows {pattern}, but:\n{seen[0]}")
        return seen[0]

    def resize(self, width: int, height: int) -> None:
        self._tmux("resize-window", "-x", str(width), "-y", str(height))

    def settings(self) -> str:
        """Return what stty says of the terminal."""
        self.run("clear; stty -a; echo said=$?")
        return re.sub(r"rows \d+; columns \d+", "", self.wait_for("said=0").partition("said=0")[0])

    def close(self) -> None:
        """Make it go away; it may have gone already."""
        self._tmux("kill-server", check=False)
