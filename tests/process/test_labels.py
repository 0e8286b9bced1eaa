"""Labels come from the kernel, a few variables and the process context, and are bounded."""

import ctypes
import os
import shutil
import subprocess
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest

from sfsample.formats.elf.image import ElfImage
from sfsample.formats.protobuf import integer, message
from sfsample.process.image_cache import ImageCache
from sfsample.process.labels import _HEADER, Identity, identify
from sfsample.process.procfs import ProcFs
from tests.builders.maps import parse_maps

ID, POD = "0123456789abcdef" * 4, "01234567-89ab-cdef-0123-456789abcdef"
PODS = f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{POD.replace('-', '_')}.slice"


class Stored(ProcFs):
    """This process, with other files in /proc, and other mappings."""

    def __init__(self, maps: str, files: dict[str, bytes | None]) -> None:
        super().__init__(os.getpid())
        self._files, self._lines = files, maps

    def read(self, name, chunks=None):
        name = name.rpartition("/")[2]
        return self._files[name] if name in self._files else super().read(name, chunks)

    def maps(self):
        return parse_maps(self._lines)


def identity(files: dict[str, bytes | None], maps: str = "", *, environ: bool = True) -> Identity:
    with closing(Stored(maps, {"environ": b"", **files})) as proc:
        return identify(SimpleNamespace(proc=proc), ImageCache(), environ=environ)


def added(files: dict[str, bytes | None], maps: str = "") -> dict[str, str]:
    """Return the labels that the kernel does not give."""
    kernel = identity({}).labels
    return {k: v for k, v in identity(files, maps).labels.items() if kernel.get(k) != v}


# -- facts of the kernel


@pytest.mark.parametrize("end", ["is there", "deleted", "another file is there"])
def test_program_that_is_called_deleted(tmp_path, end):
    path = tmp_path / "x (deleted)" if end == "is there" else tmp_path / "x"
    shutil.copy(shutil.which("sleep"), path)
    with subprocess.Popen([path, "1000"]) as program, closing(ProcFs(program.pid)) as proc:
        try:
            if end != "is there":
                path.unlink()
            if end == "another file is there":
                (tmp_path / "x (deleted)").touch()
            assert os.readlink(f"/proc/{program.pid}/exe") == f"{tmp_path}/x (deleted)"
            assert proc.exe_path() == str(path)
        finally:
            program.kill()


UID = os.getuid()


@pytest.mark.parametrize(("cgroup", "owner"), [
    ("0::/system.slice/nginx.service", "nginx.service"),
    ("0::/system.slice/system-getty.slice/getty@1.service", "getty@1.service"),
    ("0::/system.slice/web.service/nginx.service", "web.service"),  # a group that web.service has made
    ("0::/user.slice/user-1000.slice/user@1000.service/app.slice/nginx.service", "user-1000"),
    ("0::/user.slice/user-1000.slice/session-3.scope", f"user-{UID}"),
    (f"0::/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{ID}.scope", "user-1000"),
    (f"0::/system.slice/docker-{ID}.scope", "container"),
    (f"0::/system.slice/docker-{ID}.scope/system.slice/nginx.service", "container"),
    (f"0::/docker/{ID}", "container"),
    (f"0::{PODS}/cri-containerd-{ID}.scope", "container"),
    (f"0::/system.slice/shop.service/libpod-payload-{ID}", "shop.service"),
    ("4:memory:/system.slice/fake.service\n1:name=systemd:/\n0::/", f"user-{UID}"),  # a user may own it
    ("4:memory:/x\n1:name=systemd:/system.slice/cron.service\n0::/", "cron.service"),
    ("0::/", f"user-{UID}"),
    ("", f"user-{UID}"),
])  # fmt: skip
def test_owner_is_what_only_root_can_choose(cgroup, owner):
    assert identity({"cgroup": f"{cgroup}\n".encode()}).owner == owner


def test_owner_is_the_user_who_started_a_setuid_program():
    status = b"Name:\tx\nUid:\t1000\t0\t0\t0\n"
    assert identity({"cgroup": b"0::/\n", "status": status}).owner == "user-1000"
    assert identity({"cgroup": b"0::/\n", "status": b""}).owner is None


