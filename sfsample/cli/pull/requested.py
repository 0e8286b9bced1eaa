"""Records the profile that a client of the pull door waits for, and encodes it, between two slices.

The recording is over when names are looked up and bytes are made: no target thread is held meanwhile.
"""

from argparse import Namespace

from sfsample import api
from sfsample.cli.interrupt import Interrupt
from sfsample.cli.naming import with_names
from sfsample.cli.pull.door import Wanted
from sfsample.cli.sampling import check_result, record_processes
from sfsample.cli.symbol_flags import symbol_options
from sfsample.errors import SfsampleError
from sfsample.recording.profile import Profile


def requested_profile(arguments: Namespace, pids: list[int], wanted: Wanted, interrupt: Interrupt) -> bytes:
    """Return the profile as pprof; it is empty where no thread ran.  It ends when the client has gone."""
    if interrupt() or not pids:
        raise SfsampleError("sfsample ends" if interrupt() else "the process has ended")
    mode = wanted.mode or arguments.mode
    asked = {"mode": mode, "rate": wanted.rate or arguments.rate, "quiet": True}
    timers = arguments.perf_events if mode == "cpu" else None
    flags = Namespace(**{**vars(arguments), **asked, "perf_events": timers})
    profile = Profile(flags.rate)
    record_processes(flags, pids, wanted.seconds, lambda: interrupt() or wanted.gone, profile=profile)
    check_result(profile.stats, pids)
    if wanted.gone:
        return b""
    symbolizer = api.symbolizer(profile, symbol_options(flags))
    report = with_names(lambda: api.named(profile, symbolizer), symbolizer, interrupt)
    return api.render(report, "pprof")
