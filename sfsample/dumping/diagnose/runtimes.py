"""Recognizes runtimes whose own threads or tasks a dump does not show, and names the tool that shows them.

The evidence is the files and the functions on the stacks, because a program chooses its name.
"""

from collections.abc import Iterable

from sfsample.dumping.diagnose.named_thread import NamedThread
from sfsample.dumping.model import ProcessDump
from sfsample.waiting.thread import is_file

# prefix of a file's name -> sentence; {} is the process id
_BY_FILE = {
    "libjvm.so": "Java's locks and frames are not shown: jcmd {} Thread.print has them (kill -QUIT {} prints "
    "them on the JVM's stdout, unless it runs with -Xrs)",
    "libcoreclr.so": "frames of .NET are not shown: dotnet-stack report -p {} has them",
    "beam.": "processes of Erlang are not shown: a remote shell has them (erl -remsh NODE, then i().)",
}
# prefix of a function's name -> sentence
_BY_FUNCTION = {
    "node::": "JavaScript is not shown: node inspect -p {} opens its debugger, in which pause and bt have it",
    "runtime.mstart": "goroutines could not be read: kill -QUIT {} prints them, but it ENDS the program",
}


def missing_tool(dump: ProcessDump, threads: Iterable[NamedThread]) -> str:
    """Return a sentence on the runtime of a process; "": sfsample shows all, or knows no runtime in it."""
    rows = [row for thread in threads for row in thread.rows()]
    files = dict.fromkeys(module.path for _, module, _ in rows if module)
    found = [text for start, text in _BY_FILE.items() if any(is_file(path, (start,)) for path in files)]
    if not dump.goroutines:
        functions = {name.function or "" for _, _, names in rows for name in names}
        found += [text for start, text in _BY_FUNCTION.items() if any(f.startswith(start) for f in functions)]
    return found[0].format(dump.pid, dump.pid) if found else ""
