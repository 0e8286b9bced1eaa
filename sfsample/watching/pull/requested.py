"""Records the profile that a client of the pull door waits for, and encodes it, between two slices.

It looks up names and encodes after the recording, so no target thread is held meanwhile.
"""

from collections.abc import Callable
from dataclasses import replace

from sfsample import api
from sfsample.errors import SfsampleError
from sfsample.process.thread_files import open_many
from sfsample.process.with_names import with_names
from sfsample.recording.options import RecordOptions
from sfsample.recording.profile import Profile
from sfsample.recording.result import check_result
from sfsample.symbolize.options import SymbolOptions
from sfsample.watching.pull.door import Wanted


def requested_profile(
    base: RecordOptions, symbols: SymbolOptions, pids: list[int], wanted: Wanted,
    should_stop: Callable[[], bool], *, all_of: bool,
) -> bytes:  # fmt: skip
    """Return the profile as pprof, empty if no thread ran.  The recording ends when the client has gone."""
    if should_stop() or not pids:
        raise SfsampleError("sfsample ends" if should_stop() else "the process has ended")
    mode, rate = wanted.mode or base.mode, wanted.rate or base.rate
    options = replace(base, mode=mode, rate=rate, perf_events=base.perf_events if mode == "cpu" else None)
    profile = Profile(rate)
    open_many()
    api.record(
        pids, wanted.seconds, options, profile=profile, all_of=all_of,
        should_stop=lambda: should_stop() or wanted.gone,
    )  # fmt: skip
    check_result(profile.stats, pids)
    if wanted.gone:
        return b""
    symbolizer = api.symbolizer(profile, replace(symbols, progress=lambda _text: None))
    report = with_names(lambda: api.named(profile, symbolizer), symbolizer, should_stop)
    return api.render(report, "pprof")
