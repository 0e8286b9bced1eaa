"""Stacks are right with module files that are deleted, replaced, or in another root directory.

What is mapped in the target is the truth.  A file with the same path is used only if it is the mapped one; a
name from another file is wrong even if it looks right.
"""

import os
import shutil
import subprocess
from errno import EPERM
from pathlib import Path

import pytest

from sfsample.core.stack import StopReason
from sfsample.formats.elf.image import ElfImage
from sfsample.modules.mapping import Mapping
from sfsample.process.image_cache import ImageCache
from sfsample.process.image_opener import ImageOpener
from sfsample.process.procfs import ProcFs
from sfsample.recording.profile import Profile
from tests.live.chains import Checker, listed_chains
from tests.live.recording import record_samples
from tests.live.targets import (
    EACH_GENERATION,
    GENERATIONS,
    HANG_S,
    Target,
    extended,
    fixture,
    running,
    wait_until,
)

pytestmark = [pytest.mark.live, pytest.mark.any_load]

NAMES = ("target", "target-nopie")
BINARIES = [
    *(extended(generation, name) for generation in GENERATIONS[:-1] for name in NAMES),
    *((GENERATIONS[-1], name) for name in NAMES),
    ("v3", "target-static"),
]
LIBRARIES = ("libcallee.so", "libplugin.so")
ANOTHER_BUILD = {"target": "target-nopie", "target-nopie": "target", "target-static": "target"}


def install(generation: str, binary: str, directory: Path) -> Path:
    """Copy a fixture and its libraries to DIRECTORY/GENERATION; `Checker` uses the last two names."""
    home = directory / generation
    home.mkdir(exist_ok=True)
    for name in (binary, *LIBRARIES):
        shutil.copy(fixture(generation, name), home / name)
    return home / binary


def replace(path: Path, by: Path) -> None:
    """Replace a file by another one, as a package manager does."""
    new = path.with_name("new")
    shutil.copy(by, new)
    new.rename(path)


def build_ids(profile: Profile, path: str) -> set[str | None]:
    places = [place for key in profile.counts for place in key.locations]
    return {place.module.build_id for place in places if place.module and place.module.path == path}


def module_problems(profile: Profile) -> list[str]:
    """Return the problems, without those of threads that a busy machine did not stop in time."""
    return [text for text in profile.stats.problems if not text.startswith("not captured")]


def check(profile: Profile, path: Path, scenario: str, target: Target) -> None:
    (chain,) = listed_chains(str(fixture("v3")))[scenario]
    Checker(str(path)).check(profile, {target.pid: [chain]})


@pytest.mark.parametrize(("generation", "binary"), BINARIES)
@pytest.mark.parametrize("scenario", ["frame", "deep"])
def test_deleted_program_has_true_stacks(tmp_path, generation, binary, scenario):
    path = install(generation, binary, tmp_path)
    with running(path, scenario) as target:
        path.unlink()
        check(record_samples(target.pid), path, scenario, target)


def test_program_that_is_called_deleted_has_true_stacks(tmp_path):
    """The kernel appends " (deleted)" to the path of a deleted file; this file is there."""
    path = install(GENERATIONS[-1], "target", tmp_path)
    path = path.rename(path.with_name("target (deleted)"))
    with running(path, "frame") as target:
        profile = record_samples(target.pid)
        check(profile, path, "frame", target)
        assert str(path) in {module for module, _ in profile.stats.module_paths}


@pytest.mark.parametrize(("generation", "binary"), BINARIES)
@pytest.mark.parametrize("other", ["workload", "another build", "libcallee.so"])
def test_replaced_program_has_true_stacks(tmp_path, generation, binary, other):
    """The new file has other functions at the same addresses."""
    path = install(generation, binary, tmp_path)
    with running(path, "deep") as target:
        replace(path, fixture(GENERATIONS[0], ANOTHER_BUILD[binary] if other == "another build" else other))
        profile = record_samples(target.pid)
        check(profile, path, "deep", target)
        mine = ElfImage(fixture(generation, binary).read_bytes(), "").build_id
        assert build_ids(profile, str(path)) == {mine}


