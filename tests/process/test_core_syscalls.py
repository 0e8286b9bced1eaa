"""Registers of a core file show the system call in which a thread slept, and the thread's own id."""

import os
from struct import pack
from types import SimpleNamespace

import pytest

from sfsample.core.arch import S390X
from sfsample.formats.elf.image import ElfImage
from sfsample.process import core_threads
from sfsample.process.core_process import CoreProcess
from sfsample.process.core_threads import core_call, own_tid
from sfsample.process.facts.syscall_arguments import DecodedSyscall
from sfsample.process.proc_text import SyscallInfo
from tests.builders.core_builder import Load, core, prstatus


def open_core_bytes(data: bytes) -> CoreProcess:
    return CoreProcess(ElfImage(data, "core"))


def sleeping_call(result: int, number: int = 202, code: bytes = b"\x0f\x05") -> DecodedSyscall | None:
    """Return the call of a thread with these registers; the argument registers hold 0 to 5."""
    words = [0] * 27
    for at, index in enumerate((14, 13, 12, 7, 9, 8)):
        words[index] = at
    words[10], words[15], words[16], words[19] = result, number, 0x1002, 0x5000
    process = open_core_bytes(
        core(prstatus(7, pack("<27q", *words)), Load(0x1000, code + bytes(62), flags=5))
    )
    return core_call(process, process.threads()[0])


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="names of system calls are those of this machine")
def test_interrupted_call_is_decoded() -> None:
    for result in (-4, -512, -516):
        call = sleeping_call(result)
        assert call is not None
        assert (call.name, call.syscall) == ("futex", SyscallInfo(202, (0, 1, 2, 3, 4, 5), 0x5000, 0x1002))
    assert sleeping_call(0) is None, "the call is complete"
    assert sleeping_call(-512, number=-1) is None, "it was in no call"
    assert sleeping_call(-512, code=b"\x90\x90") is None, "no syscall instruction is before the pc"
    unknown = sleeping_call(-512, number=100_000)
    assert unknown is not None
    assert unknown.name is None


@pytest.mark.parametrize(("code", "number"), [(b"\x0a\xee", 238), (b"\x0a\0", 435)])
def test_call_number_on_s390x_is_in_the_instruction_or_a_register(
    monkeypatch, code: bytes, number: int
) -> None:
    """The kernel saves the first argument, as its register is also that of the result."""
    monkeypatch.setattr(core_threads.os, "uname", lambda: SimpleNamespace(machine="s390x"))
    monkeypatch.setattr(core_threads, "syscall_name", lambda _: None)
    words = [0] * 27
    for at, index in enumerate((26, 5, 6, 7, 8, 9)):
        words[index] = at
    words[1], words[3], words[4], words[17], words[18] = 0x1002, 435, -512, 0x5000, 0x8000
    thread_block = pack(">QQQ", 0x8000, 0, 0x8000).ljust(0xD0, b"\0") + pack(">I", 42)
    loads = Load(0x1000, code + bytes(62), flags=5), Load(0x8000, thread_block)
    notes = prstatus(7, pack(">27q", *words), order="big")
    process = open_core_bytes(core(notes, *loads, machine=S390X.machine, order="big"))
    call = core_call(process, process.threads()[0])
    assert call is not None
    assert call.syscall == SyscallInfo(number, (0, 1, 2, 3, 4, 5), 0x5000, 0x1002)
    assert own_tid(process, process.threads()[0]) == 42


def test_thread_id_is_read_from_glibc_thread_block() -> None:
    words = [0] * 27
    words[21] = 0x8000
    thread_block = pack("<QQQ", 0x8000, 0, 0x8000)
    for head, expected in ((thread_block, 42), (bytes(24), 7)):
        block = head.ljust(0x2D0, b"\0") + pack("<I", 42)
        process = open_core_bytes(core(prstatus(7, pack("<27q", *words)), Load(0x8000, block)))
        assert own_tid(process, process.threads()[0]) == (expected if os.uname().machine == "x86_64" else 7)
