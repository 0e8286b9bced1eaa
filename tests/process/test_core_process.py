"""Core files as targets: what is read of them, and what becomes of damaged ones.

The fixtures were written by real kernels and by gcore (scripts/build-cores); what gdb says lies beside them.
"""

import gzip
import json
import lzma
import os
import re
import shutil
from pathlib import Path
from struct import pack
from types import SimpleNamespace

import pytest

import sfsample
from sfsample.cli import main
from sfsample.core.arch import AARCH64_BE, S390X
from sfsample.core.snapshot import Capture
from sfsample.core.stack import Found, StopReason
from sfsample.dumping.run import dump_core
from sfsample.errors import FormatError
from sfsample.formats.elf.image import ElfImage
from sfsample.process.core_process import CoreProcess
from sfsample.process.facts import core_syscalls as core_calls
from sfsample.process.facts.core_syscalls import core_call, own_tid
from sfsample.process.facts.syscall_arguments import DecodedSyscall
from sfsample.process.proc_text import SyscallInfo
from sfsample.saved_stacks.format import from_json
from tests.builders import elf_builder
from tests.builders.core_builder import Load, auxv, core, files, note, prpsinfo, prstatus

FIXTURES = Path(__file__).parents[1] / "fixtures"
CORES = FIXTURES / "cores"
PROGRAMS = {
    "x86_64": FIXTURES / "v3/crash",
    "aarch64": FIXTURES / "aarch64/v3/crash",
    "s390x": FIXTURES / "s390x/v3/crash",
}
NAMES = [f"{machine}-{kind}" for machine in PROGRAMS for kind in ("kernel", "gcore")]
CRASH = ["handler_inner"] * 3 + ["handler", None, "raise_here", "middle", "outer", "main", "_start"]
every_core = pytest.mark.parametrize("name", NAMES)


@pytest.fixture
def unpacked(tmp_path):
    """Give the path of a fixture's core file."""

    def unpack(name: str) -> str:
        path = tmp_path / name
        path.write_bytes(lzma.decompress((CORES / f"{name}.xz").read_bytes()))
        return str(path)

    return unpack


def gdb_stacks(text: str) -> dict[int, list[int | None]]:
    """LWP -> the pcs of its frames as gdb tells them, innermost first; None for a signal frame."""
    stacks: dict[int, list[int | None]] = {}
    for line in text.splitlines():
        thread = re.match(r"Thread \d+ \((?:LWP |Thread \S+ \(LWP )(\d+)", line)
        frame = re.match(r"#\d+ +(?:(0x[0-9a-f]+)(?: \[PAC\])? in|(<signal handler))", line)
        if thread:
            stacks[int(thread[1])] = []
        elif frame and stacks:
            next(reversed(stacks.values())).append(int(frame[1], 16) if frame[1] else None)
    return stacks


def ours(dump: sfsample.ProcessDump) -> dict[int, list[int | None]]:
    """The same of a dump; the frame from which `signal_frame` led on is gdb's signal frame."""
    return {
        thread.tid: [
            None if above is not None and above.found is Found.SIGNAL_FRAME else frame.pc
            for frame, above in zip(thread.stack.frames, (*thread.stack.frames[1:], None), strict=True)
        ]
        for thread in dump.threads
    }


@every_core
def test_stacks_are_those_of_gdb(name, unpacked):
    dump = dump_core(unpacked(name), str(PROGRAMS[name.partition("-")[0]]))
    theirs = gdb_stacks((CORES / f"{name}.gdb").read_text())

    assert dump.problems == ()
    assert {thread.capture for thread in dump.threads} == {Capture.CORE}
    assert {thread.stack.stop_reason for thread in dump.threads} == {StopReason.OUTERMOST}
    found = ours(dump)
    assert theirs.keys() == found.keys()
    for tid, stack in theirs.items():
        assert found[tid][: len(stack)] == stack  # gdb ends at main
        assert len(stack) >= 2


@every_core
def test_the_crash_as_json(name, unpacked, capsysbinary):
    assert (
        main(["dump", "--core", unpacked(name), "--exe", str(PROGRAMS[name.partition("-")[0]]), "--json"])
        == 0
    )
    document = json.loads(capsysbinary.readouterr().out)
    [process] = document["processes"]
    [thread] = process["threads"]

    assert document["schema"] == "sfsample.dump/1"
    assert process["name"] == "crash"
    assert (thread["tid"], thread["capture"], thread["state"]) == (process["pid"], "core", None)
    assert thread["signal"] == "SIGSEGV"
    assert {thread[key] for key in ("stop_ns", "syscall", "wchan", "error")} == {None}
    names = [frame["function"] for frame in thread["frames"]]
    assert names[:4] + names[5:] == CRASH[:4] + CRASH[5:]
    labels = [frame["found"] for frame in thread["frames"]]
    assert labels == ["context", *["sframe"] * 4, "signal_frame", *["sframe"] * 4]


