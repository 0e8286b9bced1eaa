"""What the pull door says of the loop: counts, and whether slices are closed in time."""

import re
from types import SimpleNamespace

import pytest

from sfsample.cli.interrupt import Interrupt
from sfsample.cli.parse import parse
from sfsample.cli.pull import door as module
from sfsample.cli.pull.door import Door, Wanted
from sfsample.cli.pull.requested import requested_profile
from sfsample.errors import SfsampleError
from sfsample.recording.stats import Stats


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    now = SimpleNamespace(s=1000.0)
    fake = SimpleNamespace(monotonic=lambda: now.s, time=lambda: 1.75e9 + now.s, process_time=lambda: 2.5)
    monkeypatch.setattr(module, "time", fake)
    return now


def stats(samples: int, missed: int) -> Stats:
    made = Stats(99)
    made.samples, made.late_ticks = samples, missed
    return made


def values(text: str) -> dict[str, float]:
    """Return the samples of OpenMetrics text; check each line."""
    *lines, end, nothing = text.split("\n")
    assert (end, nothing) == ("# EOF", "")
    kinds: dict[str, str] = {}
    found: dict[str, float] = {}
    for line in lines:
        if match := re.fullmatch(r"# TYPE ([a-z_]+) (counter|gauge)", line):
            assert match[1] not in kinds
            kinds[match[1]] = match[2]
            family = match[1]
        elif not re.fullmatch(rf"# HELP {family} \S.*\.", line):
            match = re.fullmatch(r'([a-z_]+)(\{code="\d+"\})? (\d+(\.\d+)?(e\+\d+)?)', line)
            assert match
            assert match[1] == family + "_total" * (kinds[family] == "counter")
            found[match[1] + (match[2] or "")] = float(match[3])
    return found


def test_metrics_count_slices_and_failures(clock: SimpleNamespace) -> None:
    door = Door(60, 10)
    assert "sfsample_last_slice_timestamp_seconds" not in values(door.metrics())
    door.targets = 3
    door.closed(stats(100, 7))
    clock.s += 60
    door.closed(stats(20, 1))
    door.failed("disk full")
    for status in (200, 200, 503):
        door.count_response(status)
    found = values(door.metrics())
    assert found.pop("process_resident_memory_bytes") > 1e6
    assert found.pop("process_open_fds") >= 3
    assert found == {
        "sfsample_slices_total": 2, "sfsample_samples_total": 120, "sfsample_missed_ticks_total": 8,
        "sfsample_failures_total": 1, "sfsample_pulled_profiles_total": 0, "sfsample_targets": 3,
        'sfsample_http_responses_total{code="200"}': 2, 'sfsample_http_responses_total{code="503"}': 1,
        "sfsample_last_slice_timestamp_seconds": 1.75e9 + 1060, "process_cpu_seconds_total": 2.5,
    }  # fmt: skip


def test_health_ends_when_no_slice_is_closed_in_time(clock: SimpleNamespace) -> None:
    door = Door(60, 10)
    clock.s += 140
    assert door.why_unhealthy() == ""
    clock.s += 1
    assert door.why_unhealthy() == "no slice was closed for 141 s: the loop does not go on"
    door.failed("no such process: bank")
    assert door.why_unhealthy() == "no slice was closed for 141 s: no such process: bank"
    door.closed(stats(1, 0))
    assert door.why_unhealthy() == ""


def test_long_request_is_no_lack_of_health(clock: SimpleNamespace) -> None:
    door = Door(1, 1)

    def record(_: Wanted) -> bytes:
        clock.s += 121
        assert door.why_unhealthy() == ""
        return b"x"

    assert door.ask(Wanted(120)) == 0
    assert door.serve(record)
    assert door.why_unhealthy() == ""
    clock.s += 30
    assert door.why_unhealthy()


def test_client_that_left_before_is_not_recorded_for() -> None:
    door, wanted = Door(60, 10), Wanted(5)
    assert door.ask(wanted) == 0
    wanted.gone = True
    assert door.serve(lambda _: pytest.fail("recorded"))
    assert not door.is_due()
    assert not door.serve(lambda _: b"")


@pytest.mark.parametrize("failure", [SfsampleError("no"), OSError("no"), MemoryError(), ValueError("no")])
def test_failed_profile_costs_the_loop_nothing(failure: Exception) -> None:
    door, wanted = Door(60, 10), Wanted(5)

    def fail(_: Wanted) -> bytes:
        raise failure

    assert door.ask(wanted) == 0
    assert door.serve(fail)
    assert wanted.ended.is_set()
    assert wanted.failure == (str(failure) or "out of memory")
    assert door.ask(Wanted(1)) == 0, "the next one may ask"


@pytest.mark.parametrize(("ends", "pids", "why"), [(True, [1], "sfsample ends"), (False, [], "has ended")])
def test_request_that_cannot_be_recorded_is_refused(ends: bool, pids: list[int], why: str) -> None:
    """An empty profile would say that nothing ran."""
    arguments, interrupt = parse(["watch", "-p", "1", "--output-dir", "d"]), Interrupt()
    interrupt.requested = ends
    with pytest.raises(SfsampleError, match=why):
        requested_profile(arguments, pids, Wanted(1), interrupt)
