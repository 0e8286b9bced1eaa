"""Tests of the directories of the user."""

from sfsample.cli import environment


def test_directory_follows_the_environment(monkeypatch):
    monkeypatch.setenv("HOME", "/home/u")
    monkeypatch.setenv("XDG_STATE_HOME", "relative")
    assert environment.history_directory(None) == "/home/u/.local/state/sfsample/history"
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    assert environment.history_directory(None) == "/state/sfsample/history"
    assert environment.history_directory("here") == "here"
