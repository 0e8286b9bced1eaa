"""A saved stack has what its Python frames need: `sfsample replay` places and names them again."""

import json
from pathlib import Path

import pytest

from sfsample.cli import main
from sfsample.errors import FormatError
from sfsample.process.capture import CapturedStack, ThreadCapturer
from sfsample.process.process import LiveProcess
from sfsample.recording.keep_bad import keep_bad
from sfsample.saved_stacks.format import from_json
from sfsample.saved_stacks.replay import replay
from sfsample.saved_stacks.store import BadStackStore
from sfsample.unwind.unwinder import Unwinder
from tests.live.pythons import PYTHONS
from tests.live.targets import assert_untraced
from tests.live.test_python_frames import started

pytestmark = [pytest.mark.live, pytest.mark.any_load]


@pytest.mark.parametrize("python", PYTHONS, ids=str)
def test_replay_places_python_frames_as_they_were(
    python: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with started(python) as (target, truth):
        process, tid = LiveProcess(target.pid, attach=False), int(next(iter(truth)))
        capturer = ThreadCapturer(process, Unwinder(process.modules), stop=False, python=True)
        captured = capturer.capture(process.thread(tid), "S")
        assert isinstance(captured, CapturedStack)
        assert captured.python is not None
        assert captured.python.is_whole
        cut = captured._replace(python=captured.python._replace(is_whole=False))
        store = BadStackStore(str(tmp_path))
        keep_bad(store, process, "name", captured)
        assert not store.written  # nothing is missing
        keep_bad(store, process, "name", cut)
        process.close()
        assert_untraced(target.pid)
    [path] = tmp_path.glob("python-*.json")
    saved = from_json(path.read_text(encoding="utf-8"))
    assert saved.stop_reason == "python"
    assert replay(saved).python == captured.python

    assert main(["replay", str(path)]) == 0
    text = capsys.readouterr().out.splitlines()
    assert text[1].endswith(" frames, python")
    assert text[2].endswith(" frames, outermost")
    assert sum(line.startswith("  py") for line in text) == len(truth[str(tid)])
    assert main(["replay", str(path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["now"]["python"]
    assert [[frame["file"], frame["function"], frame["line"]] for frame in found] == truth[str(tid)]

    document = json.loads(path.read_text(encoding="utf-8"))
    for change in ({"minor": 99}, {"minor": "x"}, {"states": ["-0x1"]}, {"names": [["0x1"]]}, {"table": "?"}):
        with pytest.raises(FormatError, match="is damaged"):
            from_json(json.dumps(document | {"python": document["python"] | change}))
    assert replay(from_json(json.dumps({**document, "python": None}))).python is None
