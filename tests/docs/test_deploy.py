"""The DaemonSet gives sfsample flags that it has, and no more rights than docs/containers.md explains."""

import subprocess
from pathlib import Path

import pytest
import yaml

from sfsample.cli import main
from sfsample.cli.parse import parse

ROOT = Path(__file__).parents[2]
DOCUMENT = yaml.safe_load((ROOT / "deploy" / "daemonset.yaml").read_text())
POD = DOCUMENT["spec"]["template"]["spec"]
[CONTAINER] = POD["containers"]


def test_arguments_are_those_of_watch(capsys):
    assert main([*CONTAINER["args"], "--check"]) == 0
    assert capsys.readouterr().err == "sfsample: flags: no mistake found\n"


def test_what_it_writes_and_reads_is_mounted():
    command = parse(CONTAINER["args"])
    listen = command.options.listen
    mounts = {mount["mountPath"]: mount for mount in CONTAINER["volumeMounts"]}
    assert {volume["name"] for volume in POD["volumes"]} == {mount["name"] for mount in mounts.values()}
    assert str(Path(command.history).parent) in mounts
    assert str(Path(listen.token_file).parent) in mounts
    [secret] = [volume["secret"] for volume in POD["volumes"] if "secret" in volume]
    assert secret["defaultMode"] == 0o400, "sfsample refuses a token that others can read"
    assert CONTAINER["ports"][0]["containerPort"] == listen.address[1]


def test_rights_are_two_capabilities():
    rights = CONTAINER["securityContext"]
    assert rights["capabilities"] == {"drop": ["ALL"], "add": ["SYS_PTRACE", "PERFMON"]}
    assert rights["readOnlyRootFilesystem"]
    assert not rights["allowPrivilegeEscalation"]
    assert not {"privileged"} & rights.keys()
    assert not {"hostNetwork", "hostIPC"} & POD.keys()


@pytest.mark.parametrize("probe", ["startupProbe", "livenessProbe"])
def test_probe_is_a_program(probe):
    _python, _c, code = CONTAINER[probe]["exec"]["command"]
    compile(code, probe, "exec")
    assert CONTAINER[probe]["failureThreshold"]


def test_image_has_all_that_the_package_needs():
    """The files that COPY names are in the repository, and those that the build of the package reads."""
    lines = (ROOT / "deploy" / "Dockerfile").read_text().splitlines()
    copied = [
        word
        for line in lines
        if line.startswith("COPY ") and "--from" not in line
        for word in line.split()[1:-1]
    ]
    listed = subprocess.run(
        ["git", "ls-files", *copied], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert all(
        any(name == path or name.startswith(f"{path}/") for name in listed.splitlines()) for path in copied
    )
    assert {"pyproject.toml", "README.md", "LICENSE", "sfsample"} <= {*copied}