def test_the_program_is_looked_for_where_it_was(unpacked):
    """The fixture was written elsewhere, so without --exe there is no program: no names, and no tables."""
    dump = dump_core(unpacked("x86_64-kernel"))
    [thread] = dump.threads

    assert re.search(r"crash: \S+/crash cannot be opened \(No such file or directory\)", str(dump.problems))
    assert set(thread.modules) == {None}
    assert {frame.found for frame in thread.stack.frames[1:]} <= {Found.FRAME_POINTER}


@every_core
def test_the_text_begins_with_the_signal(name, unpacked, capsys):
    assert main(["dump", "--core", unpacked(name), "--exe", str(PROGRAMS[name.partition("-")[0]])]) == 0
    header, verdict, *_ = capsys.readouterr().out.splitlines()

    assert re.fullmatch(r"process \d+ crash: \S+/crash", header)
    assert re.fullmatch(r"=> process \d+ \(crash\) got SIGSEGV, in handler_inner <- .*", verdict)


def test_a_program_that_was_dumped_whole_is_not_looked_for(unpacked):
    """All of it lies in its first page, which the kernel dumps."""
    dump = dump_core(unpacked("aarch64-kernel"))

    assert dump.problems == ()
    assert [thread.stack.stop_reason for thread in dump.threads] == [StopReason.OUTERMOST]


def test_another_program_is_refused(unpacked):
    dump = dump_core(unpacked("x86_64-kernel"), str(FIXTURES / "v3/target-static"))

    assert "target-static is not the file that was mapped" in str(dump.problems)


@pytest.mark.parametrize("exe", ["/nonexistent", str(FIXTURES / "v3/target-static"), "/"])
def test_a_program_that_was_given_in_vain_is_told(exe, unpacked):
    """The core file has all that is needed of its program, so what --exe names is not missed."""
    dump = dump_core(unpacked("aarch64-kernel"), exe)

    [problem] = dump.problems
    assert problem.startswith(f"--exe is not used: {exe}")
    assert [thread.stack.stop_reason for thread in dump.threads] == [StopReason.OUTERMOST]


def sysroot_with(program: Path, dump: sfsample.ProcessDump, root: Path) -> str:
    """Copy a file to where the process of a core file had its program, under a root."""
    assert dump.exe is not None
    place = root / dump.exe.lstrip("/")
    place.parent.mkdir(parents=True)
    shutil.copy(program, place)
    return f"{root}/"


@every_core
def test_files_of_another_machine_are_looked_for_under_its_root(name, unpacked, tmp_path, capsys):
    core, program = unpacked(name), PROGRAMS[name.partition("-")[0]]
    root = sysroot_with(program, dump_core(core), tmp_path / "root")

    assert main(["dump", "--core", core, "--sysroot", root]) == 0
    by_root = capsys.readouterr()
    assert main(["dump", "--core", core, "--exe", str(program)]) == 0
    assert capsys.readouterr() == by_root
    assert "_start" in by_root.out
    assert by_root.err == ""


def test_a_root_with_other_files_is_refused(unpacked, tmp_path):
    """A file of another machine that has the same path, as libraries do."""
    core = unpacked("x86_64-kernel")
    root = sysroot_with(FIXTURES / "v3/target-static", dump_core(core), tmp_path / "root").rstrip("/")
    dump = dump_core(core, sysroot=root)
    [problem] = dump.problems

    assert dump.exe is not None
    assert problem.startswith(f"{dump.exe}: {root}{dump.exe} is not the file that was mapped")
    assert dump.threads[0].stack.stop_reason is StopReason.NO_ROW


# -- made files

REGISTERS = pack("<27Q", *range(27))
ONE = prstatus(7, REGISTERS)


def opened(data: bytes, **options) -> CoreProcess:
    return CoreProcess(ElfImage(data, "core"), **options)


def test_threads_in_order_with_their_registers():
    more = pack("<27Q", *range(100, 127))
    target = opened(core(prstatus(7, REGISTERS, 11) + prpsinfo(b"name", b"name -v 1 ") + prstatus(9, more)))
    first, second = map(target.snapshot, target.threads())

    assert (target.pid, target.signal, target.name, target.arguments) == (7, 11, "name", "name -v 1 ")
    assert (first.tid, first.registers[7], first.registers[16]) == (7, 19, 16)
    assert (second.tid, second.registers[7], second.registers[16]) == (9, 119, 116)


