"""The accuracy harness judges stacks right: its arithmetic, on stacks made here."""

import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from sfsample.core.memory import BytesMemory
from sfsample.core.snapshot import ThreadSnapshot
from sfsample.core.stack import Found, Frame, Stack, StopReason
from sfsample.process.capture import CapturedStack
from tests.accuracy import peers, report
from tests.accuracy.compare import Comparison, Verdict, compare, only_frames
from tests.accuracy.peers import PeerStack
from tests.accuracy.programs import PROGRAMS
from tests.accuracy.row_counts import RowCounts, comparable


@pytest.mark.parametrize(
    ("own", "peer", "expected"),
    [
        ((1, 2, 3), (1, 2, 3), Comparison(Verdict.IDENTICAL, 3)),
        ((1, 2, 3), (1, 2), Comparison(Verdict.LONGER, 2)),
        ((1, 2), (1, 2, 3), Comparison(Verdict.SHORTER, 2)),
        ((1, 2, 3), (1, 4, 3), Comparison(Verdict.DIFFERENT, 1)),
        ((1, 2, 3), (4,), Comparison(Verdict.DIFFERENT, 0)),
    ],
)
def test_compare(own, peer, expected):
    assert compare(own, peer) == expected


@pytest.mark.parametrize(
    ("pcs", "expected"),
    [
        ((10, 20), (10, 20)),
        ((10, 20, 0), (10, 20)),  # the end marker
        ((10, 20, 99, 98), (10, 20)),
        ((10, 0, 20), (10, 0, 20)),  # a call through a null pointer
        ((0,), (0,)),
        ((10, 20, 31), (10, 20, 31)),  # a call as the last instruction of the code
    ],
)
def test_outermost_addresses_without_code_are_no_frames(pcs, expected):
    assert only_frames(pcs, range(1, 31).__contains__) == expected


def captured(*pcs: int) -> CapturedStack:
    frames = tuple(Frame(pc, 0, None, Found.EH_FRAME, exact=False) for pc in pcs)
    snapshot = ThreadSnapshot(1, {}, BytesMemory(0, b""), bounded=False, stop_ns=0, eintr=False)
    return CapturedStack(snapshot, Stack(frames, StopReason.OUTERMOST), 0, ())


def counted(*stacks: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]) -> RowCounts:
    """Count stacks, each of sfsample, gdb and eu-stack."""
    counts = RowCounts("row")
    names = SimpleNamespace(name=lambda pc, **_: f"f{pc}", executable=lambda _: True)
    for own, gdb, eu_stack in stacks:
        peer_stacks = {"gdb": PeerStack(gdb, "no reason"), "eu-stack": PeerStack(eu_stack, "")}
        counts.add(names, captured(*own), peer_stacks)  # type: ignore[arg-type]
    return counts


def test_stack_agrees_with_both_with_either_or_with_none():
    counts = counted(
        ((1, 2), (1, 2), (1, 2)),
        ((1, 2), (1, 2), (1, 9)),
        ((1, 2), (1, 8), (1, 9)),
        ((1, 2), (1, 9), (1, 9)),
        ((1, 2), (1, 2, 3), (1, 2)),  # a stack that one peer follows further is not agreed upon
    )

    assert (counts.stacks, counts.both, counts.either, counts.alone) == (5, 1, 2, 1)
    assert counts.verdicts["gdb"] == {"identical": 2, "different": 2, "shorter": 1}
    assert counts.frames == {"eh_frame": 10}
    assert counts.partings[("row", "gdb", Verdict.DIFFERENT, "f1", "f2 by eh_frame", "f9")] == 1


def test_total_of_all_rows():
    both = report.total([counted(((1,), (1,), (1,))), counted(((1,), (2,), (2,)), ((1,), (1,), (1,)))])

    assert (both.stacks, both.both, both.alone, both.verdicts["gdb"]["identical"]) == (3, 2, 1, 2)
    assert json.loads(json.dumps(both.as_json()))["alone"] == 1


