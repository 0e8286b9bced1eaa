"""A hint names a package only where the target's own distribution is known."""

import pytest

from sfsample.core.filesystem import ProcessRoot, Root
from sfsample.formats.elf.image import ElfImage
from sfsample.modules.module import Module
from sfsample.symbolize.missing import MissingName, generated_without_name, module_without_name
from tests.builders import elf_builder as e

IMAGE = ElfImage(e.elf([e.Load(0x1000, bytes(16))]), "x")
STRIPPED = "stripped, and no debug file was found"


def process_root(directory, os_release):
    (directory / "etc").mkdir(parents=True)
    (directory / "etc" / "os-release").write_text(os_release)
    return ProcessRoot(Root(str(directory)), 1, 0)


def hint(path, *process_roots, why=STRIPPED):
    return module_without_name(Module(IMAGE, 0, path), why, dict(enumerate(process_roots)), 3).hint


@pytest.mark.parametrize(
    ("os_release", "path", "expected"),
    [
        ("ID=debian\n", "/usr/lib/x86_64-linux-gnu/libc.so.6", "try: apt install libc6-dbg"),
        (
            'ID=pop\nID_LIKE="ubuntu debian"\n',
            "/lib/x86_64-linux-gnu/libc-2.31.so",
            "try: apt install libc6-dbg",
        ),
        ("ID=ubuntu\n", "/usr/bin/redis-server", "find-dbgsym-packages"),
        ("ID=debian\n", "/usr/lib/x86_64-linux-musl/libc.so", "find-dbgsym-packages"),  # another libc
        (
            "ID='fedora'\n",
            "/usr/lib64/libc.so.6",
            "try: dnf debuginfo-install $(rpm -qf /usr/lib64/libc.so.6)",
        ),
        ("ID=alpine\n", "/lib/ld-musl-x86_64.so.1", "a debug package, or --debuginfod, may have its symbols"),
        ("", "/usr/lib64/libc.so.6", "a debug package, or --debuginfod, may have its symbols"),
        ("ID=debian\n", "/home/me/server", "keep the unstripped file"),
    ],
)
def test_hint_fits_the_distribution(tmp_path, os_release, path, expected):
    assert hint(path, process_root(tmp_path, os_release)).startswith(expected)


def test_there_is_no_hint_where_symbols_would_not_help(tmp_path):
    debian = process_root(tmp_path, "ID=debian\n")
    assert hint("/usr/lib/libc.so.6", debian, why="its symbol table has no function there") == ""


def test_hint_names_no_package_when_targets_have_different_distributions(tmp_path):
    roots = process_root(tmp_path / "a", "ID=debian\n"), process_root(tmp_path / "b", "ID=fedora\n")
    assert hint("/usr/lib/libc.so.6", *roots) == "a debug package, or --debuginfod, may have its symbols"


def test_generated_code_is_explained_by_its_perf_map():
    root = ProcessRoot(None, 7, 0)
    assert str(generated_without_name(1234, root, 2, has_perf_map=False)) == (
        "process 1234: 2 places have no name: generated code (by a JIT), and the target's user has no "
        "/tmp/perf-7.map; start node with --perf-basic-prof, python with -X perf, "
        "java with -XX:+PreserveFramePointer (and then: jcmd PID Compiler.perfmap)"
    )
    assert str(generated_without_name(1234, None, 2, has_perf_map=False)) == (
        "process 1234: 2 places have no name: generated code, or code of a missing file"
    )
    assert str(generated_without_name(1234, root, 1, has_perf_map=True)) == (
        "process 1234: 1 place has no name: generated code that /tmp/perf-7.map does not list"
    )


@pytest.mark.parametrize(
    ("why", "can_be_mended"),
    [
        ("its symbol table has no function there", False),
        ("generated code that /tmp/perf-7.map does not list", False),
        ("stripped, and no debug file was found", True),
        ("its symbol table has no function there; more than 500,000 symbols were left out", True),
    ],
)
def test_places_that_no_file_names_are_known(why: str, can_be_mended: bool) -> None:
    assert MissingName("/bin/x", 3, why).can_be_mended is can_be_mended
