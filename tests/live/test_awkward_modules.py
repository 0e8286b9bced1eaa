"""Stacks are whole and named right in modules that a loader does not usually make.

They are in memory only, laid out oddly, without section headers, stripped, in a container's overlay, or in
the kernel's own object.  Each target is a fixture whose chain is known.  tests/live/test_modules.py has files
that were deleted or replaced.
"""

import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sfsample.core.stack import StopReason
from sfsample.formats.elf.image import PT_LOAD, PT_NOTE, ElfImage
from sfsample.recording.profile import Profile
from tests.builders.maps import parse_maps
from tests.live.recording import fewer, record_samples
from tests.live.targets import EACH_GENERATION, Target, fixture, running, started, wait_until
from tests.live.test_modules import LIBRARIES, build_ids, check, install, module_problems

pytestmark = [pytest.mark.live, pytest.mark.any_load]

_PT_NULL = 0


def callers(profile: Profile) -> set[tuple[int, ...]]:
    """Return the vaddrs of each stack without its innermost frame; assert that every stack is whole."""
    assert profile.stats.stacks == {StopReason.OUTERMOST: profile.stats.samples}
    return {tuple(place.address for place in key.locations[1:]) for key in profile.counts}


def are_parts_of_one_chain(stacks: set[tuple[int, ...]]) -> bool:
    """Whether the stacks differ by at most one innermost call; each is a whole stack of callers."""
    longest = max(stacks, key=len)
    return all(stack in (longest, longest[1:]) for stack in stacks)


# -- in memory only

FROM_MEMFD = """
import os, sys
def copied(path, name):
    fd = os.memfd_create(name, 0)
    os.write(fd, open(path, "rb").read())
    return fd
program, *rest = sys.argv[1:]
home, name = os.path.split(program)
library = copied(home + "/libcallee.so", "lib/libcallee.so")
os.environ["LD_PRELOAD"] = f"/proc/self/fd/{library}"
os.execve(copied(program, "v3/" + name), [program, *rest], os.environ)
"""


@pytest.mark.parametrize("binary", ["target", "target-nopie", "target-static"])
@pytest.mark.parametrize("scenario", ["deep", "library", "signal"])
def test_program_and_library_from_memfd(tmp_path, binary, scenario):
    path = install("v3", binary, tmp_path)
    with running(path, scenario, wrapper=(sys.executable, "-c", FROM_MEMFD)) as target:
        shutil.rmtree(path.parent)
        profile = record_samples(target.pid)
        check(profile, Path(f"/memfd:v3/{binary}"), scenario, target)
        assert build_ids(profile, f"/memfd:v3/{binary}") == {
            ElfImage(fixture("v3", binary).read_bytes(), "").build_id
        }


# -- laid out oddly


def loads(path: Path) -> list[int]:
    return [s.vaddr for s in ElfImage(path.read_bytes(), "").segments if s.type == PT_LOAD]


@pytest.mark.parametrize("library", ["libcallee-based.so", "libcallee-aligned.so"])
@pytest.mark.parametrize(("scenario", "name"), [("library", "libcallee.so"), ("dlopen", "libplugin.so")])
def test_library_linked_at_an_address_or_with_holes(tmp_path, library, scenario, name):
    """prelink made the former; linkers made the latter for pages of 2 MiB."""
    path = install("v3", "target", tmp_path)
    first, *others = loads(fixture("v3", library))
    assert first == 0x31000000 or others[-1] - first >= 2 << 20
    shutil.copy(fixture("v3", library), path.with_name(name))
    with running(path, scenario) as target:
        if scenario == "dlopen":
            target.send()
            target.await_ready()
        check(record_samples(target.pid), path, scenario, target)


@pytest.mark.parametrize("scenario", ["deep", "library", "signal", "plt", "threads"])
def test_program_with_segments_2_mib_apart(scenario):
    path = fixture("v3", "target-aligned")
    assert loads(path)[-1] - loads(path)[0] >= 2 << 20
    with running(path, scenario) as target:
        profile = record_samples(target.pid)
        if scenario != "threads":
            check(profile, path, scenario, target)
        assert profile.stats.stacks == {StopReason.OUTERMOST: profile.stats.samples}
        assert not module_problems(profile)


# -- less in the file than usual


def without_section_headers(path: Path) -> None:
    """Set e_shoff, e_shentsize, e_shnum and e_shstrndx to 0, as a packer does."""
    data = bytearray(path.read_bytes())
    data[40:48], data[58:64] = bytes(8), bytes(6)
    path.write_bytes(data)


def stripped(path: Path) -> None:
    """Move the symbols to another file with a debug link, as distributions do."""
    debug = path.with_name(path.name + ".debug")
    subprocess.run(["objcopy", "--only-keep-debug", path, debug], check=True)
    subprocess.run(["objcopy", "--strip-all", f"--add-gnu-debuglink={debug}", path], check=True)


@pytest.mark.parametrize("generation", EACH_GENERATION)
@pytest.mark.parametrize("scenario", ["frame", "library", "signal", "plt", "noreturn"])
@pytest.mark.parametrize("reduce", [without_section_headers, stripped])
def test_less_in_the_file(tmp_path, generation, scenario, reduce):
    """Stacks are the same as with the full files.

    A scenario has one chain of callers.  In `plt` the thread may be in the loop itself or in the function
    that it calls through a stub; a recording may have samples of one kind only, so both recordings are judged
    together.
    """
    path = install(generation, "target", tmp_path)
    with running(path, scenario) as target:
        full = callers(record_samples(target.pid))
    for name in ("target", "libcallee.so"):
        reduce(path.with_name(name))
    with running(path, scenario) as target:
        profile = record_samples(target.pid)
        reduced = callers(profile)
        if scenario == "plt":
            assert are_parts_of_one_chain(full | reduced)
        else:
            assert reduced == full
            assert len(full) == 1
        assert not module_problems(profile)


