"""/proc/locks is parsed, and only locks that some process waits for are returned."""

import fcntl
import os
from pathlib import Path

from sfsample.process.facts.file_locks import FileLock, parse_locks

LOCKS = """\
1: FLOCK  ADVISORY  WRITE 812 00:19:1033 0 EOF
2: POSIX  ADVISORY  WRITE 900 08:01:77 0 EOF
2: -> POSIX  ADVISORY  WRITE 901 08:01:77 0 EOF
2: -> POSIX  ADVISORY  READ 902 08:01:77 10 20
3: OFDLCK ADVISORY  WRITE -1 08:01:78 0 EOF
3: -> OFDLCK ADVISORY  WRITE -1 08:01:78 0 EOF
4: LEASE  ACTIVE    READ 5 08:01:9 0 EOF
nonsense
"""


def test_contended_locks_have_holder() -> None:
    assert parse_locks(LOCKS) == (
        FileLock(inode=77, holder=900, waiter=901),
        FileLock(inode=77, holder=900, waiter=902),
        FileLock(inode=78, holder=-1, waiter=-1),
    )
    assert parse_locks("") == ()


def test_waiter_for_a_shared_lock_waits_for_all_who_share_it() -> None:
    text = """\
1: FLOCK  ADVISORY  READ 812 00:19:1033 0 EOF
2: FLOCK  ADVISORY  READ 813 00:19:1033 0 EOF
2: -> FLOCK  ADVISORY  WRITE 814 00:19:1033 0 EOF
3: FLOCK  ADVISORY  READ 815 00:19:1033 0 EOF
4: FLOCK  ADVISORY  READ 816 00:19:1034 0 EOF
5: POSIX  ADVISORY  READ 817 00:19:1033 0 EOF
"""
    assert [(lock.holder, lock.waiter) for lock in parse_locks(text)] == [(812, 814), (813, 814), (815, 814)]


def test_lock_without_waiter_is_left_out(tmp_path: Path) -> None:
    with (
        open(tmp_path / "lock", "w", encoding="ascii") as file,
        open("/proc/locks", encoding="ascii") as locks,
    ):
        fcntl.flock(file, fcntl.LOCK_EX)
        inode, text = os.fstat(file.fileno()).st_ino, locks.read()
        assert f":{inode} " in text
        assert not [lock for lock in parse_locks(text) if lock.inode == inode]
