"""Core files are opened as processes, and damaged ones are reported.

Real kernels and gcore wrote the fixtures (scripts/build-cores); gdb's output is stored beside them.
"""

import json
import lzma
import re
import shutil
from pathlib import Path
from struct import pack

import pytest

import sfsample
from sfsample.cli import main
from sfsample.core.arch import AARCH64_BE
from sfsample.core.snapshot import Capture
from sfsample.core.stack import Found, StopReason
from sfsample.dumping.core import dump_core
from sfsample.dumping.options import DumpOptions
from sfsample.dumping.run import Examiner
from sfsample.errors import FormatError
from sfsample.formats.elf.core_file import CoreFile
from sfsample.formats.elf.image import PF_X, ElfImage
from sfsample.process.core_process import CoreProcess
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
    """Return a function that unpacks the core file of a fixture and returns its path."""

    def unpack(name: str) -> str:
        path = tmp_path / name
        path.write_bytes(lzma.decompress((CORES / f"{name}.xz").read_bytes()))
        return str(path)

    return unpack


def gdb_stacks(text: str) -> dict[int, list[int | None]]:
    """Parse gdb's backtraces: LWP -> pcs of its frames, innermost first; None for a signal frame."""
    stacks: dict[int, list[int | None]] = {}
    for line in text.splitlines():
        thread = re.match(r"Thread \d+ \((?:LWP |Thread \S+ \(LWP )(\d+)", line)
        frame = re.match(r"#\d+ +(?:(0x[0-9a-f]+)(?: \[PAC\])? in|(<signal handler))", line)
        if thread:
            stacks[int(thread[1])] = []
        elif frame and stacks:
            next(reversed(stacks.values())).append(int(frame[1], 16) if frame[1] else None)
    return stacks


def dump_stacks(dump: sfsample.ProcessDump) -> dict[int, list[int | None]]:
    """Return the same of a dump; gdb's signal frame is the callee of a frame found by `signal_frame`."""
    return {
        thread.tid: [
            None if above is not None and above.found is Found.SIGNAL_FRAME else frame.pc
            for frame, above in zip(thread.stack.frames, (*thread.stack.frames[1:], None), strict=True)
        ]
        for thread in dump.threads
    }


@every_core
def test_stacks_equal_those_of_gdb(name, unpacked):
    dump = dump_core(unpacked(name), str(PROGRAMS[name.partition("-")[0]]))
    expected = gdb_stacks((CORES / f"{name}.gdb").read_text())

    assert dump.problems == ()
    assert {thread.capture for thread in dump.threads} == {Capture.CORE}
    assert {thread.stack.stop_reason for thread in dump.threads} == {StopReason.OUTERMOST}
    found = dump_stacks(dump)
    assert expected.keys() == found.keys()
    for tid, stack in expected.items():
        assert found[tid][: len(stack)] == stack  # gdb ends at main
        assert len(stack) >= 2


@every_core
def test_dump_of_a_crash_as_json(name, unpacked, capsysbinary):
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


def test_program_is_opened_at_its_recorded_path(unpacked):
    """That path does not exist here, so without --exe there are no names and no unwind tables."""
    dump = dump_core(unpacked("x86_64-kernel"))
    [thread] = dump.threads

    assert re.search(r"crash: \S+/crash cannot be opened \(No such file or directory\)", str(dump.problems))
    assert set(thread.modules) == {None}
    assert {frame.found for frame in thread.stack.frames[1:]} <= {Found.FRAME_POINTER}


@every_core
def test_text_begins_with_the_signal(name, unpacked, capsys):
    assert main(["dump", "--core", unpacked(name), "--exe", str(PROGRAMS[name.partition("-")[0]])]) == 0
    header, verdict, *_ = capsys.readouterr().out.splitlines()

    assert re.fullmatch(r"process \d+ crash: \S+/crash", header)
    assert re.fullmatch(r"=> process \d+ \(crash\) got SIGSEGV, in handler_inner \(x 3\) <- .*", verdict)


def test_completely_dumped_program_needs_no_file(unpacked):
    """The whole program lies in its first page, which the kernel dumps."""
    dump = dump_core(unpacked("aarch64-kernel"))

    assert dump.problems == ()
    assert [thread.stack.stop_reason for thread in dump.threads] == [StopReason.OUTERMOST]