def test_own_process_is_identified():
    known = identity({})
    comm = Path("/proc/self/comm").read_text().rstrip("\n")
    with open("/proc/self/exe", "rb") as file:
        build_id = ElfImage(file.read(), "exe").build_id
    assert (known.exe, known.build_id) == (os.readlink("/proc/self/exe"), build_id)
    assert known.labels["comm"] == comm
    assert known.labels["host.name"] == os.uname().nodename
    assert known.labels.get("process.executable.build_id.gnu") == build_id
    assert known.started is not None
    assert 0 < known.started <= os.stat("/proc/self/stat").st_mtime + 1
    assert not any(value == str(os.getpid()) for value in known.labels.values())


@pytest.mark.parametrize(("cgroup", "unit", "container", "pod"), [
    ("0::/system.slice/nginx.service\n", "nginx.service", None, None),
    ("0::/system.slice/nginx.service/workers\n", "nginx.service", None, None),
    ("0::/user.slice/user-1000.slice/user@1000.service/app.slice/app-a.scope\n", "app-a.scope", None, None),
    (f"0::/system.slice/docker-{ID}.scope\n", f"docker-{ID}.scope", ID, None),
    (f"12:cpu:/docker/{ID}\n1:name=systemd:/docker/{ID}\n0::/\n", None, ID, None),
    (f"0::{PODS}/cri-containerd-{ID}.scope\n", f"cri-containerd-{ID}.scope", ID, POD),
    (f"0::{PODS}/crio-{ID}.scope/container\n", f"crio-{ID}.scope", ID, POD),
    (f"0::/kubepods/besteffort/pod{POD}/{ID}\n", None, ID, POD),
    (f"0::/machine.slice/libpod-{ID}.scope\n", f"libpod-{ID}.scope", ID, None),
    (f"0::/a:cri-containerd:{ID}\n", None, ID, None),
    (f"0::/docker-{ID}0.scope/podx\n", f"docker-{ID}0.scope", None, None),
    (f"0::/machine.slice/libpod-conmon-{ID}.scope\n", f"libpod-conmon-{ID}.scope", None, None),
    ("0::/\n", None, None, None),
    ("no colon\n\n:\n", None, None, None),
])  # fmt: skip
def test_control_group_names_unit_container_and_pod(cgroup, unit, container, pod):
    known = identity({"cgroup": cgroup.encode()})
    assert (known.unit, known.container) == (unit, container)
    assert known.labels.get("systemd.unit") == unit
    assert known.labels.get("container.id") == container
    assert known.labels.get("k8s.pod.uid") == pod


def test_what_cannot_be_read_is_absent():
    known = identity({"cgroup": None, "environ": None, "stat": None})
    assert (known.unit, known.started) == (None, None)
    assert set(known.labels) <= {"host.name", "process.executable.build_id.gnu"}


# -- the environment


def test_only_named_variables_are_kept():
    environment = b"A=1\0DD_ENV=prod\0DD_SERVICE=shop\0XDD_VERSION=2\0SECRET=DD_VERSION=3\0DD_VERSION\0"
    assert added({"environ": environment}) == {"deployment.environment.name": "prod", "service.name": "shop"}


def test_attributes_are_percent_encoded_and_the_later_variable_wins():
    attributes = "team=a%20b, service.name=no ,k8s.pod/x=%C3%A4,empty=,=x,none,1st=1,process.pid=7"
    environment = f"OTEL_SERVICE_NAME=shop\0OTEL_RESOURCE_ATTRIBUTES={attributes}\0".encode()
    found = {"team": "a b", "service.name": "shop", "k8s.pod_x": "ä"}
    assert added({"environ": environment}) == found
    assert added({"environ": environment + b"DD_SERVICE=dd\0"}) == found | {"service.name": "dd"}


def test_no_environ_reads_no_variable():
    assert "service.name" in identity({"environ": b"DD_SERVICE=shop\0"}).labels
    assert "service.name" not in identity({"environ": b"DD_SERVICE=shop\0"}, environ=False).labels


