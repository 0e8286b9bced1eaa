"""What is stood for until it is used."""

import subprocess
import sys

import pytest

from sfsample.late import late

PROGRAM = """
import sys
from sfsample.late import late

before = set(sys.modules)
with late("pprint", "pdb", "sys"):
    import pdb
    from pprint import pformat
    assert sys is sys.modules["sys"], "what is loaded is left alone"
assert not {"pprint", "pdb"} & (set(sys.modules) - before)
import pprint
assert pprint.PrettyPrinter, "the next import gets the module itself"
assert pformat({1: 2}, width=5) == pprint.pformat({1: 2}, width=5)
"""


def test_a_module_is_loaded_when_one_of_its_functions_is_called() -> None:
    """In an interpreter of its own, which has loaded none of them."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_import_that_fails_leaves_nothing_behind() -> None:
    def damaged() -> None:
        with late("turtledemo"):
            assert "turtledemo" in sys.modules
            raise ImportError

    with pytest.raises(ImportError):
        damaged()
    assert "turtledemo" not in sys.modules


def test_what_pyelftools_shows_is_as_without_it() -> None:
    """Its containers print themselves with pprint."""
    from elftools.construct import Container

    assert repr(Container(a=1)) == "Container({'a': 1})"
