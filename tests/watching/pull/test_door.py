"""What the pull door says of the loop: counts, and whether slices are closed in time."""

import re
from types import SimpleNamespace

import pytest

from sfsample.errors import SfsampleError
from sfsample.recording.stats import Stats
from sfsample.watching.pull import door as module
from sfsample.watching.pull.door import Door, Wanted
from tests.builders.watches import watch_of


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
    """Return the samples of Prometheus text; check each line."""
    *lines, nothing = text.split("\n")
    assert nothing == ""
    kinds: dict[str, str] = {}
    found: dict[str, float] = {}
    for line in lines:
        if match := re.fullmatch(r"# TYPE ([a-z_]+) (counter|gauge|histogram)", line):
            family = match[1]
            assert family not in kinds
            kinds[family] = match[2]
            assert (match[2] == "counter") == family.endswith("_total")
        else:
            match = re.fullmatch(r'([a-z_]+)(\{[a-z]+="[^"\\]+"\})? (\d+(\.\d+)?(e[+-]\d+)?)', line)
            assert match, line
            ends = ["_bucket", "_count", "_sum"] if kinds[family] == "histogram" else [""]
            assert match[1] in [family + end for end in ends]
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
        door.count("http_responses_total", f'{{code="{status}"}}')
    for name in ("cpu>80", "SIGUSR1", "cpu>80"):
        door.count("triggers_total", f'{{condition="{name}"}}')
    found = values(door.metrics())
    assert {found.pop(f"sfsample_stop_seconds_{end}") for end in ("count", "sum")} == {0}
    assert not any(found.pop(name) for name in [*found] if name.startswith("sfsample_stop_seconds_bucket"))
    assert found.pop("process_resident_memory_bytes") > 1e6
    assert found.pop("process_open_fds") >= 3
    assert found == {
        "sfsample_slices_total": 2, "sfsample_samples_total": 120, "sfsample_missed_ticks_total": 8,
        "sfsample_failures_total": 1, "sfsample_pulled_profiles_total": 0, "sfsample_targets": 3,
        'sfsample_http_responses_total{code="200"}': 2, 'sfsample_http_responses_total{code="503"}': 1,
        "sfsample_last_slice_timestamp_seconds": 1.75e9 + 1060, "process_cpu_seconds_total": 2.5,
        'sfsample_triggers_total{condition="cpu>80"}': 2, 'sfsample_triggers_total{condition="SIGUSR1"}': 1,
        'sfsample_lost_total{reason="missed tick"}': 8, 'sfsample_lost_total{reason="skipped tick"}': 0,
        'sfsample_lost_total{reason="failed capture"}': 0,
        'sfsample_lost_total{reason="truncated stack"}': 120,
    }  # fmt: skip


def test_pauses_are_a_histogram(clock: SimpleNamespace) -> None:
    door = Door(60, 10)
    for pauses_ns in ([60_000, 60_000, 3_000_000], [99_000, 2_000_000_000]):
        one = stats(1, 0)
        for pause_ns in pauses_ns:
            one.pauses.add(pause_ns)
        door.closed(one)
    found = values(door.metrics())
    counts = {
        name[len("sfsample_stop_seconds_bucket") :]: count
        for name, count in found.items()
        if "_bucket" in name
    }
    assert counts['{le="5e-05"}'] == 0
    assert counts['{le="0.0001"}'] == 3
    assert counts['{le="0.005"}'] == counts['{le="1.0"}'] == 4
    assert counts['{le="+Inf"}'] == found["sfsample_stop_seconds_count"] == 5
    assert [*counts.values()] == sorted(counts.values())
    assert found["sfsample_stop_seconds_sum"] == pytest.approx(2.003219)


def test_health_ends_when_no_slice_is_closed_in_time(clock: SimpleNamespace) -> None:
    door = Door(60, 10)
    clock.s += 140
    assert door.why_unhealthy() == ""
    clock.s += 1
    assert door.why_unhealthy() == "no slice was closed for 141 s: the loop hangs"
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
    recorder = watch_of("1")._recorder
    recorder._program = recorder._program._replace(should_stop=lambda: ends)
    with pytest.raises(SfsampleError, match=why):
        recorder.requested(pids, Wanted(1))
