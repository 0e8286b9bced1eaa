"""A core file that claims far more than it holds is refused, or what it claims is left out and said."""

from pathlib import Path
from struct import pack

import pytest

from sfsample.dumping.core import dump_core
from sfsample.errors import CoreError
from tests.builders.core_builder import Load, core, files, note, prstatus

CODE, STACK = 0x40_1000, 0x7FF0_0000_0000
CALL = bytes.fromhex("e800000000")  # its return address is what the frames hold


def registers() -> bytes:
    """Return the x86-64 registers of a thread that is in CODE, with its frame at STACK."""
    numbers = [0] * 27
    numbers[4] = numbers[19] = STACK  # rbp, rsp
    numbers[16] = CODE  # rip
    return pack("<27Q", *numbers)


def frames(count: int) -> bytes:
    """Return a chain of frames with frame pointers."""
    return b"".join(pack("<QQ", STACK + 16 * number, CODE + len(CALL)) for number in range(1, count + 1))


def written(tmp_path: Path, notes: bytes, depth: int = 4) -> str:
    path = tmp_path / "core"
    path.write_bytes(core(notes, Load(CODE, CALL * 800, flags=5), Load(STACK, frames(depth))))
    return str(path)


def test_threads_that_share_one_deep_stack_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path, prstatus(1, registers()) * 400, depth=1100)
    with pytest.raises(CoreError, match="its threads have too many frames"):
        dump_core(path)


def test_threads_with_small_stacks_are_dumped(tmp_path: Path) -> None:
    dump = dump_core(written(tmp_path, prstatus(1, registers()) * 400))
    assert {len(thread.stack.frames) for thread in dump.threads} == {5}
    assert len(dump.threads) == 400


def test_more_notes_than_threads_can_have_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path, prstatus(1, registers()) + note(77, b"") * 300_000)
    with pytest.raises(CoreError, match="more notes than its size allows"):
        dump_core(path)


def test_more_files_than_a_process_can_map_are_left_out(tmp_path: Path) -> None:
    mapped = ((number << 12, number + 1 << 12, 0, "/x") for number in range(600_000))
    dump = dump_core(written(tmp_path, prstatus(1, registers()) + files(*mapped)))
    assert any("NT_FILE: 600000 files" in problem for problem in dump.problems)
    assert len(dump.threads) == 1