# -- containers


def without_build_id(path: Path) -> None:
    """Make its PT_NOTE headers PT_NULL, so that only device and inode identify the mapped file."""
    data, order = bytearray(path.read_bytes()), {"little": "<", "big": ">"}[sys.byteorder]
    table, size, count = struct.unpack_from(f"{order}Q14xHH", data, 32)
    for at in range(table, table + size * count, size):
        if struct.unpack_from(f"{order}I", data, at) == (PT_NOTE,):
            struct.pack_into(f"{order}I", data, at, _PT_NULL)
    path.write_bytes(data)
    assert ElfImage(bytes(data), "").build_id is None


def loader(program: Path) -> str:
    """Return the path of the program's interpreter."""
    image = ElfImage(program.read_bytes(), "")
    (named,) = [section for section in image.sections if section.name == ".interp"]
    return bytes(image.contents(named)).rstrip(b"\0").decode()


def root_file_system(directory: Path, binary: str) -> Path:
    """Make a root directory with a fixture, its libraries, libc and the loader."""
    directory.mkdir()
    install("v3", binary, directory)
    mappings = parse_maps(Path("/proc/self/maps").read_text(encoding="utf-8"))
    libc = {m.path for m in mappings if m.executable and m.path.endswith("/libc.so.6")}
    for path in (*libc, loader(fixture("v3"))):
        copy = directory / path.lstrip("/")
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy)
    return directory


UNSHARE = ("unshare", "--mount", "--pid", "--fork", "--kill-child")
ROOTLESS = (*UNSHARE, "--user", "--map-root-user")
MOUNT = (
    'mount -t tmpfs none "$1" && mkdir "$1/upper" "$1/work" "$1/root" &&'
    ' mount -t overlay none -o "lowerdir=$0,upperdir=$1/upper,workdir=$1/work" "$1/root" &&'
    ' mkdir "$1/root/proc" && mount -t proc none "$1/root/proc"'
)
ENTER = MOUNT + ' && root="$1/root" && shift && exec chroot "$root" "$@"'


def succeeds(*words: str) -> bool:
    return subprocess.run(words, check=False, capture_output=True).returncode == 0


@contextmanager
def contained(unshare: tuple[str, ...], rootfs: Path, scratch: Path, *words: str) -> Iterator[Target]:
    """Run a program in its own namespaces and overlay; `pid` is the one in the namespace of the test."""
    with started([*unshare, "sh", "-c", ENTER, str(rootfs), str(scratch), *words]) as outer:
        assert outer.reader.number("ready") == 1
        children = Path(f"/proc/{outer.pid}/task/{outer.pid}/children")
        wait_until(lambda: len(children.read_text().split()) == 1, "the container's process is there")
        target = Target(outer.process, outer.reader)
        target.pid = int(children.read_text())
        yield target
        target.assert_unharmed()


@pytest.mark.parametrize("unshare", [UNSHARE, ROOTLESS], ids=["root", "rootless"])
@pytest.mark.parametrize("build_id", [True, False], ids=["build-id", "no-build-id"])
@pytest.mark.parametrize("binary", ["target", "target-static"])
@pytest.mark.parametrize("scenario", ["library", "signal"])
def test_stacks_in_a_container_are_true(tmp_path, unshare, build_id, binary, scenario):
    """Another pid, other paths, and an overlay, where maps and stat(2) give different devices for a file."""
    rootfs, scratch = root_file_system(tmp_path / "lower", binary), tmp_path / "scratch"
    scratch.mkdir()
    if not build_id:
        for name in (binary, *LIBRARIES):
            without_build_id(rootfs / "v3" / name)
    if not succeeds(*unshare, "sh", "-c", MOUNT, str(rootfs), str(scratch)):
        pytest.skip(f"may not: {' '.join(unshare)}, mount -t overlay, mount -t proc (needs root)")
    words = (f"/v3/{binary}", scenario, "{fd}")
    with contained(unshare, rootfs, scratch, *words) as target:
        assert os.readlink("/proc/self/ns/pid") != os.readlink(f"/proc/{target.pid}/ns/pid")
        profile = record_samples(target.pid)
        check(profile, Path(f"/v3/{binary}"), scenario, target)
        assert not module_problems(profile)


# -- the kernel's own object


def test_stacks_in_the_vdso_are_whole():
    """A thread that reads the time is sampled inside the vdso."""
    code = "import time\nprint('ready', flush=True)\nwhile True: time.monotonic_ns()"
    with subprocess.Popen(["/usr/bin/python3", "-c", code], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            inside = 0
            while not inside:  # the time limit of record_samples ends it
                profile = record_samples(process.pid, fewer(400))
                assert profile.stats.stacks == {StopReason.OUTERMOST: profile.stats.samples}
                inside = sum(count for key, count in profile.counts.items() if in_vdso(key.locations))
        finally:
            process.kill()


def in_vdso(locations: tuple) -> bool:
    return any(place.module is not None and place.module.path == "[vdso]" for place in locations)
