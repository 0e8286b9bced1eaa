"""Finds the labels of a profile: facts about a process, from the kernel and from the process itself.

The sources are the kernel, a few environment variables, and the process context that OpenTelemetry specifies.
If two sources have the same label, the later source in this list wins.  A label does not change while the
process lives; the pid is no label.

Invariant: whatever the target stores, the result is a bounded dictionary of texts, and an unreadable fact is
absent (tests/process/test_labels.py).  The texts may have control characters, which the report removes.

Source: proc(5); systemd.unit(5); OpenTelemetry semantic conventions (names of the labels), resource SDK
(OTEL_RESOURCE_ATTRIBUTES), OTEP 4719, process_context.proto, resource.proto, common.proto (field numbers).
"""

import os
import re
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import islice
from struct import Struct
from typing import NamedTuple

from sfsample.errors import FormatError, TargetError
from sfsample.formats.protobuf import fields, signed
from sfsample.process.image_cache import ImageCache
from sfsample.process.proc_text import container_ids, control_group_paths, pod_uids
from sfsample.process.process import LiveProcess
from sfsample.process.procfs import ProcFs
from sfsample.process.vm import read_memory

_MAX_LABELS = 64  # labels from one source in the target
_MAX_KEY, _MAX_VALUE = 128, 512  # characters
_MAX_CHUNKS = 4  # MiB of an environment that sfsample reads
_MAX_PAYLOAD_BYTES = 1 << 16  # size of a process context
_MAX_CONTEXTS = 4  # mappings with the context's name that sfsample tries; normally one mapping
_MAX_READINGS = 3  # readings of a context that the target is changing
_VARIABLES = {"DD_SERVICE": "service.name", "DD_ENV": "deployment.environment.name",
              "DD_VERSION": "service.version"}  # fmt: skip
_WANTED = re.compile(
    rb"\0(OTEL_RESOURCE_ATTRIBUTES|OTEL_SERVICE_NAME|DD_SERVICE|DD_ENV|DD_VERSION)=([^\0]{1,65536})"
)
_CONTEXT_PATHS = ("[anon:OTEL_CTX]", "[anon_shmem:OTEL_CTX]", "/memfd:OTEL_CTX")
_HEADER = Struct("=8sIIQQ")  # signature, version, size of the payload, time of publication, address
_SIGNATURE, _VERSION = b"OTEL_CTX", 2
_UNIT = re.compile(r".+\.(?:service|scope)")
MANAGER = re.compile(r"user@(\d+)\.service")  # group below which a user can create any control groups
# systemd's control group of a process: the first group below the slices; only root can create it
_GROUP = re.compile(r"^\d+:(?:name=systemd)?:/(?:[^/\n]+\.slice/)*([^/\n]+)", re.MULTILINE)
_BAD_IN_KEY = re.compile(r"[^a-zA-Z0-9_.]")


class Identity(NamedTuple):
    """The labels of a process, its program and its owner; None: unknown."""

    labels: dict[str, str]
    exe: str | None = None
    build_id: str | None = None
    unit: str | None = None
    container: str | None = None
    started: float | None = None  # start time in seconds since the epoch
    owner: str | None = None  # system unit, "container" or "user-UID"; a process cannot choose its owner


def identify(process: LiveProcess, images: ImageCache, *, environ: bool) -> Identity:
    """Return the identity of a process; `environ` False: do not read its environment."""
    proc = process.proc
    known = Identity({})
    with suppress(TargetError):
        known = _kernel_facts(proc, images)
    for source in (_environment, _context) if environ else (_context,):
        with suppress(TargetError, FormatError):
            known.labels.update(dict(_usable(source(proc))))
    return known


def _kernel_facts(proc: ProcFs, images: ImageCache) -> Identity:
    stat, exe = proc.stat(), proc.exe_path()
    text = (proc.read("cgroup") or b"").decode("utf-8", "replace")
    paths, build_id = control_group_paths(text), _build_id(proc, images, exe or "")
    unit = next((name for path in paths for name in reversed(path.split("/")) if _UNIT.fullmatch(name)), None)
    container, pod = (next(reversed(ids), None) for ids in (container_ids(text), pod_uids(text)))
    labels = {
        "host.name": os.uname().nodename,
        "comm": stat.name if stat else None,
        "process.executable.build_id.gnu": build_id,
        "systemd.unit": unit,
        "process.linux.cgroup": paths[0] if paths else None,
        "container.id": container,
        "k8s.pod.uid": pod,
    }
    booted = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    started = round(booted + stat.starttime / os.sysconf("SC_CLK_TCK"), 2) if stat else None
    known = {key: text[:_MAX_VALUE] for key, text in labels.items() if text}
    owner = _owner(text, container, proc.status().get("Uid", "").split())
    return Identity(known, exe, build_id, unit, container, started, owner)


