"""Builds real programs and difficult shapes, for four machines and every SFrame version that each has.

Programs of generation N are assembled and linked by the binutils of that generation.  Sources and cross
compilers are unpacked under one directory, nothing is installed; each part is complete or absent.  A source
is compiled to assembly once, then assembled and linked for each generation.  Cross-built libraries need no
libc.
"""

import hashlib
import shutil
from dataclasses import dataclass
from pathlib import Path

from lib.binutils import NATIVE, RELEASES, TOOLS, toolchain
from lib.debian import fail, filling, run, unpack_packages, unpack_sources, wrap

SOURCES = ("sid", ("lua5.4", "zlib", "sqlite3", "redis"))
COMPILERS = ("bookworm", [f"{p}-{a}{s}" for a, b in (("aarch64", "arm64"), ("s390x", "s390x"))
                          for p, a, s in (("gcc", a, "-linux-gnu"), ("libc6-dev", b, "-cross"))])  # fmt: skip
SHAPES = Path(__file__).with_name("shapes.c")

PLAIN = ("-O2", "-fPIC", "-fomit-frame-pointer")
FRAMES = ("-O2", "-fPIC", "-fno-omit-frame-pointer")
AARCH64 = ("aarch64", "aarch64_be")
CROSS = (*AARCH64, "s390x")


@dataclass(frozen=True)
class Machine:
    """How to compile, assemble and link for a machine."""

    prefix: str
    generations: tuple[int, ...] = (1, 2, 3)
    compile: tuple[str, ...] = ()
    assemble: tuple[str, ...] = ()
    link: tuple[str, ...] = ()


MACHINES = {
    "x86_64": Machine(NATIVE),
    "aarch64": Machine("aarch64-linux-gnu", link=("-maarch64linux",)),
    "aarch64_be": Machine(
        "aarch64-linux-gnu", (1, 2, 3), ("-mbig-endian",), ("-EB",), ("-EB", "-maarch64linuxb")
    ),
    # gas has SFrame for s390x since 2.45
    "s390x": Machine("s390x-linux-gnu", (3,), ("-march=z13",), ("-m64", "-march=z13"), ("-melf64_s390",)),
}


@dataclass(frozen=True)
class Program:
    """A file to build: `sources` are globs in the unpacked sources."""

    name: str
    sources: tuple[str, ...]
    flags: tuple[str, ...]
    machines: tuple[str, ...] = ("x86_64", *CROSS)
    without: tuple[str, ...] = ()
    link: tuple[str, ...] = ("-shared",)


LUA = {"sources": ("lua-*/src/*.c",), "without": ("lua.c", "luac.c")}
ZLIB = ("zlib-*/*.c",)
LINUX = ("x86_64",)
PROGRAMS = (
    Program("shapes.so", ("shapes.c",), PLAIN),
    Program("shapes-fp.so", ("shapes.c",), FRAMES),
    Program("shapes-pac.so", ("shapes.c",), (*PLAIN, "-mbranch-protection=pac-ret+leaf"), AARCH64),
    Program("shapes-pac-b.so", ("shapes.c",), (*FRAMES, "-mbranch-protection=pac-ret+b-key"), AARCH64),
    Program("shapes-packed.so", ("shapes.c",), (*PLAIN, "-mpacked-stack"), ("s390x",)),
    Program("shapes-drap.so", ("shapes.c",), (*PLAIN, "-mstackrealign", "-mforce-drap"), LINUX),
    Program("libz.so", ZLIB, PLAIN),
    Program("minigzip", (*ZLIB, "zlib-*/test/minigzip.c"), ("-O2", "-fno-pie", "-fcf-protection=full"), LINUX,
            link=("-no-pie", "-Wl,-z,ibtplt")),
    Program("liblua.so", flags=PLAIN, machines=("x86_64", "s390x"), **LUA),
    Program("liblua.so", flags=(*PLAIN, "-mbranch-protection=standard"), machines=AARCH64, **LUA),
    Program("lua", ("lua-*/src/*.c",), ("-O2", "-fPIE", "-DLUA_USE_LINUX"), LINUX, ("luac.c",),
            ("-pie", "-Wl,-z,lazy", "-Wl,-E", "-ldl", "-lm")),
    Program("libsqlite3.so", ("amalgamation/sqlite3.c",), PLAIN),
    Program("sqlite3", ("amalgamation/sqlite3.c", "amalgamation/shell.c"), ("-O1", *FRAMES[1:]), LINUX,
            link=("-pie", "-Wl,-z,now", "-ldl", "-lm", "-lpthread")),
    # not a server: its dependencies stay undefined
    Program("libredis.so", ("redis-*/src/*.c",), (*PLAIN, "-DUSE_PROCESSOR_CLOCK", *(
        f"-I{{sources}}/redis-*/deps/{d}" for d in ("hiredis", "linenoise", "lua/src", "hdr_histogram",
                                                   "fpconv", "fast_float"))), LINUX,
            ("release.c", "ae_epoll.c", "ae_evport.c", "ae_kqueue.c", "ae_select.c", "redis-cli.c",
             "redis-benchmark.c", "cli_common.c", "cli_commands.c", "redisassert.c")),
)  # fmt: skip


