"""Runs inside gdb: attaches where it is told to and answers with the pcs of every thread's real frames.

Law: one line of JSON for each line that comes in: a process id, or 0, which is to detach.  An inlined
function and a tail call that gdb infers are no frames of the machine and are left out.  What gdb says about
the end of a stack is passed on.
"""

import json
import os

import gdb  # type: ignore[import-not-found]

_SETTINGS = (
    *("pagination off", "confirm off", "debuginfod enabled off", "auto-load off", "print thread-events off"),
    *("backtrace past-main on", "backtrace past-entry on", "backtrace limit unlimited"),
)
_NO_FRAMES = (gdb.INLINE_FRAME, gdb.TAILCALL_FRAME)
_MOST = 3000


def frames() -> dict[str, object]:
    """Return the selected thread's stack."""
    pcs: list[int] = []
    end = ""
    try:
        frame = gdb.newest_frame()
        while frame is not None and len(pcs) < _MOST:
            if frame.type() not in _NO_FRAMES:
                pcs.append(frame.pc())
            end = gdb.frame_stop_reason_string(frame.unwind_stop_reason())
            frame = frame.older()
    except gdb.error as error:
        end = str(error)
    return {"pcs": pcs, "end": end}


def look(pid: int) -> dict[str, object]:
    """Attach and ask every thread."""
    try:
        gdb.execute(f"attach {pid}", to_string=True)
    except gdb.error as error:
        return {"error": str(error)}
    stacks = {}
    for thread in gdb.selected_inferior().threads():
        thread.switch()
        stacks[thread.ptid[1]] = frames()
    return {"stacks": stacks}


def leave() -> dict[str, object]:
    """Let go of the process; a signal that was pending is delivered now, so this comes last."""
    files = {objfile.filename for objfile in gdb.objfiles()}
    try:
        gdb.execute("detach", to_string=True)
    except gdb.error as error:
        return {"error": str(error)}
    keep(files)
    return {}


kept: set[str] = set()


def keep(files: set[str]) -> None:
    """Hold on to symbol files in an inferior that never runs; to attach again takes 7 ms then, not 160."""
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
    """Serve until the other side closes."""
    for setting in _SETTINGS:
        gdb.execute(f"set {setting}")
    gdb.execute(f"set debug-file-directory {os.environ['DEBUG_FILES']}")
    with open(int(os.environ["ASKED"])) as asked, open(int(os.environ["ANSWER"]), "w") as answer:
        for line in asked:
            pid = int(line)
            answer.write(json.dumps(look(pid) if pid else leave()) + "\n")
            answer.flush()


main()