@pytest.mark.parametrize(
    ("part", "whole", "text"),
    [(0, 0, "0 %"), (0, 9, "0 %"), (9, 9, "100 %"), (99999, 100000, "99.99 %"), (1, 100000, "0.01 %"),
     (1, 8, "12.50 %")],
)  # fmt: skip
def test_share_is_never_rounded_to_all_or_nothing(part, whole, text):
    assert report.share(part, whole) == text


def test_thread_with_another_pc_in_a_peer_is_not_compared():
    own, same, moved = captured(1, 2), PeerStack((1,), ""), PeerStack((7, 2), "")

    assert comparable(own, 5, {"gdb": {5: same}, "eu-stack": {5: same}}) == {"gdb": same, "eu-stack": same}
    assert comparable(own, 5, {"gdb": {5: same}, "eu-stack": {5: moved}}) == "eu-stack sees another pc"
    assert comparable(own, 5, {"gdb": {}, "eu-stack": {5: same}}) == "gdb shows no stack of the thread"


def test_every_program_lists_its_needs():
    for program in PROGRAMS:
        builds = [program.build.split()[0]] if program.build else []
        assert set(builds) <= set(program.needs)
        assert ("{bin}" in program.command) == bool(program.build or program.real)


def test_peer_without_an_answer_is_reported(tmp_path, monkeypatch):
    endless = tmp_path / "eu-stack"
    endless.write_text("#!/bin/sh\nexec sleep 600\n")
    endless.chmod(0o755)
    monkeypatch.setattr(peers, "_ENVIRONMENT", {"PATH": f"{tmp_path}:/usr/bin:/bin"})
    monkeypatch.setattr(peers, "_MAX_ANSWER_S", 1)

    with pytest.raises(peers.PeerError, match="eu-stack: no answer for 1 s"):
        peers.eu_stack(1)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (["--only", "nosuch"], "no row has 'nosuch' in its name; the rows: fixtures, SFrame V1, "),
        (["--stacks", "0"], "not a count: '0'"),
        (["--stacks", "-3"], "not a count: '-3'"),
        (["--save", "{file}"], "--save: cannot write there: [Errno 17] File exists: "),
        (["--cache", "{file}/in"], "--cache: cannot write there: [Errno 20] Not a directory: "),
        (["--json", "{file}/in"], "--json: cannot write it: [Errno 20] Not a directory: "),
    ],
)
def test_invalid_option_is_refused_before_the_start(options, error, tmp_path):
    (tmp_path / "file").touch()
    script = Path(__file__).parents[2] / "scripts" / "accuracy"
    words = [option.format(file=tmp_path / "file") for option in options]
    done = subprocess.run([sys.executable, script, *words], capture_output=True, text=True, check=False)

    assert done.returncode == 2
    assert error in done.stderr
    assert "Traceback" not in done.stderr
    assert not done.stdout


@pytest.mark.parametrize("row", ["lua, SFrame V1", "C, SFrame V1", "C, musl; the others", "Go"])
def test_program_that_cannot_be_built_is_reported(row, tmp_path):
    """PATH has no compilers, and nothing to download them with."""
    for peer in peers.NAMES:
        (tmp_path / peer).touch(0o755)
    script = Path(__file__).parents[2] / "scripts" / "accuracy"
    command = [sys.executable, script, "--only", row, "--stacks", "1"]
    nothing = {"PATH": str(tmp_path), "TMPDIR": str(tmp_path)}
    done = subprocess.run(command, env=nothing, capture_output=True, text=True, check=False)

    assert done.returncode == 1
    assert re.search(rf"^ +\d {row}.*: .+", done.stdout, re.MULTILINE)
    assert done.stderr.endswith("accuracy: nothing was compared\n")
    assert "Traceback" not in done.stderr