def test_other_program_is_refused(unpacked):
    dump = dump_core(unpacked("x86_64-kernel"), str(FIXTURES / "v3/target-static"))

    assert "target-static is not the file that was mapped" in str(dump.problems)


@pytest.mark.parametrize("exe", ["/nonexistent", str(FIXTURES / "v3/target-static"), "/"])
def test_unused_exe_option_is_reported(exe, unpacked):
    """The core file contains its whole program, so the stack is complete without --exe."""
    dump = dump_core(unpacked("aarch64-kernel"), exe)

    [problem] = dump.problems
    assert problem.startswith(f"--exe is not used: {exe}")
    assert [thread.stack.stop_reason for thread in dump.threads] == [StopReason.OUTERMOST]


def sysroot_with(program: Path, dump: sfsample.ProcessDump, root: Path) -> str:
    """Copy a file below `root` to the path that the program of a core file had."""
    assert dump.exe is not None
    place = root / dump.exe.lstrip("/")
    place.parent.mkdir(parents=True)
    shutil.copy(program, place)
    return f"{root}/"


@every_core
def test_files_of_another_machine_are_opened_below_sysroot(name, unpacked, tmp_path, capsys):
    core, program = unpacked(name), PROGRAMS[name.partition("-")[0]]
    root = sysroot_with(program, dump_core(core), tmp_path / "root")

    assert main(["dump", "--core", core, "--sysroot", root]) == 0
    by_root = capsys.readouterr()
    assert main(["dump", "--core", core, "--exe", str(program)]) == 0
    assert capsys.readouterr() == by_root
    assert "_start" in by_root.out
    assert by_root.err == ""


def test_other_file_below_sysroot_is_refused(unpacked, tmp_path):
    """The file has the same path but other contents, as libraries of two machines do."""
    core = unpacked("x86_64-kernel")
    root = sysroot_with(FIXTURES / "v3/target-static", dump_core(core), tmp_path / "root").rstrip("/")
    dump = dump_core(core, sysroot=root)
    [problem] = dump.problems

    assert dump.exe is not None
    assert problem.startswith(f"{dump.exe}: {root}{dump.exe} is not the file that was mapped")
    assert dump.threads[0].stack.stop_reason is StopReason.NO_ROW


# -- core files that the test builds

REGISTERS = pack("<27Q", *range(27))
ONE_THREAD = prstatus(7, REGISTERS)
ONE_FILE = files((0x1000, 0x3000, 0, "/bin/a"))


def open_core_bytes(data: bytes, **options) -> CoreProcess:
    return CoreProcess(ElfImage(data, "core"), **options)


def test_threads_are_in_order_with_their_registers():
    more = pack("<27Q", *range(100, 127))
    process = open_core_bytes(
        core(prstatus(7, REGISTERS, 11) + prpsinfo(b"name", b"name -v 1 ") + prstatus(9, more))
    )
    first, second = map(process.snapshot, process.threads())

    assert (process.pid, process.signal, process.name, process.arguments) == (7, 11, "name", "name -v 1 ")
    assert (first.tid, first.registers[7], first.registers[16]) == (7, 19, 16)
    assert (second.tid, second.registers[7], second.registers[16]) == (9, 119, 116)


def test_process_is_the_one_that_the_core_file_names_whichever_thread_comes_first():
    """The kernel writes the crashed thread first, and its signal for every thread."""
    notes = prstatus(9, REGISTERS, 11) + prpsinfo(b"name", b"name", pid=7) + prstatus(7, REGISTERS, 11)
    assert open_core_bytes(core(notes)).pid == 7
    assert open_core_bytes(core(prstatus(9, REGISTERS))).pid == 9


def test_crashed_thread_is_named_first_and_is_not_called_the_main_thread(tmp_path):
    notes = prstatus(9, REGISTERS, 11) + prpsinfo(b"name", b"name", pid=7) + prstatus(7, REGISTERS, 11)
    (tmp_path / "core").write_bytes(core(notes))
    dump = dump_core(str(tmp_path / "core"))
    first, second = Examiner()([dump]).findings

    assert [(thread.tid, thread.signal) for thread in dump.threads] == [(9, 11), (7, 0)]
    assert first.text.startswith("thread 9 (name) got SIGSEGV")
    assert second.text.startswith("the main thread (7) ")


