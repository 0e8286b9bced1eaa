"""`sfsample watch`: a slice every so often, for months.

Law: the target is looked up anew for every slice; nothing is kept from one slice to the next but the
schedule.  A file appears complete or not at all.  SIGTERM ends the slice, writes it, and exits 0.
"""

import os
import re
import time
from argparse import Namespace

from sfsample import api
from sfsample.cli.console import Interrupt, Output, say, targets
from sfsample.cli.record import sample
from sfsample.errors import NoSuchProcess, SfsampleError
from sfsample.target.process import start_time

_DOZE_S = 0.2
_STAMP = "%Y%m%dT%H%M%SZ"


def run(arguments: Namespace) -> int:
    """Record slices until told to stop, or until the process given by -p has ended."""
    directory = arguments.output_dir
    try:
        os.makedirs(directory, exist_ok=True)
    except OSError as failure:
        raise SfsampleError(f"cannot write: {directory}: {failure.strerror}",
                            "choose another --output-dir") from None  # fmt: skip
    identities = {pid: start_time(pid) for pid in arguments.pid or ()}
    begun, slices = time.monotonic(), 0
    with Interrupt() as interrupt:
        while _wait_for_slot(begun, arguments.every, interrupt):
            try:
                _slice(arguments, identities, interrupt)
                slices += 1
            except NoSuchProcess as gone:
                if arguments.pid and not slices:
                    raise
                if not arguments.quiet:
                    say(f"sfsample: {gone}")
                if arguments.pid:
                    break
            begun += arguments.every * max(1, -(-(time.monotonic() - begun) // arguments.every))
    return 0


def _wait_for_slot(slot: float, every: float, interrupt: Interrupt) -> bool:
    del every
    while not interrupt():
        left = slot - time.monotonic()
        if left <= 0:
            return True
        time.sleep(min(left, _DOZE_S))
    return False


def _slice(arguments: Namespace, identities: dict[int, float], interrupt: Interrupt) -> None:
    pids = targets(arguments)
    for pid, born in identities.items():
        if start_time(pid) != born:
            raise NoSuchProcess(pid, f"process has ended: {pid}")
    label = _label(arguments, pids)
    stamp = time.strftime(_STAMP, time.gmtime())
    path = os.path.join(arguments.output_dir, f"{label}-{stamp}.folded")
    output = Output(path)
    try:
        profile = sample(arguments, pids, arguments.slice, interrupt)
        output.write(api.folded(profile, threads=arguments.threads))
    finally:
        output.discard()
    if not arguments.quiet:
        say(f"sfsample: {path}: {profile.stats.samples} samples")
    if arguments.keep:
        _forget_old(arguments.output_dir, label, arguments.keep)


def _label(arguments: Namespace, pids: list[int]) -> str:
    name = arguments.name or "-".join(map(str, pids))
    return re.sub(r"[^A-Za-z0-9._+-]", "_", name).lstrip(".") or "target"


def _forget_old(directory: str, label: str, keep: int) -> None:
    """Delete our own oldest files of this label; their names sort by time."""
    ours = re.compile(re.escape(label) + r"-\d{8}T\d{6}Z\.folded")
    files = sorted(name for name in os.listdir(directory) if ours.fullmatch(name))
    for name in files[:-keep]:
        try:
            os.unlink(os.path.join(directory, name))
        except OSError as failure:
            say(f"sfsample: cannot delete: {name}: {failure.strerror}")
