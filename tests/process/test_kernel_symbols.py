"""Kernel functions are named by lines that are built here as /proc/kallsyms has them."""

import pytest

from sfsample.process.kernel_symbols import KernelSymbols, shows_addresses

# two offsets in the memory of a CPU, then code; the lines of modules come last, out of order
LINES = """\
0000000000000000 A fixed_percpu_data
0000000000001000 A cpu_debug_store
ffffffff81000000 T _text
ffffffff81000100 t local_name
ffffffff81000100 W weak_name
ffffffff81000100 T __x64_name
ffffffff81000100 T global_name
ffffffff81000100 T global_long_name
ffffffff81000200 d some_data
ffffffffc0002000 t in_second\t[second]
ffffffffc0001000 t in_first\t[first]
ffffffff81000300 t after_all
"""


@pytest.fixture(name="symbols")
def _symbols(tmp_path):
    path = tmp_path / "kallsyms"
    path.write_text(LINES)
    return KernelSymbols(str(path))


@pytest.mark.parametrize(
    ("address", "name"),
    [
        (0xFFFFFFFF80FFFFFF, "[unknown]"),
        (0xFFFFFFFF81000000, "_text"),
        (0xFFFFFFFF810000FF, "_text"),
        (0xFFFFFFFF81000250, "global_long_name"),
        (0xFFFFFFFF81000300, "after_all"),
        (0xFFFFFFFFC0001FFF, "in_first"),
        (0xFFFFFFFFC0002001, "in_second"),
    ],
)
def test_address_has_the_name_of_the_function_that_it_is_in(symbols, address, name):
    assert symbols.names((address,)) == (name,)


def test_return_address_belongs_to_the_function_that_calls(symbols):
    """The call may be the last instruction of its function."""
    assert symbols.names((0xFFFFFFFF81000100, 0xFFFFFFFF81000100)) == ("global_long_name", "_text")


def test_addresses_that_the_kernel_hides_are_told_from_those_that_it_shows(tmp_path):
    shown, hidden = tmp_path / "shown", tmp_path / "hidden"
    shown.write_text(LINES)
    hidden.write_text("".join(f"{0:016x}{line[16:]}\n" for line in LINES.splitlines()))
    assert shows_addresses(str(shown))
    assert not shows_addresses(str(hidden))
    assert not shows_addresses(str(tmp_path / "none"))
    assert KernelSymbols(str(tmp_path / "none")).names((1,)) == ("[unknown]",)
