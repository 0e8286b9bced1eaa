"""Function symbols of real libraries are those of `nm`, and C++ names are spelled as by `c++filt`.

At the start of every function in nm's list, find() returns a symbol with that start and one of nm's names
there; at its last byte, a symbol that covers it and starts no earlier.  One difference is computed: a
function with a size may cover the start of a function without one.

C++ names are equal to those of GNU c++filt, character by character.  It leaves names with `Tn` constraints of
C++20 raw, which sfsample reads.  Rust names differ in what rustc-demangle omits and c++filt writes: the hash
of a legacy name (`::h<16 digits>`), the disambiguator of a v0 crate (`core[c1f1a4ba060b9bfa]`), the type of a
constant (`[u8; 2: usize]`); and in suffixes: c++filt omits all, rustc-demangle a last `.llvm.<digits>`.
"""

import re
import shutil
import subprocess
import sys
import sysconfig
from collections import defaultdict
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile

from sfsample.symbolize.spelling import demangle
from tests.builders.installed import library
from tests.builders.symbol_tables import SymbolTable

FUNCTION_TYPES = "tTwWiuV"  # nm's letters for code; `i` is an indirect function, `u` a unique one
SHF_EXECINSTR = 4


def python():
    """Return the file with the functions of the interpreter."""
    shared = sysconfig.get_config_var("INSTSONAME")
    path = Path(sysconfig.get_config_var("LIBDIR") or "", str(shared))
    return (
        str(path) if shared and path.suffix != ".a" and path.exists() else str(Path(sys.executable).resolve())
    )


FILES = [*map(library, ("libc.so.6", "libstdc++.so.6", "ld-linux-x86-64.so.2")), python()]


def needs(tool):
    return pytest.mark.skipif(shutil.which(tool) is None, reason=f"{tool} is not installed")


def run(*command, text=None):
    return subprocess.run(command, input=text, capture_output=True, text=True, check=False).stdout


def load(path):
    """Return the table, its function symbols as (start, size, name), and whether it is .dynsym."""
    with Path(path).open("rb") as file:
        elf = ELFFile(file)
        section = elf.get_section_by_name(".symtab") or elf.get_section_by_name(".dynsym")
        strings = elf.get_section(section["sh_link"]).data()
        executable = [
            (s["sh_addr"], s["sh_addr"] + s["sh_size"])
            for s in elf.iter_sections()
            if s["sh_flags"] & SHF_EXECINSTR
        ]
        symbols = [
            (s["st_value"], s["st_size"], s.name)
            for s in section.iter_symbols()
            if s["st_info"]["type"] in ("STT_FUNC", "STT_LOOS") and isinstance(s["st_shndx"], int) and s.name
        ]
        return SymbolTable(section.data(), strings, "little", executable), symbols, section.name == ".dynsym"


def nm_names(path, dynamic):
    """Return {address: names} without versions, which nm writes after the name."""
    names = defaultdict(set)
    for line in run("nm", "--defined-only", *(["-D"] if dynamic else []), path).splitlines():
        address, kind, name = line.split(" ", 2)
        if kind in FUNCTION_TYPES:
            names[int(address, 16)].add(name.partition("@")[0])
    return names


@needs("nm")
@pytest.mark.parametrize("path", sorted({f for f in FILES if f}))
def test_every_function_is_found_at_its_address(path):
    table, symbols, dynamic = load(path)
    names = nm_names(path, dynamic)
    assert symbols
    stated = sorted((start, start + size) for start, size, _ in symbols if size)
    for start, size, name in symbols:
        found = table.find(start)
        assert found is not None, name
        assert name.partition("@")[0] in names[start]
        if found.start == start:
            assert found.name.partition("@")[0] in names[start], name
        else:  # only a function of known size may cover one of unknown size
            assert not size, name
            assert any(low < start < high for low, high in stated), name
        if size:
            last = table.find(start + size - 1)
            assert start <= last.start < start + size <= last.start + max(last.size, size), name


def cxx_names(kinds="BbDdRrTtuVvWwi"):
    path = library("libstdc++.so.6")
    fields = [line.split(" ", 2) for line in run("nm", "-D", "--defined-only", path).splitlines()]
    return sorted(
        {name.partition("@")[0] for _, kind, name in fields if kind in kinds and name.startswith("_Z")}
    )


def cxxfilt(names):
    spelled = run("c++filt", text="".join(f"{name}\n" for name in names)).splitlines()
    return dict(zip(names, spelled, strict=True))


def differences(names):
    """Return the names that c++filt and sfsample spell differently, except those that c++filt leaves raw."""
    by_cxxfilt = cxxfilt(names).items()
    return {name: text for name, text in by_cxxfilt if demangle(name) != text != name}


@needs("nm")
@needs("c++filt")
def test_cxx_names_are_spelled_as_by_cxxfilt():
    names = cxx_names()
    if not names:
        pytest.skip("no libstdc++")
    assert differences(names) == {}
    assert [name for name in names if demangle(name) == name] == []


@needs("nm")
@needs("c++filt")
def test_clones_are_spelled_as_by_cxxfilt():
    suffixes = (
        ".cold",
        ".part.0",
        ".constprop.1",
        ".isra.0.cold",
        ".lto_priv.0",
        ".llvm.8012451990884947553",
    )
    names = [name + suffix for name in cxx_names("tTwWi")[::50] for suffix in suffixes]
    if not names:
        pytest.skip("no libstdc++")
    assert differences(names) == {}
    assert [name for name in names if demangle(name) == name] == []


CRATE = re.compile(r"(?<=\w)\[[0-9a-f]+\]")
CONSTANT_TYPE = re.compile(r"(?<=[\w'])(?<!:): (?:[iu](?:8|16|32|64|128|size)|bool|char)\b")
HASH = re.compile(r"::h[0-9a-f]{16}$")
PROMOTED = re.compile(r"\.llvm\.[0-9A-F]+$")


def as_rustc_demangle(name, spelled):
    """Return the spelling of rustc-demangle, from that of c++filt."""
    suffix = (
        re.search(r"\.[^.].*$", name) if name.startswith("_R") else re.search(r"(?<=17h.{16}E)\..*$", name)
    )
    kept = PROMOTED.sub("", suffix[0]) if suffix else ""
    return (
        CONSTANT_TYPE.sub("", CRATE.sub("", spelled)) if name.startswith("_R") else HASH.sub("", spelled)
    ) + kept


@needs("nm")
@needs("c++filt")
@pytest.mark.extended  # 6 s
def test_rust_names_are_spelled_as_by_rustc_demangle():
    paths = Path(sysconfig.get_paths()["platlib"]).rglob("*.so")
    fields = [line.split(" ", 2) for path in paths for line in run("nm", "--defined-only", path).splitlines()]
    functions = {name for _, kind, name in fields if kind in "tT"}
    names = sorted(n for n in functions if n.startswith("_R") or re.match(r"_ZN.*17h[0-9a-f]{16}E", n))
    if not names:
        pytest.skip("no Rust library with symbols in this environment")
    spelled = {name: as_rustc_demangle(name, text) for name, text in cxxfilt(names).items()}
    assert {n: (demangle(n), s) for n, s in spelled.items() if demangle(n) != s} == {}
