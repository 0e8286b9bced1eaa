"""Describes how a process sees the file system, to find debug files and perf maps even after it has ended.

Without permission to open its root directory, only the files that sfsample itself sees are searched.

Source: proc(5): `root`, `Uid` (the second is the effective one) and `NSpid` (the last is the innermost).
"""

from sfsample.core.filesystem import ProcessRoot
from sfsample.process.image_cache import ImageCache
from sfsample.process.procfs import ProcFs


def root_of(proc: ProcFs, image_cache: ImageCache) -> ProcessRoot:
    """Return the root directory, pid and user id of a process as the process itself sees them."""
    status = proc.status()
    pid = int((status.get("NSpid") or str(proc.pid)).split()[-1])
    uid = int((status.get("Uid") or "0 0").split()[1])
    mounts = proc.link("ns/mnt")
    try:
        root = image_cache.root(f"/proc/{proc.anchor()}/root", mounts)
    except OSError:
        root = None
    return ProcessRoot(root, pid, uid, mounts)