def with_build_id(build_id: bytes) -> bytes:
    """An ELF file of which the core file has the head."""
    found = elf_builder.note(build_id)
    segments = [elf_builder.Load(0, offset=0, filesz=0x2000), elf_builder.Load(0x200, found, 4, 4, 0x200)]
    return elf_builder.elf(segments).ljust(0x2000, b"\0")


@pytest.mark.parametrize(("here", "said"), [(b"\xab" * 20, ()), (b"\xcd" * 20, ("cd" * 20, "ab" * 20))])
def test_both_build_ids_are_said_where_they_differ(here, said, tmp_path):
    (tmp_path / "a").write_bytes(with_build_id(here))
    notes = ONE + files((0x400000, 0x402000, 0, "/a"))
    head = with_build_id(b"\xab" * 20)[:0x1000]
    target = opened(core(notes, Load(0x400000, head, 5, memsz=0x2000)), sysroot=str(tmp_path))
    found = target.modules.find(0x400000)

    assert (found is None) == bool(said)
    problem = f"/a: {tmp_path}/a is not the file that was mapped (build-id {{}}, mapped was {{}})"
    assert target.problems == ([problem.format(*said)] if said else [])


def test_memory_is_what_was_dumped():
    target = opened(core(ONE, Load(0x1000, b"abcdefgh" * 2, memsz=0x1000), Load(0x5000, b"x")))
    memory = target.memory

    assert memory.read(0x1004, 4) == b"efgh"
    assert memory.word(0x1008) == int.from_bytes(b"abcdefgh", "little")
    assert memory.read(0x100F, 2) is memory.read(0xFFF, 1) is memory.read(0x2000, 1) is None
    assert memory.read(0x5000, 1) == b"x"
    assert memory.word(0x5000) is memory.read(0x1000, -1) is None


def test_maps_join_segments_and_files():
    notes = (
        ONE
        + files((0x1000, 0x3000, 2, "/bin/a"), (0x8000, 0x9000, 0, "/lib/b (deleted)"))
        + auxv(vdso=0xA000)
    )
    target = opened(
        core(notes, Load(0x1000, flags=5, memsz=0x2000), Load(0xA000, b"?", flags=5), Load(0xC000, b"s", 6))
    )

    assert [(m.start, m.end, m.executable, m.offset, m.path, m.deleted) for m in target._maps()] == [
        (0x1000, 0x3000, True, 0x2000, "/bin/a", False),
        (0x8000, 0x9000, True, 0, "/lib/b", True),  # no segment: gdb leaves out what it does not dump
        (0xA000, 0xA001, True, 0, "[vdso]", False),
        (0xC000, 0xC001, False, 0, "", False),
    ]


def test_cut_off():
    target = opened(core(ONE, Load(0x1000, bytes(5000)))[:-1000])

    assert target.problems == ["core: truncated: its last 1000 bytes are missing"]
    assert target.memory.read(0x1000, 4000) is not None
    assert target.memory.read(0x1000, 4001) is None


@pytest.mark.parametrize(
    ("notes", "said"),
    [
        (ONE + note(1, bytes(50)), "NT_PRSTATUS: of 50 bytes"),
        (ONE + note(0x46494C45, bytes(10)), "NT_FILE: of 10 bytes"),
        (ONE + note(0x46494C45, pack("<QQ", 1 << 40, 4096)), "NT_FILE: 1099511627776 files in 16 bytes"),
    ],
)
def test_a_damaged_note_is_told_and_the_rest_is_used(notes, said):
    target = opened(core(notes))

    assert [thread.tid for thread in target.threads()] == [7]
    [problem] = target.problems
    assert said in problem
    assert problem.startswith(f"core+{64 + 56 + len(ONE):#x}: ")


def test_a_thread_with_too_few_registers_is_shown():
    target = opened(core(ONE + prstatus(8, bytes(100))))

    assert target.snapshot(target.threads()[1]) == "its registers are 108 bytes, not 216"


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "is empty"),
        (b"not an ELF file, but a text", "not an ELF file"),
        (core(ONE, kind=2), "not a core file"),
        (core(b""), "no thread is described"),
        (core(ONE, machine=8), "e_machine 8 is none of x86_64, aarch64"),
        (core(ONE)[:40], "shorter than an ELF header"),
        (gzip.compress(core(ONE)), "unpack it first: gzip -d"),
        (lzma.compress(core(ONE)), "unpack it first: xz -d"),
        (bytes.fromhex("28b52ffd 0458"), "unpack it first: zstd -d"),
    ],
)
def test_what_is_no_core_file(data, said, tmp_path, capsysbinary):
    path = tmp_path / "core"
    path.write_bytes(data)

    assert main(["dump", "--core", str(path)]) == 1
    error = capsysbinary.readouterr().err.decode()
    assert error.startswith(f"sfsample: cannot read core file: {path}: ")
    assert said in error
    assert "Traceback" not in error


