"""The programs that are compared: how they are built and started, and what keeps them busy.

A `row` is a line of the table; several programs may share it.  A program whose needs are not met is reported,
not skipped silently.  In commands, `{bin}` is the built program, `{src}` the sources beside this file,
`{fixtures}` the committed programs, and `{tmp}` a directory of its own.
"""

from typing import NamedTuple


class Program(NamedTuple):
    """One program."""

    row: str
    command: str
    build: str = ""  # the command that makes `{bin}`
    load: str = ""  # a command that runs beside the program
    pick: str = ""  # the name of the descendant that is compared; empty: the program itself
    needs: tuple[str, ...] = ()  # commands that must exist
    generation: int = 0  # SFrame version of the assembler and linker; 0: those of this machine
    real: str = ""  # a program that scripts/lib/real_programs.py builds
    truth: bool = False  # only gdb and eu-stack get debug files: of musl (scripts/lib/musl.py), or its own


_GCC = "gcc -O2 -w"
_MIXED, _FRAMES = "{src}/mixed.c -lm -o {bin}", "{src}/frames.c -o {bin}"
_SFRAME = "-B{tools} -Wa,--gsframe -fno-use-linker-plugin"
_ODD_LINKING = (
    *("-Wl,-z,noseparate-code", "-static-pie", "-no-pie -Wl,-Ttext-segment=0x7000000", "-fuse-ld=gold"),
    *("-Wl,-z,max-page-size=0x1000000 -Wl,-z,common-page-size=0x1000000", "-Wl,--no-eh-frame-hdr"),
)
_ODD_COMPILING = (
    *(f"gcc -O1 -w -fsanitize={checks}" for checks in ("address", "thread")),
    *(f"clang -O2 -w {flag}" for flag in ("-fsanitize=safe-stack", "-mretpoline")),
    *("gcc -O2 -w -mcmodel=large", "gcc -O2 -w -fno-plt", "gcc -O2 -w -fpatchable-function-entry=16,3"),
    *("gcc -O2 -w -pg", "gcc -O2 -w -finstrument-functions", "gcc -O2 -w -fstack-clash-protection"),
    "gcc -O2 -w -fcf-protection=none -mindirect-branch=thunk -mfunction-return=thunk",
)
_NO_TABLES = "-w -g -fno-asynchronous-unwind-tables -fno-unwind-tables -fomit-frame-pointer -Wl,--build-id"
_SCENARIOS = (
    *("recursion", "leaf", "frame", "bigframe", "drap", "noreturn", "deep", "plt", "library", "qsort"),
    *("framepointer", "signal", "nested-signal", "nullcall", "signals", "sleep", "epoll", "threads"),
)


def _built(
    row: str, compiler: str, *, sources: str = "mixed frames", generation: int = 0, truth: bool = False
) -> list[Program]:
    """Return programs of one row, one for each source."""
    arguments = {"mixed": _MIXED, "frames": _FRAMES, "objects": "{src}/objects.cpp -o {bin}"}
    needs = (compiler.split(maxsplit=1)[0],)
    return [Program(row, "{bin}", f"{compiler} {arguments[source]}", needs=needs, generation=generation,
                    truth=truth)
            for source in sources.split()]  # fmt: skip


def _fixtures(generation: int) -> list[Program]:
    row = f"fixtures, SFrame V{generation}"
    where = f"{{fixtures}}/v{generation}"
    scenarios = [Program(row, f"{where}/target {scenario}") for scenario in _SCENARIOS]
    return [*scenarios, Program(row, f"{where}/workload 3600"), Program(row, f"{where}/target-nopie deep")]


