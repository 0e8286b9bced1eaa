"""Runs inside gdb: attaches to a process on request, and answers with the pcs of each thread's real frames.

Each request is a line with a process id, or with 0 to detach; each answer is a line of JSON.  Inlined
functions, and tail calls that gdb infers, are no frames of the machine and are left out.  gdb's reason for
the end of a stack is part of the answer.
"""

import json
import os

import gdb  # type: ignore[import-not-found]

_SETTINGS = (
    *("pagination off", "confirm off", "debuginfod enabled off", "auto-load off", "print thread-events off"),
    *("backtrace past-main on", "backtrace past-entry on", "backtrace limit unlimited"),
)
_NO_FRAMES = (gdb.INLINE_FRAME, gdb.TAILCALL_FRAME)
_MAX_FRAMES = 3000


def frames() -> dict[str, object]:
    """Return the selected thread's stack."""
    pcs: list[int] = []
    end = ""
    try:
        frame = gdb.newest_frame()
        while frame is not None and len(pcs) < _MAX_FRAMES:
            if frame.type() not in _NO_FRAMES:
                pcs.append(frame.pc())
            end = gdb.frame_stop_reason_string(frame.unwind_stop_reason())
            frame = frame.older()
    except gdb.error as error:
        end = str(error)
    return {"pcs": pcs, "end": end}


def attach(pid: int) -> dict[str, object]:
    """Attach; return the stack of every thread."""
    try:
        gdb.execute(f"attach {pid}", to_string=True)
    except gdb.error as error:
        return {"error": str(error)}
    stacks = {}
    for thread in gdb.selected_inferior().threads():
        thread.switch()
        stacks[thread.ptid[1]] = frames()
    return {"stacks": stacks}


def detach() -> dict[str, object]:
    """Detach; this delivers pending signals, so it comes last."""
    files = {objfile.filename for objfile in gdb.objfiles()}
    try:
        gdb.execute("detach", to_string=True)
    except gdb.error as error:
        return {"error": str(error)}
    keep_symbols(files)
    return {}


kept: set[str] = set()


def keep_symbols(files: set[str]) -> None:
    """Keep symbol files loaded in an inferior that never runs; the next attach takes 7 ms then, not 160."""
    new = [name for name in files - kept if name and os.path.exists(name)]
    if not new:
        return
    if not kept:
        gdb.execute("add-inferior", to_string=True)
    kept.update(new)
    gdb.execute("inferior 2", to_string=True)
    for name in new:
        gdb.execute(f"add-symbol-file {name} -o 0", to_string=True)
    gdb.execute("inferior 1", to_string=True)


def main() -> None:
    """Answer until the pipe is closed."""
    for setting in _SETTINGS:
        gdb.execute(f"set {setting}")
    gdb.execute(f"set debug-file-directory {os.environ['DEBUG_FILES']}")
    with open(int(os.environ["REQUESTS"])) as requests, open(int(os.environ["ANSWERS"]), "w") as answers:
        for line in requests:
            pid = int(line)
            answers.write(json.dumps(attach(pid) if pid else detach()) + "\n")
            answers.flush()


main()
