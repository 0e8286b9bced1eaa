"""Where a process lives, so that its debug files and perf maps can be found, also when it has ended.

Law: what cannot be had is absent: without the root directory only our own files are searched.

Source: proc(5): `root`, `Uid` (the second is the effective one) and `NSpid` (the last is the innermost).
"""

from sfsample.files import Home, Root
from sfsample.target.procfs import ProcFs


def home_of(proc: ProcFs) -> Home:
    """Return root, pid and user of a process as it sees them itself."""
    status = proc.status()
    pid = int((status.get("NSpid") or str(proc.pid)).split()[-1])
    uid = int((status.get("Uid") or "0 0").split()[1])
    try:
        root = Root(f"/proc/{proc.anchor()}/root")
    except OSError:
        root = None
    return Home(root, pid, uid, proc.link("ns/mnt"))
