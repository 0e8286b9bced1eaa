"""A real terminal for tests: a shell in tmux.

A test polls until the screen shows what it waits for; nothing sleeps for a fixed time.
"""

import re
import subprocess
from pathlib import Path

import pytest

from tests.live.targets import wait_until


class Terminal:
    """A tmux session with a shell in it."""

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
        """Wait until the screen matches the pattern; return the screen."""
        screen = ""

        def shown() -> bool:
            nonlocal screen
            screen = self.text()
            return re.search(pattern, screen) is not None

        try:
            wait_until(shown, f"the terminal shows {pattern}")
        except AssertionError:
            pytest.fail(f"the terminal never shows {pattern}, but:\n{screen}")
        return screen

    def resize(self, width: int, height: int) -> None:
        self._tmux("resize-window", "-x", str(width), "-y", str(height))

    def settings(self) -> str:
        """Return the settings of the terminal, from stty(1)."""
        self.run("clear; stty -a; echo stty=$?")
        return re.sub(r"rows \d+; columns \d+", "", self.wait_for("stty=0").partition("stty=0")[0])

    def close(self) -> None:
        """End the session; it may have ended already."""
        self._tmux("kill-server", check=False)
