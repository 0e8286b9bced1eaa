"""scripts/check-words finds words in comments and docstrings, and nowhere else."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

PYTHON = '''"""Reads a table.

Law: nothing is written.
"""
import os  # as everybody does

NAME = "nobody"  # a value is not read
TEXT = """whoever: neither is this"""


class Table:
    # whom
    """Whoever asks."""

    def rows(self, path: str = "untold") -> str:
        """Somebody breathes."""
        return os.path.join("anybody", path)
'''
SHELL = """#!/bin/sh
# Law: nothing
echo nobody  # somebody
echo "${#untold}"
"""


def check_words(*paths: Path) -> tuple[int, list[str]]:
    command = [sys.executable, ROOT / "scripts/check-words", *paths]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout.splitlines()


def test_words_in_python_are_found_in_comments_and_docstrings(tmp_path):
    path = tmp_path / "table.py"
    path.write_text(PYTHON)
    words = [(3, "Law:"), (5, "everybody"), (12, "whom"), (13, "Whoever"), (16, "Somebody"), (16, "breathes")]
    assert check_words(path) == (1, [f"{path}:{line}: {word}" for line, word in words])


def test_words_in_shell_are_found_in_comments(tmp_path):
    path = tmp_path / "script"
    path.write_text(SHELL)
    assert check_words(path) == (1, [f"{path}:2: Law:", f"{path}:3: somebody"])


@pytest.mark.parametrize("text", ["# lawful, wholesale, retold: parts of words are no words\n", ""])
def test_file_without_such_words_passes(tmp_path, text):
    path = tmp_path / "table.py"
    path.write_text(text)
    assert check_words(path) == (0, [])


def test_other_files_are_not_read(tmp_path):
    path = tmp_path / "page.js"
    path.write_text("# nobody\n")
    assert check_words(path) == (0, [])