def test_core_file_without_a_list_of_files_has_no_names():
    assert open_core_bytes(core(ONE_THREAD)).problems == [
        "the core file does not say which files were mapped (no NT_FILE): code has no names"
    ]


def with_build_id(build_id: bytes) -> bytes:
    """Return an ELF file, whose first page the core file contains."""
    found = elf_builder.note(build_id)
    segments = [elf_builder.Load(0, offset=0, filesz=0x2000), elf_builder.Load(0x200, found, 4, 4, 0x200)]
    return elf_builder.elf(segments).ljust(0x2000, b"\0")


@pytest.mark.parametrize(("here", "shown"), [(b"\xab" * 20, ()), (b"\xcd" * 20, ("cd" * 20, "ab" * 20))])
def test_differing_build_ids_are_both_reported(here, shown, tmp_path):
    (tmp_path / "a").write_bytes(with_build_id(here))
    notes = ONE_THREAD + files((0x400000, 0x402000, 0, "/a"))
    head = with_build_id(b"\xab" * 20)[:0x1000]
    process = open_core_bytes(core(notes, Load(0x400000, head, 5, memsz=0x2000)), sysroot=str(tmp_path))
    found = process.modules.find(0x400000)

    assert (found is None) == bool(shown)
    problem = f"/a: {tmp_path}/a is not the file that was mapped (build-id {{}}, mapped was {{}})"
    assert process.problems == ([problem.format(*shown)] if shown else [])


def test_file_of_which_nothing_was_dumped_is_believed(tmp_path):
    (tmp_path / "a").write_bytes(with_build_id(b"\xab" * 20))
    notes = ONE_THREAD + files((0x400000, 0x402000, 0, "/a"))
    process = open_core_bytes(core(notes, Load(0x400000, flags=5, memsz=0x2000)), sysroot=str(tmp_path))

    assert process.modules.find(0x400000) is not None
    assert process.problems == [f"{tmp_path}/a is not confirmed: the core file has no bytes of /a"]


def test_memory_has_what_was_dumped():
    process = open_core_bytes(
        core(ONE_THREAD, Load(0x1000, b"abcdefgh" * 2, memsz=0x1000), Load(0x5000, b"x"))
    )
    memory = process.memory

    assert memory.read(0x1004, 4) == b"efgh"
    assert memory.word(0x1008) == int.from_bytes(b"abcdefgh", "little")
    assert memory.read(0x100F, 2) is memory.read(0xFFF, 1) is memory.read(0x2000, 1) is None
    assert memory.read(0x5000, 1) == b"x"
    assert memory.word(0x5000) is memory.read(0x1000, -1) is None


def test_memory_map_joins_segments_and_files():
    notes = (
        ONE_THREAD
        + files((0x1000, 0x3000, 2, "/bin/a"), (0x8000, 0x9000, 0, "/lib/b (deleted)"))
        + auxv(vdso=0xA000)
    )
    process = open_core_bytes(
        core(notes, Load(0x1000, flags=5, memsz=0x2000), Load(0xA000, b"?", flags=5), Load(0xC000, b"s", 6))
    )

    assert [(m.start, m.end, m.executable, m.offset, m.path, m.deleted) for m in process._maps()] == [
        (0x1000, 0x3000, True, 0x2000, "/bin/a", False),
        (0x8000, 0x9000, True, 0, "/lib/b", True),  # no segment: gdb leaves out what it does not dump
        (0xA000, 0xA001, True, 0, "[vdso]", False),
        (0xC000, 0xC001, False, 0, "", False),
    ]


def test_file_of_a_core_that_is_really_called_deleted(tmp_path):
    here = tmp_path / "x (deleted)"
    here.touch()
    notes = ONE_THREAD + files((0x1000, 0x3000, 2, str(here)), (0x8000, 0x9000, 0, f"{tmp_path}/y (deleted)"))
    process = open_core_bytes(core(notes))

    assert [(m.path, m.deleted) for m in process._maps()] == [(str(here), False), (f"{tmp_path}/y", True)]
    assert process.exe == str(here)


def test_truncated_core_file_is_reported():
    process = open_core_bytes(core(ONE_THREAD + ONE_FILE, Load(0x1000, bytes(5000)))[:-1000])

    assert process.problems == ["core: truncated: its last 1000 bytes are missing"]
    assert process.memory.read(0x1000, 4000) is not None
    assert process.memory.read(0x1000, 4001) is None


