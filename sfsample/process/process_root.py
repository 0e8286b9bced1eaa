"""Where a process lives, so that its debug files and perf maps can be found, also when it has ended.

Law: what cannot be had is absent: without the root directory only our own files are searched.

Source: proc(5): `root`, `Uid` (the second is the effective one) and `NSpid` (the last is the innermost).
"""

from sfsample.core.filesystem import ProcessRoot
from sfsample.process.image_cache import ImageCache
from sfsample.process.procfs import ProcFs


def root_of(proc: ProcFs, shared: ImageCache) -> ProcessRoot:
    """Return root, pid and user of a process as it sees them itself."""
    status = proc.status()
    pid = int((status.get("NSpid") or str(proc.pid)).split()[-1])
    uid = int((status.get("Uid") or "0 0").split()[1])
    mounts = proc.link("ns/mnt")
    try:
        root = shared.root(f"/proc/{proc.anchor()}/root", mounts)
    except OSError:
        root = None
    return ProcessRoot(root, pid, uid, mounts)
