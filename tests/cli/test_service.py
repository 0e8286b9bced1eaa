"""The unit is one that systemd calls safe; it runs `watch` with a configuration that was checked."""

import re
import shutil
import socket
import subprocess

import pytest

from sfsample.cli import main, service
from sfsample.watching.program import notify

needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
MAX_EXPOSURE = 3.0  # of 10


@pytest.fixture
def shown(capsys) -> str:
    assert main(["service", "show", "--config", "/etc/a b%.toml"]) == 0
    return capsys.readouterr().out


def test_unit_runs_the_configuration(shown):
    [command] = re.findall(r"^ExecStart=(.*)", shown, re.MULTILINE)
    assert command.endswith(" watch --config '/etc/a b%%.toml'")
    assert command.startswith("/")


@needs_systemd
def test_systemd_calls_the_unit_safe(shown, tmp_path):
    path = tmp_path / "sfsample.service"
    path.write_text(shown)
    command = ["systemd-analyze", "security", "--offline=true", path]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    if "unrecognized option" in answer.stderr:
        pytest.skip("this systemd-analyze needs a running systemd")
    [exposure] = re.findall(r"exposure level for sfsample.service: ([\d.]+)", answer.stdout)
    assert float(exposure) < MAX_EXPOSURE


def test_install_writes_it_once(tmp_path, monkeypatch, capsys):
    unit, config = tmp_path / "sfsample.service", tmp_path / "watch.toml"
    config.write_text('pid = 1\noutput-dir = "/tmp"\n')
    monkeypatch.setattr(service, "_UNIT_FILE", str(unit))
    words = ["service", "install", "--config", str(config)]
    assert main(words) == 0
    assert str(config) in unit.read_text()
    assert unit.stat().st_mode & 0o777 == 0o644
    assert main(words) == 1
    assert f"exists: {unit}" in capsys.readouterr().err
    assert main([*words, "--force"]) == 0


PUSHED = 'push = ["parca=http://10.0.0.7:7070", "otlp=http://[::1]:4318"]\n'


@pytest.mark.parametrize(
    ("flags", "lines"),
    [
        ("", ["RestrictAddressFamilies=AF_UNIX", "IPAddressDeny=any"]),
        (PUSHED, ["RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6"]),
        ('listen = "127.0.0.1:6060"\n', ["RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6"]),
        ('listen = "unix:/run/x"\n', ["RestrictAddressFamilies=AF_UNIX", "IPAddressDeny=any"]),
        ('push = "parca=https://db"\npush-auth-file = "/etc/a%"\n',
         ["RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6", "LoadCredential=push-auth:/etc/a%%"]),
    ],
)  # fmt: skip
def test_unit_has_a_network_where_flags_need_one(tmp_path, capsys, flags, lines):
    config = tmp_path / "watch.toml"
    config.write_text(f"pid = 1\n{flags}")
    assert main(["service", "show", "--config", str(config)]) == 0
    found = capsys.readouterr().out.splitlines()
    assert [line for line in found if line.startswith(("RestrictAddress", "IPAddress", "Load"))] == lines


def test_install_checks_the_configuration_first(tmp_path, monkeypatch):
    unit, config = tmp_path / "sfsample.service", tmp_path / "watch.toml"
    config.write_text('evry = "3s"\n')
    monkeypatch.setattr(service, "_UNIT_FILE", str(unit))
    assert main(["service", "install", "--config", str(config)]) == 2
    assert not unit.exists()


@pytest.mark.parametrize("abstract", [False, True])
def test_notify_reaches_systemd(tmp_path, monkeypatch, abstract):
    name = f"@{tmp_path}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(name.replace("@", "\0", 1))
        monkeypatch.setenv("NOTIFY_SOCKET", name)
        notify("STATUS=7 samples")
        assert receiver.recv(1000) == b"STATUS=7 samples"


@pytest.mark.parametrize("name", ["", "/no/such/socket", "relative", "@"])
def test_notify_without_systemd_does_nothing(monkeypatch, name):
    monkeypatch.setenv("NOTIFY_SOCKET", name)
    notify("READY=1")
