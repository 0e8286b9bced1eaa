"""Google's pprof gets a profile through the pull door, over HTTP."""

import re

import pytest

from tests.consumers import tools
from tests.live.targets import fixture, running
from tests.live.test_cli_pull import watching

pytestmark = pytest.mark.extended


def test_pprof_fetches_a_profile(tmp_path):
    with running(fixture("v3"), "leaf") as target:
        words = ["-p", target.pid, "--every", "1h", "--for", "1h", "--output-dir", tmp_path / "slices"]
        with watching(*words) as (_, where):
            url = f"{where}/debug/pprof/profile?seconds=2&mode=wall"
            command = [*tools.pprof(), "-raw", url]
            shown = tools.run(command, env={"PPROF_TMPDIR": str(tmp_path), "PATH": "/usr/bin:/bin"})
    assert "samples/count[dflt]" in shown
    assert re.search(r"^ +[1-9]\d* +\d+ +\d+: 1 ", shown, flags=re.MULTILINE)
    assert "leaf_spin" in shown
