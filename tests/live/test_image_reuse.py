"""A watch opens the files of its target once, not again in each slice."""

import os
import subprocess
import sys

import pytest

from sfsample.process import image_cache
from tests.builders.watches import watch_of

pytestmark = [pytest.mark.live, pytest.mark.any_load]


def test_second_slice_opens_no_file_again(tmp_path, monkeypatch):
    opened = []
    image = image_cache.ElfImage
    monkeypatch.setattr(image_cache, "ElfImage", lambda *given: opened.append(given[1]) or image(*given))
    with subprocess.Popen([sys.executable, "-c", "print('ready', flush=True); input()"],
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE) as target:  # fmt: skip
        target.stdout.readline()
        recorder = watch_of("-p", str(target.pid), "--output-dir", str(tmp_path))._recorder
        recorder._sinks = []
        numbers = []
        for _ in range(2):
            assert recorder.record([target.pid], 0.3, lambda: False, None).samples
            numbers.append(len(opened))
        assert os.path.exists(f"/proc/{target.pid}")
        target.communicate(b"\n")
    assert target.returncode == 0
    assert numbers[0] == numbers[1] > 1
