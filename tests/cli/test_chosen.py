"""If a name selects processes, a message says which ones."""

import os

import pytest

from sfsample.cli import chosen
from sfsample.cli.chosen import chosen_pids
from sfsample.process.procfs import process_name
from sfsample.process.target import Target


def test_a_name_says_which_processes_it_has_chosen(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    me = os.getpid()
    monkeypatch.setattr(chosen.TargetFinder, "pids", lambda _finder: [me, 1])
    assert chosen_pids(Target(name="shop")) == [me, 1]
    assert capsys.readouterr().err == (
        f"sfsample: shop is process {me} ({process_name(me)}), 1 ({process_name(1)})\n"
    )
    chosen_pids(Target(name="shop"), quiet=True)
    chosen_pids(Target(pid=[me, 1]))
    assert capsys.readouterr().err == ""
