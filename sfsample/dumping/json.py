"""Converts a dump to the values of a JSON document, schema sfsample.dump/1.

Unknown values are null.  Texts of the target are not cleaned, because JSON escapes control characters.
Invariant: keys and types stay as documented (tests/live/test_cli_dump.py).
"""

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from sfsample.core.stack import Frame
from sfsample.dumping.diagnose.go_waits import Waiting
from sfsample.dumping.diagnose.named_thread import NamedThread, group_threads
from sfsample.dumping.diagnose.verdict import Verdict
from sfsample.dumping.diagnose.wait_graph import Node
from sfsample.dumping.diagnose.wording import signal_name
from sfsample.dumping.model import GoroutineGroup, ProcessDump
from sfsample.modules.module import Module
from sfsample.process.facts.syscall_arguments import DecodedSyscall
from sfsample.runtimes.cpython.tasks import Task
from sfsample.symbolize.named_frame import NamedFrame, python_frame
from sfsample.waiting.waits import Wait

# keys of the document that are also names of fields
_OF_PROCESS = ("pid", "name", "cmdline", "exe")
_OF_THREAD = ("tid", "name", "idle_s", "cpu_ns", "moving", "capture", "stop_ns", "error", "wchan",
              "kernel_stack")  # fmt: skip
_OF_WAIT = ("kind", "what", "tid", "pids", "note")
_OF_FUNCTION = ("function", "file", "line")
_OF_NATIVE = ("pc", "sp", "cfa", "offset", "module", "module_offset", "build_id")  # null in a Python frame


def _fields(value: object, names: Iterable[str]) -> dict[str, Any]:
    found = ((name, getattr(value, name)) for name in names)
    return {name: [*field] if isinstance(field, tuple) else field for name, field in found}


def document(verdict: Verdict, depth: int | None = None) -> dict[str, Any]:
    """Return the JSON document of a dump, with at most `depth` frames of each stack; None: all frames."""
    findings = [
        _fields(finding, ("kind", "text", "goroutines"))
        | {"details": [*finding.lines]}
        | {"threads": [{"pid": node.pid, "tid": node.tid or None} for node in finding.nodes]}
        for finding in verdict.findings
    ]
    processes = [dump_json(dump, threads, verdict, depth) for dump, threads in verdict.processes]
    return {"schema": "sfsample.dump/1", "time": time.time(), "host": os.uname().nodename,
            "verdict": findings, "processes": processes}  # fmt: skip


def dump_json(
    dump: ProcessDump, threads: Sequence[NamedThread], verdict: Verdict, depth: int | None = None
) -> dict[str, Any]:
    """Return one element of `processes`, with at most `depth` frames of each stack."""
    waits = {thread.tid: verdict.waits.get(Node(dump.pid, thread.tid)) for thread in threads}
    return _fields(dump, _OF_PROCESS) | {
        "consistent": None if dump.ran is None else not dump.ran,
        "goroutines": _goroutines(dump.goroutines, verdict.goroutine_waits.get(dump.pid, {}), depth) or None,
        "groups": [[thread.tid for thread in group] for group in group_threads(threads)],
        "threads": [_thread(thread, waits[thread.tid], depth) for thread in threads],
    }


def _thread(named: NamedThread, wait: Wait | None, depth: int | None) -> dict[str, Any]:
    thread, stack = named.dump, named.dump.stack
    python = [
        _fields(frame, _OF_FUNCTION) | {"locals": dict(named.locals_of(at)) if thread.facts.locals else None}
        for at, frame in enumerate(named.python)
    ]
    return _fields(thread, _OF_THREAD) | {
        "state": thread.state or None,
        "signal": signal_name(thread.signal),
        "syscall": thread.call and _syscall(thread.call),
        "waits_for": wait and _fields(wait, _OF_WAIT),
        "gil": thread.gil_state,
        "python": python or None,
        "tasks": [_task(task) for task in thread.facts.tasks] or None,
        "request": None,  # attributes of the request that the thread serves; sfsample reads none yet
        "stop_reason": stack and stack.stop_reason,
        "frames": [*_frames(named, depth)],
    }


def _goroutines(
    groups: Iterable[GoroutineGroup], waits: Mapping[int, Waiting], depth: int | None
) -> list[dict[str, Any]]:
    """Return a JSON object for each goroutine, ascending by id."""
    found = {}
    for group in groups:
        creators = {pc: _fields(name, _OF_FUNCTION) for pc, name in group.creator_names.items()}
        common = {
            "state": group.state,
            "tid": group.tid or None,
            "stop_reason": group.stack and group.stack.stop_reason,
            "frames": [value for row in group.rows(depth) for value in _native(*row)],
        }
        for member in group.members:
            wait = waits.get(member.id)
            found[member.id] = {
                "id": member.id,
                "since_s": member.since_s,
                "parent": member.parent or None,
                "created_by": creators.get(member.created_at),
                "waits_for": wait and _go_wait(wait),
                **common,
            }
    return [found[goid] for goid in sorted(found)]


def _go_wait(wait: Waiting) -> dict[str, Any]:
    address = hex(wait.address) if wait.address else None
    return _fields(wait, ("kind", "text", "goroutines")) | {"address": address, **wait.details}


def _frames(named: NamedThread, depth: int | None) -> Iterator[dict[str, Any]]:
    """Yield the frames.  Python frames come before the native frame of the function that evaluates them."""
    runs = dict(named.dump.python.activations) if named.dump.python else {}
    for index, (frame, module, names) in enumerate(named.rows(depth)):
        for place in runs.get(index, ()):
            function = _fields(python_frame(place), _OF_FUNCTION)
            yield dict.fromkeys(_OF_NATIVE) | function | {"found": "python", "inlined": False}
        yield from _native(frame, module, names)


def _task(task: Task) -> dict[str, Any]:
    frames = [_fields(python_frame(place), _OF_FUNCTION) for place in task.stack]
    return {"name": task.name, "waits_for": task.awaits or None, "held_by": task.held_by or None,
            "frames": frames}  # fmt: skip


def _syscall(call: DecodedSyscall) -> dict[str, Any]:
    return _fields(call, ("name", "refers_to", "timeout_s", "left_s")) | {
        "number": call.syscall.number,
        "args": [hex(argument) for argument in call.syscall.args],
        "fds": [_fields(descriptor, ("fd", "kind", "text")) for descriptor in call.descriptors],
        "connections": [_fields(descriptor, ("fd", "text")) for descriptor in call.connections],
    }


def _native(frame: Frame, module: Module | None, names: Sequence[NamedFrame]) -> Iterator[dict[str, Any]]:
    """Yield a JSON object for each function at a frame; inlined functions have the pc of the frame."""
    for name in names:
        yield {
            "pc": hex(frame.pc),
            "sp": hex(frame.sp),
            "cfa": None if frame.cfa is None else hex(frame.cfa),
            "offset": name.symbol_offset,
            "module": module and module.path,
            "module_offset": module and hex(module.vaddr(frame.pc)),
            "build_id": module and module.build_id,
            "found": frame.found,
            **_fields(name, (*_OF_FUNCTION, "inlined")),
        }