def test_hostile_environment_gives_bounded_labels():
    many = ",".join(f"k{n}=v" for n in range(100_000)).encode()
    assert len(added({"environ": b"OTEL_RESOURCE_ATTRIBUTES=" + many})) <= 64
    long = added({"environ": b"OTEL_RESOURCE_ATTRIBUTES=" + b"k" * 9999 + b"=" + b"v" * 40_000})
    assert [(len(key), len(value)) for key, value in long.items()] == [(128, 512)]
    assert added({"environ": b"\0" * (1 << 20) + b"DD_ENV=\xff\xfe\n\0DD_ENV=second"}) == {
        "deployment.environment.name": "\ufffd\ufffd"
    }


# -- the process context


def attribute(key: bytes, value: bytes) -> bytes:
    return message(1, message(1, message(1, key), message(2, value)))


def context(payload: bytes, name: str = "[anon:OTEL_CTX]", **changes: int) -> tuple[str, object]:
    """Return the line of a memory map for a context in this process, and what keeps it in memory."""
    size = _HEADER.size + len(payload)
    memory = ctypes.create_string_buffer(size)
    start = ctypes.addressof(memory)
    fields = {"signature": b"OTEL_CTX", "version": 2, "size": len(payload), "published": 1,
              "at": start + _HEADER.size} | changes  # fmt: skip
    memory.raw = _HEADER.pack(*fields.values()) + payload
    return f"{start:x}-{start + size:x} rw-p 00000000 00:01 9 {name}\n", memory


PAYLOAD = attribute(b"service.name", message(1, b"shop")) + message(2, message(1, b"threadlocal.x"))


@pytest.mark.parametrize("name", ["[anon:OTEL_CTX]", "[anon_shmem:OTEL_CTX]", "/memfd:OTEL_CTX (deleted)"])
def test_process_context_is_read_and_wins_over_the_environment(name):
    maps, _memory = context(PAYLOAD, name)
    assert added({"environ": b"DD_SERVICE=dd\0DD_ENV=e\0"}, maps) == {
        "service.name": "shop", "deployment.environment.name": "e"}  # fmt: skip


def test_values_are_texts_booleans_and_integers():
    payload = b"".join([
        attribute(b"b", integer(2, 1)), attribute(b"i", integer(3, -5)),
        attribute(b"list", message(5, message(1, message(1, b"x")))), attribute(b"bytes", message(7, b"x")),
        attribute(b"process.command_args", message(1, b"--password=x")), attribute(b"none", b""),
        attribute(b"", message(1, b"x")), attribute(b"text", message(1, b"\xff")),
    ])  # fmt: skip
    maps, _memory = context(payload)
    assert added({}, maps) == {"b": "true", "i": "-5", "text": "\ufffd"}


@pytest.mark.parametrize("changes", [
    {"signature": b"OTEL_CTY"}, {"version": 1}, {"version": 3}, {"size": 0}, {"size": 1 << 31},
    {"size": (1 << 32) - 1}, {"published": 0}, {"at": 0}, {"at": 1 << 63}, {"at": (1 << 64) - 1},
], ids=str)  # fmt: skip
def test_damaged_header_gives_no_label(changes):
    maps, _memory = context(PAYLOAD, **changes)
    assert added({}, maps) == {}


def test_payload_that_is_the_header_itself_gives_no_label():
    maps, memory = context(PAYLOAD)
    maps, memory = context(PAYLOAD, at=ctypes.addressof(memory))
    assert added({}, maps) == {}


@pytest.mark.parametrize("payload", [
    PAYLOAD[:-1], b"\xff" * 100, integer(1, 7), message(1, integer(1, 7)),
    message(1, message(1, integer(1, 1))),
    message(1, message(1, message(1, b"k"), integer(2, 7))), message(1, *[message(1, b"\x08") for _ in "ab"]),
], ids=repr)  # fmt: skip
def test_damaged_payload_gives_no_label(payload):
    maps, _memory = context(payload)
    assert added({}, maps) == {}


def test_number_of_contexts_and_attributes_is_bounded():
    payload = b"".join(attribute(f"k{n}".encode(), message(1, b"v")) for n in range(4000))
    maps, _memory = context(payload)
    assert len(added({}, maps)) == 64
    bad, _other = context(PAYLOAD, version=9)
    assert added({}, bad * 3 + maps)
    assert added({}, bad * 10_000 + maps) == {}