@pytest.mark.parametrize("generation", EACH_GENERATION)
@pytest.mark.parametrize("how", ["deleted", "replaced", "damaged", "empty", "a directory"])
def test_missing_library_has_true_stacks(tmp_path, generation, how):
    path = install(generation, "target", tmp_path)
    library = path.with_name("libcallee.so")
    with running(path, "library") as target:
        library.unlink()
        match how:
            case "replaced":
                shutil.copy(fixture("v3", "workload"), library)
            case "damaged":
                library.write_bytes(fixture(generation, "libcallee.so").read_bytes()[:1000])
            case "empty":
                library.touch()
            case "a directory":
                library.mkdir()
        check(record_samples(target.pid), path, "library", target)


def test_unreadable_library_ends_the_stack(tmp_path):
    """Neither the file nor the memory can be read: both reasons are reported, and the stack ends there."""
    path = install("v3", "target", tmp_path)
    library = path.with_name("libcallee.so")
    with running(path, "library") as target:
        os.truncate(library, 0)
        profile = record_samples(target.pid)
    assert StopReason.OUTERMOST not in profile.stats.stacks
    [problem] = [text for text in profile.stats.problems if text.startswith(str(library))]
    assert "cannot be read" in problem
    assert problem.endswith(f"; its file: {library}+0x0: is empty")


@pytest.mark.parametrize("how", ["deleted", "replaced"])
def test_library_that_is_loaded_and_deleted_has_true_stacks(tmp_path, how):
    path = install("v3", "target", tmp_path)
    plugin = path.with_name("libplugin.so")
    with running(path, "dlopen") as target:
        target.send()
        target.await_ready()
        plugin.unlink()
        if how == "replaced":
            shutil.copy(fixture(GENERATIONS[0], "workload"), plugin)
        check(record_samples(target.pid), path, "dlopen", target)


def test_inode_decides_where_map_files_cannot_be_read():
    """The mapping may be gone by now; this once ended a recording of eight minutes."""
    status = os.stat(__file__)
    opener = ImageOpener(ProcFs(os.getpid()), ImageCache(), None)
    mapping = Mapping(0x1000, 0x2000, True, True, 0, "08:01", status.st_ino, __file__, False)
    assert opener._is_same_file(status, mapping)
    assert not opener._is_same_file(status, mapping._replace(inode=status.st_ino + 1))


@pytest.mark.parametrize("scenario", ["frame", "library", "signal"])
def test_nothing_but_memory(tmp_path, scenario, monkeypatch):
    """Without permission for /proc/PID/map_files the stacks are the same, but some names are missing.

    Memory has no `.symtab`, so a frame has the name from the file or none.
    """
    path = install("v3", "target", tmp_path)
    with running(path, scenario) as target:
        (full,) = {key.locations[1:] for key in record_samples(target.pid).counts}
        path.unlink()
        path.with_name("libcallee.so").unlink()
        replaced = path
        shutil.copy(fixture("v3", "workload"), replaced)

        def not_permitted(self: ImageOpener, mapping: Mapping) -> int:
            raise PermissionError(EPERM, "Operation not permitted")

        monkeypatch.setattr(ImageOpener, "_open_map_file", not_permitted)
        profile = record_samples(target.pid)
        assert profile.stats.stacks == {StopReason.OUTERMOST: profile.stats.samples}
        (seen,) = {key.locations[1:] for key in profile.counts}
        assert [place.address for place in seen] == [place.address for place in full]
        checker = Checker(str(path))
        with_file = [checker._place(*place[:3]) for place in full]
        without = [checker._place(*place[:3]) for place in seen]
        for there, here in zip(with_file, without, strict=True):
            assert here.name in (there.name, None)
            assert here.special == there.special
        assert "in the target's memory, which has the exported names only" in str(profile.stats.problems)