def _sframe(generation: int) -> list[Program]:
    c = _built(f"C, SFrame V{generation}", f"{_GCC} {_SFRAME}", generation=generation)
    cpp = _built(
        f"C++, SFrame V{generation}", f"g++ -O2 -w {_SFRAME}", sources="objects", generation=generation
    )
    lua = Program(f"lua, SFrame V{generation}", "{bin} {src}/work.lua", generation=generation, real="lua")
    query = "{bin} :memory: '.read {src}/work.sql'"
    sqlite = Program(f"sqlite3, SFrame V{generation}", query, generation=generation, real="sqlite3")
    return [*c, *cpp, lua, sqlite]


def _endless(command: str) -> str:
    return f"sh -c 'while :; do {command}; done'"


PROGRAMS = (
    *(program for generation in (1, 2, 3) for program in _fixtures(generation)),
    *(program for generation in (1, 2, 3) for program in _sframe(generation)),
    *_built("C", _GCC),
    *_built("C, frame pointers", f"{_GCC} -fno-omit-frame-pointer"),
    *_built("C, -fcf-protection", f"{_GCC} -fcf-protection=full -Wl,-z,ibtplt"),
    *_built("C, -O0", "gcc -O0 -w"),
    *_built("C, static", f"{_GCC} -static"),
    *(program for linking in _ODD_LINKING for program in _built("C, linked oddly", f"{_GCC} {linking}")),
    *(program for compiler in _ODD_COMPILING for program in _built("C, compiled oddly", compiler)),
    *_built("C, link-time optimized", f"{_GCC} -O3 -flto"),
    *(
        program
        for compiler in ("gcc -Os", "gcc -O2", "clang -O3", "gcc -O0")
        for program in _built("C, no tables; the others have them", f"{compiler} {_NO_TABLES}", truth=True)
    ),
    *_built("C, clang and lld", "clang -O2 -w -fuse-ld=lld"),
    *_built("C, musl", "musl-gcc -O2 -w"),
    *_built("C, musl, static", "musl-gcc -O2 -w -static"),
    *_built("C, musl; the others have its tables", "musl-gcc -O2 -w", truth=True),
    *_built(
        "C, musl, static; the others have its tables",
        "musl-gcc -O2 -w -static -Wl,--build-id -Wl,--strip-debug",
        truth=True,
    ),
    *_built("C++", "g++ -O2 -w", sources="objects"),
    *_built("C++, clang and lld", "clang++ -O2 -w -fuse-ld=lld", sources="objects"),
    Program("200 threads", "{bin} 200", f"{_GCC} -pthread {{src}}/threads.c -o {{bin}}", needs=("gcc",)),
    Program("Rust", "{bin}", "rustc -O {src}/main.rs -o {bin}", needs=("rustc",)),
    Program("Go", "{bin}", "go build -o {bin} {src}/main.go", needs=("go",)),
    Program("python3", "/usr/bin/python3 {src}/work.py", needs=("/usr/bin/python3",)),
    Program("perl", "perl {src}/work.pl", needs=("perl",)),
    Program("lua", "lua5.4 {src}/work.lua", needs=("lua5.4",)),
    Program("node", "node {src}/work.js", needs=("node",)),
    Program("sqlite3", "sqlite3 :memory: '.read {src}/work.sql'", needs=("sqlite3",)),
    Program(
        "redis",
        "redis-server --port 0 --unixsocket {tmp}/socket --save '' --io-threads 2",
        load="redis-benchmark -s {tmp}/socket -l -q -t set,get,incr,lpush,lrange_300,zadd,spop,mset",
        needs=("redis-server", "redis-benchmark"),
    ),
    Program(
        "nginx",
        "nginx -e stderr -p {tmp} -c {src}/nginx.conf",
        load="python3 {src}/requests.py {tmp}/socket",
        pick="nginx",
        needs=("nginx",),
    ),
    Program(
        "gcc compiling",
        _endless("g++ -O2 -S {src}/objects.cpp -o /dev/null"),
        pick="cc1plus",
        needs=("g++",),
    ),
    Program(
        "clang compiling",
        _endless("clang++ -O2 -S {src}/objects.cpp -o /dev/null"),
        pick="clang",
        needs=("clang++",),
    ),
)