@pytest.mark.parametrize("path", ["/nonexistent", "/", "/dev/null", ""])
def test_what_is_no_file(path, capsys):
    assert main(["dump", "--core", path]) == 1
    error, *rest = capsys.readouterr().err.splitlines()
    assert error.startswith(f"sfsample: cannot read core file: {path or repr('')}: ")
    assert rest, "what to do"


def test_a_foreign_byte_order_is_a_machine_we_do_not_know():
    with pytest.raises(FormatError, match="e_machine 62"):
        opened(core(ONE, order="big"))


# -- AArch64 big endian, which no distribution runs: registers and stack out of qemu's user emulation


@pytest.mark.parametrize("table", ["sframe", "eh_frame"])
def test_big_endian(table, capsys):
    """The stack is the one that the source of `crash` says, by either table; return addresses are signed."""
    path = CORES / "aarch64_be-qemu.json"
    assert main(["replay", str(path), "--sysroot", str(FIXTURES), "--unwind", table, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)["now"]
    saved = from_json(path.read_text())
    words = [
        saved.snapshot.memory.word(at) for at, data in saved.pieces for at in range(at, at + len(data), 8)
    ]

    assert saved.arch == AARCH64_BE
    assert [frame["function"] for frame in document["frames"]] == ["raise_here", *CRASH[6:]]
    assert {frame["found"] for frame in document["frames"][1:]} == {table}
    assert document["stop_reason"] == "outermost"
    pcs = {int(frame["pc"], 16) for frame in document["frames"]}
    assert any(word & AARCH64_BE.ra_mask in pcs and word not in pcs for word in words if word)


# -- what a thread did in the kernel


def asleep(result: int, number: int = 202, code: bytes = b"\x0f\x05") -> DecodedSyscall | None:
    """The call of a thread whose registers say so; each argument register holds its number in the call."""
    words = [0] * 27
    for at, index in enumerate((14, 13, 12, 7, 9, 8)):
        words[index] = at
    words[10], words[15], words[16], words[19] = result, number, 0x1002, 0x5000
    target = opened(core(prstatus(7, pack("<27q", *words)), Load(0x1000, code + bytes(62), flags=5)))
    return core_call(target, target.threads()[0])


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="names of system calls are those of this machine")
def test_the_system_call_in_which_a_thread_slept() -> None:
    for result in (-4, -512, -516):
        call = asleep(result)
        assert call is not None
        assert (call.name, call.syscall) == ("futex", SyscallInfo(202, (0, 1, 2, 3, 4, 5), 0x5000, 0x1002))
    assert asleep(0) is None, "the call has been done"
    assert asleep(-512, number=-1) is None, "it was in none"
    assert asleep(-512, code=b"\x90\x90") is None, "no call is before the pc"
    unknown = asleep(-512, number=100_000)
    assert unknown is not None
    assert unknown.name is None


@pytest.mark.parametrize(("code", "number"), [(b"\x0a\xee", 238), (b"\x0a\0", 435)])
def test_on_s390x_the_number_is_in_the_instruction_or_a_register(
    monkeypatch, code: bytes, number: int
) -> None:
    """The first argument is kept where its register, the result's, was before."""
    monkeypatch.setattr(core_calls.os, "uname", lambda: SimpleNamespace(machine="s390x"))
    monkeypatch.setattr(core_calls, "syscall_name", lambda _: None)
    words = [0] * 27
    for at, index in enumerate((26, 5, 6, 7, 8, 9)):
        words[index] = at
    words[1], words[3], words[4], words[17], words[18] = 0x1002, 435, -512, 0x5000, 0x8000
    itself = pack(">QQQ", 0x8000, 0, 0x8000).ljust(0xD0, b"\0") + pack(">I", 42)
    loads = Load(0x1000, code + bytes(62), flags=5), Load(0x8000, itself)
    notes = prstatus(7, pack(">27q", *words), order="big")
    target = opened(core(notes, *loads, machine=S390X.machine, order="big"))
    call = core_call(target, target.threads()[0])
    assert call is not None
    assert call.syscall == SyscallInfo(number, (0, 1, 2, 3, 4, 5), 0x5000, 0x1002)
    assert own_tid(target, target.threads()[0]) == 42


def test_the_id_that_glibc_knows_a_thread_by() -> None:
    words = [0] * 27
    words[21] = 0x8000
    itself = pack("<QQQ", 0x8000, 0, 0x8000)
    for head, expected in ((itself, 42), (bytes(24), 7)):
        block = head.ljust(0x2D0, b"\0") + pack("<I", 42)
        target = opened(core(prstatus(7, pack("<27q", *words)), Load(0x8000, block)))
        assert own_tid(target, target.threads()[0]) == (expected if os.uname().machine == "x86_64" else 7)