# -- other roots


def unshared(*words: str) -> tuple[str, ...]:
    """Return words that run a command in its own mount namespace."""
    return ("unshare", "--mount", "--propagation", "private", *words)


def can_unshare() -> bool:
    return subprocess.run([*unshared("true")], check=False, capture_output=True).returncode == 0


namespaces = pytest.mark.skipif(not can_unshare(), reason="may not make a mount namespace (needs root)")


@namespaces
@pytest.mark.parametrize("scenario", ["deep", "signal", "threads"])
def test_chroot_has_true_stacks(tmp_path, scenario):
    """Its paths start at another root; outside, the same path is another program."""
    (tmp_path / "v3").mkdir()
    shutil.copy(fixture("v3", "target-static"), tmp_path / "v3" / "target-static")
    with running("/v3/target-static", scenario, wrapper=("chroot", str(tmp_path))) as target:
        profile = record_samples(target.pid)
        main, *others = listed_chains(str(fixture("v3")))[scenario]
        chains = {key.tid: [main] if key.tid == target.pid else others for key in profile.counts}
        Checker("/v3/target-static").check(profile, chains)
        assert not module_problems(profile)


@namespaces
@pytest.mark.parametrize("binary", ["target", "target-static"])
@pytest.mark.parametrize("scenario", ["deep", "library"])
def test_mount_namespace_has_true_stacks(tmp_path, binary, scenario):
    """Outside of the namespace, the path is another file (as /app of a container)."""
    inside, outside = tmp_path / "inside", tmp_path / "app"
    (inside / "v3").mkdir(parents=True)
    (outside / "v3").mkdir(parents=True)
    install("v3", binary, inside)
    for name in (binary, *LIBRARIES):
        shutil.copy(fixture(GENERATIONS[0], "workload"), outside / "v3" / name)
    mount = f'mount --bind {inside} {outside} && exec "$0" "$@"'
    path = outside / "v3" / binary
    with running(path, scenario, wrapper=unshared("sh", "-c", mount)) as target:
        assert os.readlink("/proc/self/ns/mnt") != os.readlink(f"/proc/{target.pid}/ns/mnt")
        assert os.readlink(f"/proc/{target.pid}/exe") == str(path)
        profile = record_samples(target.pid)
        check(profile, path, scenario, target)
        assert not module_problems(profile)


@namespaces
@pytest.mark.parametrize("hidden", ["target", "libcallee.so"])
def test_file_under_a_bind_mount_has_true_stacks(tmp_path, hidden):
    """Another file is mounted over the mapped one, and has its path now; maps has no "(deleted)"."""
    path = install("v3", "target", tmp_path)
    with running(path, "library", wrapper=unshared()) as target:
        enter = ["nsenter", "--target", str(target.pid), "--mount"]
        other = fixture(GENERATIONS[0], "workload")
        subprocess.run(
            [*enter, "mount", "--bind", str(other), str(path.with_name(hidden))], check=True, timeout=HANG_S
        )
        check(record_samples(target.pid), path, "library", target)


@namespaces
def test_unmounted_file_has_true_stacks(tmp_path):
    """After a lazy unmount no path leads to the file, but it is still mapped."""
    (tmp_path / "v3").mkdir()
    script = (f"mount -t tmpfs none {tmp_path}/v3 && cp {fixture('v3', 'target-static')} {tmp_path}/v3/"
              f' && cd / && exec "$0" "$@"')  # fmt: skip
    path = tmp_path / "v3" / "target-static"
    with running(path, "deep", wrapper=unshared("sh", "-c", script)) as target:
        enter = ["nsenter", "--target", str(target.pid), "--mount"]
        subprocess.run([*enter, "umount", "--lazy", str(tmp_path / "v3")], check=True, timeout=HANG_S)
        wait_until(lambda: not os.path.exists(f"/proc/{target.pid}/root{path}"), "the mount is gone")
        check(record_samples(target.pid), Path("/v3/target-static"), "deep", target)