def _owner(cgroup: str, container: str | None, uids: list[str]) -> str | None:
    """Return the owner of a process; it stays the same when the service or its container is restarted."""
    group = found[1] if (found := _GROUP.search(cgroup)) else ""
    if manager := MANAGER.fullmatch(group):
        return f"user-{manager[1]}"
    if group.endswith(".service"):
        return group
    # the first uid is the real uid, which stays the same when a setuid program runs
    return "container" if container else f"user-{uids[0]}" if uids else None


def _build_id(proc: ProcFs, images: ImageCache, path: str) -> str | None:
    """Return the build-id of the program, from the file that the kernel runs, whatever its path is now."""
    with suppress(FormatError, OSError, ValueError), proc.open_exe() as file:
        return images.file(file.fileno(), path).build_id
    return None


def _usable(found: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Yield the labels except `process.*`: the kernel's facts are more reliable, and pids change."""
    for key, value in islice(found, _MAX_LABELS):
        name = _BAD_IN_KEY.sub("_", key[:_MAX_KEY])
        if value and name and not name[0].isdecimal() and not name.startswith("process."):
            yield name, value[:_MAX_VALUE]


# -- the environment


def _environment(proc: ProcFs) -> Iterator[tuple[str, str]]:
    """Yield labels from the variables of `_WANTED`, and from no other variable."""
    from urllib.parse import unquote

    data = b"\0" + (proc.read(f"task/{proc.anchor()}/environ", _MAX_CHUNKS) or b"")
    pairs = reversed(_WANTED.findall(data))  # the first variable of a name wins, as in getenv(3)
    found = {name.decode(): value.decode("utf-8", "replace") for name, value in pairs}
    for item in found.get("OTEL_RESOURCE_ATTRIBUTES", "").split(",")[: _MAX_LABELS // 2]:
        key, _, value = item.partition("=")
        yield unquote(key.strip()), unquote(value.strip())
    for name, key in {"OTEL_SERVICE_NAME": "service.name", **_VARIABLES}.items():
        yield key, found.get(name, "").strip()


# -- the process context of OpenTelemetry


def _context(proc: ProcFs) -> Iterator[tuple[str, str]]:
    """Yield the resource attributes that the process has published.  Raises FormatError for damaged data."""
    named = (mapping.start for mapping in proc.maps() if mapping.path in _CONTEXT_PATHS)
    payloads = (_payload(proc.anchor(), start) for start in islice(named, _MAX_CONTEXTS))
    payload = next(filter(None, payloads), b"")
    attributes = [
        value
        for number, resource in fields(memoryview(payload)) if number == 1  # resource
        for field, value in _messages(resource) if field == 1  # attributes
    ]  # fmt: skip
    for attribute in attributes[:_MAX_LABELS]:
        pair = dict(_messages(attribute))
        key, value = pair.get(1), pair.get(2)  # key, value
        if isinstance(key, memoryview) and value is not None:
            yield bytes(key).decode("utf-8", "replace"), _any_value(value)


def _messages(value: int | memoryview) -> Iterator[tuple[int, int | memoryview]]:
    return iter(()) if isinstance(value, int) else fields(value)


def _any_value(value: int | memoryview) -> str:
    """Return the text of an AnyValue that is a text, a boolean or an integer; "" for other kinds."""
    for number, content in _messages(value):
        if number == 1 and isinstance(content, memoryview):  # string_value
            return bytes(content).decode("utf-8", "replace")
        if number in (2, 3) and isinstance(content, int):  # bool_value, int_value
            return str(signed(content)) if number == 3 else str(bool(content)).lower()
    return ""


def _payload(tid: int, address: int) -> bytes | None:
    """Return the payload of the context at an address; None: no context, or a context that keeps changing.

    While the process changes the context, the time of publication is 0.  After a change, the time is new.
    """
    for _ in range(_MAX_READINGS):
        header = read_memory(tid, address, _HEADER.size)
        signature, version, size, published, at = _HEADER.unpack(header or bytes(_HEADER.size))
        if (signature, version) != (_SIGNATURE, _VERSION) or not 0 < size <= _MAX_PAYLOAD_BYTES:
            return None
        payload = read_memory(tid, at, size) if published else None
        if payload is not None and read_memory(tid, address, _HEADER.size) == header:
            return payload
    return None