class BuildCache:
    """Fetched and built files, under one directory."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def packages(self, name: str, release: str, packages: list[str]) -> Path:
        """Return the directory with the files of packages and of all their dependencies."""
        for empty in filling(self.root / name):
            unpack_packages(empty, release, *packages)
        return self.root / name / "files"

    def sources(self) -> Path:
        """Return the directory of the unpacked upstream sources."""
        for root in filling(self.root / "sources"):
            release, packages = SOURCES
            unpack_sources(root, release, *packages)
            [sqlite] = root.glob("sqlite3-*/configure")
            (root / "amalgamation").mkdir()
            run(sqlite, cwd=root / "amalgamation")
            run("make", "sqlite3.c", "shell.c", cwd=root / "amalgamation")
        shapes = self.root / "sources/shapes.c"
        if not shapes.exists() or shapes.read_text() != SHAPES.read_text():
            shutil.copyfile(SHAPES, shapes)
        return self.root / "sources"

    def tools(self, machine: Machine, generation: int) -> Path:
        """Return a directory of as, ld and readelf."""
        if machine is MACHINES["x86_64"]:
            return toolchain(generation)
        names = [f"binutils-{prefix}" for prefix in sorted({
            MACHINES[name].prefix for name in CROSS if generation in MACHINES[name].generations
        })]  # fmt: skip
        files = self.packages(f"cross-v{generation}", RELEASES[generation], names)
        tools = {name: f"{machine.prefix}-{real}" for name, real in TOOLS.items()}
        return wrap(files, files / "wrapped" / machine.prefix, tools)

    def compiler(self, machine: Machine) -> list[str]:
        """Return the command that compiles to assembly."""
        if machine is MACHINES["x86_64"]:
            return ["gcc"]
        files = self.packages("compilers", *COMPILERS)
        [driver] = files.glob(f"usr/bin/{machine.prefix}-gcc-[0-9]*")
        [cc1] = files.glob(f"usr/lib/gcc-cross/{machine.prefix}/*/cc1")
        own = wrap(files, files / "wrapped" / machine.prefix, {"cc1": cc1, "gcc": driver})
        # big endian uses the headers of the little-endian libc, which lack this file
        (own / "include/gnu").mkdir(parents=True, exist_ok=True)
        (own / "include/gnu/stubs-lp64_be.h").touch()
        headers = files / "usr" / machine.prefix / "include"
        return [str(own / "gcc"), f"-B{own}", f"-I{own / 'include'}", "-isystem", str(headers)]


def expand(pattern: str, sources: Path) -> str:
    """Replace `{sources}` in a flag, and expand its `*`."""
    if "{sources}" not in pattern:
        return pattern
    flag, path = pattern.split("{sources}/")
    return flag + str(next(iter(sources.glob(path)), "/nonexistent"))


def assembly(cache: BuildCache, program: Program, machine: str) -> list[Path]:
    """Return the assembly files of a program; compile those that are missing or old."""
    sources = cache.sources()
    files = [path for pattern in program.sources for path in sorted(sources.glob(pattern))]
    files = [path for path in files if path.name not in program.without]
    if not files:
        fail(f"{program.name}: no sources")
    flags = [*MACHINES[machine].compile, *(expand(flag, sources) for flag in program.flags)]
    always = ["-fasynchronous-unwind-tables", "-fno-stack-protector", "-w"]
    command = [*cache.compiler(MACHINES[machine]), *flags, *always, "-S"]
    out = cache.root / "assembly" / hashlib.sha256(repr([machine, flags]).encode()).hexdigest()[:12]
    out.mkdir(parents=True, exist_ok=True)
    result = []
    for path in files:
        compiled = out / f"{path.parent.parent.name}-{path.parent.name}-{path.stem}.s"
        if not compiled.exists() or compiled.stat().st_mtime < path.stat().st_mtime:
            run(*command, path, "-o", compiled.with_suffix(".tmp"))
            compiled.with_suffix(".tmp").rename(compiled)
        result.append(compiled)
    return result


def build(cache: BuildCache, program: Program, machine: str, generation: int) -> tuple[Path, list[Path]]:
    """Assemble and link; return the program and its objects."""
    kind, tools = MACHINES[machine], cache.tools(MACHINES[machine], generation)
    out = cache.root / "built" / machine / f"v{generation}"
    (out / f"{program.name}.objects").mkdir(parents=True, exist_ok=True)
    objects = []
    for source in assembly(cache, program, machine):
        objects.append(out / f"{program.name}.objects" / f"{source.stem}.o")
        run(tools / "as", "--gsframe", *kind.assemble, source, "-o", objects[-1])
    linker = (
        ["gcc", f"-B{tools}", "-fno-use-linker-plugin"] if machine == "x86_64" else [tools / "ld", *kind.link]
    )
    options = [word for word in program.link if not word.startswith("-l")]
    libraries = [word for word in program.link if word.startswith("-l")]
    run(*linker, *options, *objects, *libraries, "-o", out / program.name)
    return out / program.name, objects
