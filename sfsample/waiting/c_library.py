"""Recognizes the C library's functions on a stack, without the underscores and versions that it adds."""

from collections.abc import Iterator, Sequence

from sfsample.symbolize.named_frame import NamedFrame

# file names of modules begin like this
C_LIBRARIES = ("libc.so", "libc-2.", "libpthread", "ld-linux", "ld-musl", "libresolv", "librt", "[vdso]")


def library_functions(frames: Sequence[tuple[NamedFrame, ...]], paths: Sequence[str]) -> Iterator[str]:
    """Yield the bare names of the C library's functions on a stack and of Go; of a static program, all.

    `frames` has the functions of each frame, `paths` its module (""), the innermost first.
    """
    static = not any(is_file(path, C_LIBRARIES) for path in paths)
    for names, path in zip(frames, paths, strict=True):
        is_shown = static or is_file(path, C_LIBRARIES)
        raws = (name.raw for name in names if name.raw)
        yield from (bare_symbol(raw) for raw in raws if is_shown or raw.startswith("runtime."))


def bare_symbol(symbol: str) -> str:
    """Return "sem_wait" for "__sem_wait@@GLIBC_2.34" and for "__sem_wait.constprop.0" (a clone by gcc)."""
    return symbol.partition("@")[0].partition(".")[0].lstrip("_")


def is_file(path: str, prefixes: tuple[str, ...]) -> bool:
    """Return True if the name of the file begins with one of `prefixes`."""
    return path.rpartition("/")[2].startswith(prefixes)