@pytest.mark.parametrize(
    ("notes", "expected"),
    [
        (note(1, bytes(50)), "NT_PRSTATUS: of 50 bytes"),
        (note(0x46494C45, bytes(10)), "NT_FILE: of 10 bytes"),
        (note(0x46494C45, pack("<QQ", 1 << 40, 4096)), "NT_FILE: 1099511627776 files in 16 bytes"),
    ],
)
def test_damaged_note_is_reported_and_the_rest_is_used(notes, expected):
    process = open_core_bytes(core(ONE_THREAD + notes + ONE_FILE))

    assert [thread.tid for thread in process.threads()] == [7]
    [problem] = process.problems
    assert expected in problem
    assert problem.startswith(f"core+{64 + 56 + len(ONE_THREAD):#x}: ")


def test_thread_with_too_few_registers_has_a_reason():
    process = open_core_bytes(core(ONE_THREAD + prstatus(8, bytes(100))))

    assert process.snapshot(process.threads()[1]) == "its registers are 108 bytes, not 216"


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", "is empty"),
        (b"not an ELF file, but a text", "not an ELF file"),
        (core(ONE_THREAD, kind=2), "not a core file"),
        (core(b""), "no thread is described"),
        (core(ONE_THREAD, machine=8), "e_machine 8 is none of x86_64, aarch64"),
        (core(ONE_THREAD)[:40], "shorter than an ELF header"),
        (bytes.fromhex("28b52ffd 0458"), "unpack such a file first: zstd -d"),
    ],
)
def test_file_that_is_no_core_file_is_an_error(data, expected, tmp_path, capsysbinary):
    path = tmp_path / "core"
    path.write_bytes(data)

    assert main(["dump", "--core", str(path)]) == 1
    error = capsysbinary.readouterr().err.decode()
    assert error.startswith(f"sfsample: cannot read core file: {path}: ")
    assert expected in error
    assert "Traceback" not in error


@pytest.mark.parametrize("path", ["/nonexistent", "/", "/dev/null", ""])
def test_path_that_is_no_file_is_an_error(path, capsys):
    assert main(["dump", "--core", path]) == 1
    error, *rest = capsys.readouterr().err.splitlines()
    assert error.startswith(f"sfsample: cannot read core file: {path or repr('')}: ")
    assert rest, "help lines"


def test_known_machine_with_other_byte_order_is_refused():
    with pytest.raises(FormatError, match="e_machine 62"):
        open_core_bytes(core(ONE_THREAD, order="big"))


# -- AArch64 big endian, which no distribution runs: registers and stack are from qemu's user emulation


@pytest.mark.parametrize("table", ["sframe", "eh_frame"])
def test_big_endian_stack_is_unwound(table, unpacked):
    """Either table gives the stack that the source of `crash` implies; return addresses are signed."""
    path = unpacked("aarch64_be-qemu")
    [thread] = dump_core(
        path, str(FIXTURES / "aarch64_be/v3/crash"), how=DumpOptions(steppers=(table,))
    ).threads
    core_file = CoreFile(ElfImage(Path(path).read_bytes(), path, is_core=True))
    pieces = [(s.offset, s.filesz) for s in core_file.segments if not s.flags & PF_X]
    words = [
        int.from_bytes(core_file.image.data[at : at + 8], "big")
        for offset, size in pieces for at in range(offset, offset + size, 8)
    ]  # fmt: skip
    frames = thread.stack.frames

    assert thread.stack.stop_reason is StopReason.OUTERMOST
    assert {str(frame.found) for frame in frames[1:]} == {table}
    pcs = {frame.pc for frame in frames}
    assert any(word & AARCH64_BE.ra_mask in pcs and word not in pcs for word in words if word)


def test_big_endian_stack_has_names(unpacked, capsys):
    words = ["--exe", str(FIXTURES / "aarch64_be/v3/crash"), "--json"]
    assert main(["dump", "--core", unpacked("aarch64_be-qemu"), *words]) == 0
    [process] = json.loads(capsys.readouterr().out)["processes"]
    [thread] = process["threads"]
    assert [frame["function"] for frame in thread["frames"]] == ["raise_here", *CRASH[6:]]
