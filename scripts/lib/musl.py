"""Makes unwind tables for Debian's musl, which has none: it builds musl again as Debian did.

The tables are used only if the rebuilt code is byte for byte the installed one; then `.debug_frame` of the
first describes the second.  The result is a directory of separate debug files, by build-id.  Nothing is
installed.
"""

import os
import shutil
from pathlib import Path

from lib.debian import fail, filling, run, unpack_packages, unpack_sources

RELEASE, COMPILER = "bookworm", "gcc-11"  # the compiler with which Debian built it
INSTALLED = Path("/usr/lib/x86_64-linux-musl/libc.so")
HARDENED = {"DEB_BUILD_MAINT_OPTIONS": "hardening=+all"}


def debug_files(cache: Path, program: Path, build: list[str]) -> Path:
    """Return a directory of debug files for musl and a program that was built with it.

    `build`: the command that built it, with `-o` last but one.  A static program contains musl's code; it
    must have a build-id, and no debug information, or unwinders do not search for a debug file.
    """
    rebuilt, directory = _rebuilt(cache), cache / "debug" / program.name
    for _ in filling(directory):
        separate(rebuilt / "lib/libc.so", INSTALLED, directory)
        if "-static" in build:
            twin = directory / "twin"
            kept = [word for word in build[:-1] if word != "-Wl,--strip-debug"]
            run(*kept, twin, f"-L{rebuilt / 'lib'}")
            separate(twin, program, directory)
    return directory


def separate(with_debug: Path, installed: Path, directory: Path) -> None:
    """Make a debug file for an installed file from a rebuilt one that has debug information."""
    work = directory / "work"
    for path, code in ((with_debug, "rebuilt"), (installed, "installed")):
        run("objcopy", "--dump-section", f".text={work}-{code}", path, f"{work}-copy")
    if Path(f"{work}-rebuilt").read_bytes() != Path(f"{work}-installed").read_bytes():
        fail(f"{installed}: the rebuilt code is not the same, so its tables do not describe this one")
    run("objcopy", "--dump-section", f".note.gnu.build-id={work}-note", installed, f"{work}-copy")
    identity = Path(f"{work}-note").read_bytes()[16:].hex()  # behind sizes, type and "GNU"
    out = directory / ".build-id" / identity[:2] / f"{identity[2:]}.debug"
    out.parent.mkdir(parents=True, exist_ok=True)
    run("objcopy", "--only-keep-debug", with_debug, f"{work}-debug")
    run("objcopy", "--update-section", f".note.gnu.build-id={work}-note", f"{work}-debug", out)


def _rebuilt(cache: Path) -> Path:
    """Return the directory in which musl was built; build it once."""
    for root in filling(cache / "musl"):
        unpack_sources(root, RELEASE, "musl")
        [sources] = root.glob("musl-*/configure")
        [packaging] = root.glob("*.debian.tar.*")
        run("tar", "--extract", "--file", packaging, cwd=sources.parent)
        compiler = unpack_packages(root / "compiler", RELEASE, COMPILER) / "usr/bin" / COMPILER
        _build(sources.parent, compiler)
        sources.parent.rename(root / "built")
    return cache / "musl" / "built"


def _build(sources: Path, compiler: Path) -> None:
    """Build as `debian/rules` does."""
    for pattern in (sources / "debian/clean").read_text().split():
        for path in sources.glob(pattern.rstrip("/")):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    (sources / "src/fts").mkdir()
    for name, to in (("fts.c", "src/fts"), ("config.h", "src/fts"), ("fts.h", "include")):
        shutil.copy(sources / "debian/musl-fts" / name, sources / to)
    environment = {**os.environ, **HARDENED}
    flags = run("dpkg-buildflags", "--export=cmdline", cwd=sources, environment=environment)
    options = "--prefix=/usr --libdir=/usr/lib/x86_64-linux-musl --includedir=/usr/include/x86_64-linux-musl"
    configure = f"{flags.strip()} CC={compiler} ./configure --host=x86_64-linux-gnu --enable-debug {options}"
    run("sh", "-c", f"{configure} && exec make -j4 lib/libc.so lib/libc.a", cwd=sources)
