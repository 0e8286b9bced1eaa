"""When triggers fire: above a limit, above a percentile of the day, by hand; not within the cool-down."""

from types import SimpleNamespace

import pytest

from sfsample.cli.parse import parse
from sfsample.cli.terminal import say_at
from sfsample.core.checkpoint import PENDING_STOPS
from sfsample.core.quantities import BadValue
from sfsample.process.load import METRICS
from sfsample.watching import triggers as module
from sfsample.watching.triggers import LOOK_S, Triggers, condition

HOUR_LOOKS = round(3600 / LOOK_S)


class Watched:
    """Triggers with a simulated clock, whose readings are `values`; each costs `cost_s`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s, self.cost_s, self.looks = 1000.0, 0.0, 0
        self.values: dict[str, float] = {}
        fake = SimpleNamespace(monotonic=lambda: self.now_s, time=lambda: 1.79e9 + self.now_s)
        monkeypatch.setattr(module, "time", SimpleNamespace(**vars(fake), strftime=module.time.strftime,
                                                            gmtime=module.time.gmtime))  # fmt: skip

    def triggers(self, *conditions: str, cooldown_s: float = 600.0) -> Triggers:
        made = Triggers([condition(text) for text in conditions], cooldown_s, self.read, say_at)
        made.pids = [1]
        return made

    def read(self, pids: object) -> dict[str, float]:
        assert pids == [1]
        self.looks += 1
        self.now_s += self.cost_s
        return self.values

    def look(self, made: Triggers, **values: float) -> str:
        """Let the time pass until the next look; return what has fired."""
        self.now_s += LOOK_S
        self.values = values
        fired = made.take()
        return "" if fired is None else f"{fired.name} ({fired.value})"


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    return Watched(monkeypatch)


@pytest.mark.parametrize(
    ("text", "limit", "value", "fired"),
    [("cpu>80", 80, 93.4, "93 %"), ("cpu > 80%", 80, 250, "250 %"),
     ("rss>2G", 2 << 30, 3 << 30, "3072 MiB"), ("threads>500", 500, 501, "501"),
     ("psi.cpu>20", 20, 20.01, "20 %"), ("delay>10%", 10, 12, "12 %"),
     ("stuck>30s", 30, 35, "35 s"), ("stuck>2m", 120, 121, "121 s")],
)  # fmt: skip
def test_value_above_the_limit_fires(
    watched: Watched, text: str, limit: float, value: float, fired: str
) -> None:
    metric = text.partition(">")[0].strip()
    assert metric in METRICS
    made = watched.triggers(text)
    assert watched.look(made, **{metric: limit}) == ""
    assert watched.look(made, other=value) == ""
    assert watched.look(made, **{metric: value}) == f"{text.replace(' ', '')} ({fired})"


@pytest.mark.parametrize(
    "text",
    ["", "cpu", "cpu>", "cpu>x", "cpu<80", "cpu>-1", "cpu>nan", "cpu>1e9", "rss>p99", "cpu>p100", "cpu>p5",
     "load>1", "stuck>0", "rss>2X", "rss>2", "rss>1023K", 'cpu>80"', "cpu>80\n", "cpu>80;b"],
)  # fmt: skip
def test_other_conditions_are_refused_with_examples(text: str) -> None:
    with pytest.raises(BadValue, match=r"cpu>80.*in quotes"):
        condition(text)


def test_flag_can_be_repeated() -> None:
    assert [
        one.text
        for one in parse(["watch", "1", "--trigger", "cpu>1", "--trigger", "rss>1G"]).options.triggers
    ] == [
        "cpu>1",
        "rss>1G",
    ]


def test_cooldown_begins_when_the_trigger_is_answered(watched: Watched) -> None:
    made = watched.triggers("cpu>80", cooldown_s=60)
    assert watched.look(made, cpu=90)
    assert watched.look(made, cpu=10), "it is not answered yet"
    made.answered()
    fired = [watched.look(made, cpu=90) != "" for _ in range(12)]
    assert fired == [False] * 11 + [True]


def test_first_condition_wins(watched: Watched) -> None:
    made = watched.triggers("threads>5", "cpu>80")
    assert watched.look(made, cpu=90, threads=9) == "threads>5 (9)"


def test_signal_fires_during_the_cooldown_and_is_answered_once(watched: Watched) -> None:
    made = watched.triggers("cpu>80")
    assert watched.look(made, cpu=90)
    made.answered()
    made.fire()
    fired = made.take()
    assert fired is not None
    assert str(fired).startswith("trigger SIGUSR1 at ")
    made.fire()
    made.answered()
    assert made.take() is None


def test_without_conditions_nothing_is_read(watched: Watched) -> None:
    assert watched.look(watched.triggers(), cpu=99) == ""
    made = watched.triggers("cpu>1")
    made.pids = []
    assert watched.look(made, cpu=99) == ""
    assert watched.looks == 0


def test_percentile_needs_an_hour_and_three_looks_in_a_row(watched: Watched) -> None:
    made = watched.triggers("cpu>p99")
    ordinary = [float(number % 50) for number in range(HOUR_LOOKS)]
    assert not any(watched.look(made, cpu=value) for value in ordinary[:-1])
    assert not any(watched.look(made, cpu=99) for _ in range(1)), "an hour is not over"
    assert [watched.look(made, cpu=value) for value in (99, 98, 10, 99, 98)] == [""] * 5
    assert watched.look(made, cpu=120) == "cpu>p99 (120 %)"


def test_percentile_is_that_of_the_last_day(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_DAY_LOOKS", HOUR_LOOKS)
    made = Triggers([condition("cpu>p50")], 0, watched.read, say_at)
    made._day = type(made._day)(maxlen=HOUR_LOOKS)
    made.pids = [1]
    for value in [1000.0] * HOUR_LOOKS + [10.0] * HOUR_LOOKS:
        assert watched.look(made, cpu=value) == ""
    assert made._ordered == [10.0] * HOUR_LOOKS
    assert [watched.look(made, cpu=20.0) != "" for _ in range(3)] == [False, False, True]


def test_look_that_costs_much_comes_less_often(watched: Watched) -> None:
    made = watched.triggers("cpu>80")
    watched.cost_s = 0.1
    for _ in range(40):
        watched.look(made, cpu=1)
    share = watched.looks * watched.cost_s / (40 * LOOK_S)
    assert 0.002 < share <= 0.0055


def test_look_waits_a_second_while_a_thread_is_held(watched: Watched) -> None:
    made = watched.triggers("cpu>80")

    def collect() -> None:
        pass

    PENDING_STOPS.add(collect)
    try:
        watched.values = {"cpu": 99.0}
        made._due_s = watched.now_s
        assert not made.is_due()
        watched.now_s += 0.9
        assert not made.is_due()
        watched.now_s += 0.2
        assert made.is_due()
    finally:
        PENDING_STOPS.remove(collect)


def test_metric_without_a_value_is_said_once(watched: Watched, capsys: pytest.CaptureFixture[str]) -> None:
    made = watched.triggers("cpu>80", "psi.cpu>20")
    lines = []
    for _ in range(5):
        watched.look(made, cpu=1)
        lines.append(len(capsys.readouterr().err.splitlines()))
    assert lines == [0, 0, 2, 0, 0]
