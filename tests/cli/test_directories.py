"""Tests of the directories of the user."""

from sfsample.cli import directories


def test_directory_follows_the_environment(monkeypatch):
    monkeypatch.setenv("HOME", "/home/u")
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    assert directories.history_directory(None) == "/home/u/.local/state/sfsample/history"
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    assert directories.history_directory(None) == "/state/sfsample/history"
    assert directories.history_directory("here") == "here"
