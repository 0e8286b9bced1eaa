"""The wait for the second look includes the naming of the first."""

from types import SimpleNamespace

import pytest

from sfsample.dumping import run
from sfsample.dumping.options import DumpOptions


@pytest.mark.parametrize(("naming_s", "slept_s"), [(0.0, 0.05), (0.02, 0.03), (0.07, 0.0)])
def test_wait_includes_the_naming(monkeypatch: pytest.MonkeyPatch, naming_s: float, slept_s: float) -> None:
    now, looks = [100.0], list[float]()

    def pass_time(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(run, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=pass_time))
    dumper = SimpleNamespace(look=lambda _stop: looks.append(now[0]), result=lambda *_: None)
    dump = run._Run(DumpOptions(), lambda: False, follow=False)
    monkeypatch.setattr(dump, "_open_all", lambda _pids, _how: dump._dumpers.update({1: dumper}))
    monkeypatch.setattr(dump, "_result", lambda *_: None)
    dump.run([1], lambda _dumps: pass_time(naming_s))
    assert looks == pytest.approx([100.0, 100.0 + naming_s + slept_s])
