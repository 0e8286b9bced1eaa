"""What is stood for until it is used."""

import subprocess
import sys
import threading

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

try:
    with late("turtledemo"):
        assert "turtledemo" in sys.modules
        raise ImportError
except ImportError:
    assert "turtledemo" not in sys.modules, "an import that fails leaves nothing behind"
else:
    raise AssertionError
"""


def test_a_module_is_loaded_when_one_of_its_functions_is_called() -> None:
    """In an interpreter of its own, which has loaded none of them."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_other_threads_find_no_stand_in() -> None:
    go_on = threading.Event()
    other = threading.Thread(target=go_on.wait)
    other.start()
    with late("turtledemo"):
        assert "turtledemo" not in sys.modules
    go_on.set()
    other.join()


def test_what_pyelftools_shows_is_as_without_it() -> None:
    """Its containers print themselves with pprint."""
    from elftools.construct import Container

    assert repr(Container(a=1)) == "Container({'a': 1})"
