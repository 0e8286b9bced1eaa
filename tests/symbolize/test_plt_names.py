"""PLT stubs of real files have the names that objdump gives them."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from sfsample.formats.elf.image import ElfImage
from sfsample.symbolize.plt_names import PltStubs, is_stub, stub_sections
from tests.builders.symbol_tables import SymbolTable

FIXTURES = Path(__file__).parents[1] / "fixtures"
LIBRARIES = ("libc.so.6", "libstdc++.so.6", "libm.so.6")
SYSTEM = [*(Path("/usr/lib/x86_64-linux-gnu", name) for name in LIBRARIES), Path("/usr/bin/ls")]
# from Debian's packages for cross compilers
FOREIGN = {machine: [Path(f"/usr/{machine}-linux-gnu/lib", name) for name in LIBRARIES]
           for machine in ("aarch64", "s390x")}  # fmt: skip
FILES = [
    *(("objdump", path) for path in [*FIXTURES.glob("v*/target"), *SYSTEM] if path.exists()),
    *((f"{machine}-linux-gnu-objdump", path) for machine, paths in FOREIGN.items()
      for path in [*FIXTURES.glob(f"{machine}/v*/target"), *paths]),
]  # fmt: skip
HEADING = re.compile(r"^([0-9a-f]+) <(.*)>:$", re.MULTILINE)


def stubs_of(path):
    image = ElfImage(path.read_bytes(), str(path))
    table = SymbolTable(*image.symbols(), image.byteorder, image.code_sections)

    def resolve(vaddr):
        found = table.find_stated(vaddr)
        return found.name if found and found.start == vaddr else None

    return image, PltStubs(image, resolve), table


def objdump(tool, path):
    """Return {vaddr: name} of the stubs; `*ABS*+0x1234@plt` is an indirect function by its resolver."""
    sections = [word for name in (".plt", ".plt.sec", ".plt.got") for word in ("-j", name)]
    text = subprocess.run([tool, "-d", *sections, path], capture_output=True, text=True, check=False).stdout
    return {int(vaddr, 16): name for vaddr, name in HEADING.findall(text)}


@pytest.mark.parametrize(("tool", "path"), FILES, ids=str)
def test_stubs_have_the_names_of_objdump(tool, path):
    if shutil.which(tool) is None or not path.exists():
        pytest.skip(f"{tool} or {path} is not installed")
    image, stubs, table = stubs_of(path)
    expected = objdump(tool, path)
    assert expected
    for vaddr, name in expected.items():
        assert is_stub(stub_sections(image), vaddr)
        stub = stubs.find(vaddr)
        # the first stub calls the dynamic linker and has no name
        if re.fullmatch(r"\.plt.*|.*@plt-0x[0-9a-f]+", name):
            assert stub is None
        elif name.startswith("*ABS*+"):
            resolver = int(name.removeprefix("*ABS*+").removesuffix("@plt"), 16)
            found = table.find_stated(resolver)
            known = found is not None and found.start == resolver
            assert stub == ((f"{found.name}@plt", vaddr, stub.size) if known else None)
        elif stub is None:  # code that resolves TLS descriptors: objdump names it after the code that follows
            assert image.loaded(vaddr & -32, 4) == bytes.fromhex("e20fbfa9")
        else:
            assert stub.name == re.sub(r"@[^@]+@plt$", "@plt", name)
            assert stubs.find(vaddr + stub.size - 1) == stub


SOURCE = """
.globl caller
.type caller, @function
caller: call first@plt; call second@plt; ret
.size caller, .-caller
.section .note.gnu.property, "a"
.align 8
.long 4, 16, 5; .asciz "GNU"; .long 0xc0000002, 4, 1, 0
"""


@pytest.mark.skipif(shutil.which("ld") is None, reason="ld is not installed")
def test_stubs_with_endbr64_are_named_where_they_are_called(tmp_path):
    """ld -z ibtplt: callers call .plt.sec; the lazy stub in .plt pushes a number and jumps on, once."""
    (tmp_path / "a.s").write_text(SOURCE)
    subprocess.run(["as", "-o", "a.o", "a.s"], cwd=tmp_path, check=True)
    subprocess.run(
        ["ld", "-shared", "-z", "ibtplt", "-z", "lazy", "-o", "a.so", "a.o"], cwd=tmp_path, check=True
    )
    image, stubs, _ = stubs_of(tmp_path / "a.so")
    sections = {s.name: s for s in image.sections}
    [second, first] = [stubs.find(sections[".plt.sec"].vaddr + 16 * n).name for n in (0, 1)]
    assert {first, second} == {"first@plt", "second@plt"}
    lazy = [stubs.find(sections[".plt"].vaddr + 16 * n) for n in (0, 1, 2)]
    assert lazy == [None, None, None]


@pytest.mark.skipif(shutil.which("ld") is None, reason="ld is not installed")
def test_stubs_are_named_in_a_program_that_exports_nothing(tmp_path):
    """Its hash table is empty and does not contain the number of imported symbols."""
    (tmp_path / "a.s").write_text(".globl _start\n_start: call first@plt; call second@plt\n")
    (tmp_path / "b.s").write_text(
        "".join(f".globl {n}\n.type {n}, @function\n{n}: ret\n" for n in ("first", "second"))
    )
    for name in "ab":
        subprocess.run(["as", "-o", f"{name}.o", f"{name}.s"], cwd=tmp_path, check=True)
    subprocess.run(["ld", "-shared", "-o", "b.so", "b.o"], cwd=tmp_path, check=True)
    subprocess.run(["ld", "--hash-style=gnu", "-o", "a", "a.o", "b.so"], cwd=tmp_path, check=True)
    image, stubs, _ = stubs_of(tmp_path / "a")
    plt = next(s for s in image.sections if s.name == ".plt")
    names = {stubs.find(plt.vaddr + at).name for at in (16, 32)}
    assert names == {"first@plt", "second@plt"}


def test_addresses_outside_the_plt_are_not_stubs():
    image, stubs, _ = stubs_of(FIXTURES / "v3" / "target")
    text = next(s for s in image.sections if s.name == ".text")
    assert not is_stub(stub_sections(image), text.vaddr)
    assert stubs.find(0) is None
    assert stubs.find(text.vaddr + text.size) is None
