"""`sfsample service`: shows or installs a systemd unit that runs `sfsample watch` with few privileges.

All flags of the watch come from a TOML file (cli/config.py), so new flags need no new unit.

Source: systemd.exec(5), systemd.service(5), systemd.resource-control(5).
"""

import os
import shlex
from collections.abc import Iterator

from sfsample.cli.file_options import ServiceCommand
from sfsample.cli.options import Command
from sfsample.cli.output_file import Output
from sfsample.cli.parse import parse
from sfsample.cli.terminal import say
from sfsample.cli.watch_options import WatchCommand
from sfsample.errors import SfsampleError
from sfsample.watching.own_program import own_program

_UNIT_FILE = "/etc/systemd/system/sfsample.service"
_UNIT = """\
# Written by `sfsample service`; explained in docs/service.md.
[Unit]
Description=sfsample: profiles of services, for months
After=network.target

[Service]
Type=notify
ExecStart={command}
ExecReload=/bin/sh -c "kill -HUP ${{MAINPID}}"
Restart=on-failure
RestartSec=30
WatchdogSec=5min
TimeoutStopSec=30

# sfsample may read the processes of all users, but change nothing.
DynamicUser=yes
User=sfsample
StateDirectory=sfsample
StateDirectoryMode=0700
UMask=0077
AmbientCapabilities=CAP_SYS_PTRACE CAP_PERFMON
CapabilityBoundingSet=CAP_SYS_PTRACE CAP_PERFMON
NoNewPrivileges=yes
SystemCallArchitectures=native
SystemCallFilter=@system-service @debug
SystemCallErrorNumber=EPERM
{network}
ProtectSystem=strict
ProtectHome=read-only
PrivateTmp=yes
PrivateDevices=yes
ProtectKernelTunables=yes
ProtectKernelModules=yes
ProtectKernelLogs=yes
ProtectControlGroups=yes
ProtectClock=yes
ProtectHostname=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
KeyringMode=private

# sfsample must not become the load that it measures.
Nice=5
CPUQuota=20%
MemoryMax=512M
TasksMax=64

[Install]
WantedBy=multi-user.target
"""


def run(command: ServiceCommand) -> int:
    """Print the unit, or write the unit and print the next command; return the exit code."""
    config, watch = os.path.abspath(command.config), Command()
    if command.action == "install" and not os.path.lexists(config):
        raise SfsampleError(f"no configuration: {config}", "to write one, for the 20 busiest processes:",
                            f"mkdir -p {shlex.quote(os.path.dirname(config))} && "
                            f"echo 'busiest = 20' > {shlex.quote(config)}")  # fmt: skip
    if command.action == "install" or os.path.exists(config):
        watch = parse(["watch", "--config", config])  # shows a mistake now, not when the service starts
    text = unit(config, watch)
    if command.action == "show":
        Output("-").write(text)
        return 0
    if os.path.lexists(_UNIT_FILE) and not command.force:
        raise SfsampleError(
            f"exists: {_UNIT_FILE}", "--force replaces it; `sfsample service show` prints the new one"
        )
    Output(_UNIT_FILE).write(text)
    os.chmod(_UNIT_FILE, 0o644)
    say(f"written: {_UNIT_FILE}", "to start it now and at each boot:",
        "systemctl daemon-reload && systemctl enable --now sfsample")  # fmt: skip
    return 0


def unit(config: str, watch: Command) -> str:
    """Return the unit that runs `sfsample watch --config CONFIG`.  `watch`: the parsed command."""
    command = shlex.join(own_program("watch", "--config", config))
    return _UNIT.format(command=command.replace("%", "%%"), network="\n".join(_network(watch)))


def _network(watch: Command) -> Iterator[str]:
    """Yield the lines about the network; only --push and --listen need a network."""
    options = watch.options if isinstance(watch, WatchCommand) else WatchCommand().options
    if not (options.push.backends or isinstance(options.listen.address, tuple)):
        yield "RestrictAddressFamilies=AF_UNIX"
        yield "IPAddressDeny=any"
        return
    yield "RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6"
    if options.push.auth_file is not None:
        yield f"LoadCredential=push-auth:{os.path.abspath(options.push.auth_file)}".replace("%", "%%")
