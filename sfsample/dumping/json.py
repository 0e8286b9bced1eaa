"""Converts a dump to the values of its JSON document, schema sfsample.dump/1.

Unknown values are null.  Texts of the target are not cleaned, because JSON escapes them.
Invariant: keys and types stay as documented (tests/live/test_cli_dump.py).
"""

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from sfsample.core.stack import Frame
from sfsample.dumping.diagnose.go_waits import Waiting
from sfsample.dumping.diagnose.named_thread import NamedThread, group_threads
from sfsample.dumping.diagnose.verdict import Finding, Verdict
from sfsample.dumping.diagnose.wait_graph import Node
from sfsample.dumping.diagnose.wording import signal_name
from sfsample.dumping.model import GoroutineGroup, ProcessDump
from sfsample.modules.module import Module
from sfsample.process.facts.syscall_arguments import DecodedSyscall
from sfsample.runtimes.cpython.tasks import Task
from sfsample.symbolize.named_frame import NamedFrame, python_frame
from sfsample.waiting.waits import Wait


def document(verdict: Verdict, depth: int | None = None) -> dict[str, Any]:
    """Return the JSON document of a dump, with at most `depth` frames of each stack; None: all."""
    processes = [dump_json(dump, threads, verdict, depth) for dump, threads in verdict.processes]
    return {
        "schema": "sfsample.dump/1", "time": time.time(), "host": os.uname().nodename,
        "verdict": [finding_json(finding) for finding in verdict.findings], "processes": processes,
    }  # fmt: skip


def dump_json(
    dump: ProcessDump, threads: Sequence[NamedThread], verdict: Verdict, depth: int | None = None
) -> dict[str, Any]:
    """Return one element of `processes`, with at most `depth` frames of each stack."""
    return {
        "pid": dump.pid,
        "name": dump.name,
        "cmdline": dump.cmdline,
        "exe": dump.exe,
        "goroutines": _goroutines(dump.goroutines, verdict.goroutine_waits.get(dump.pid, {}), depth) or None,
        "groups": [[thread.tid for thread in group] for group in group_threads(threads)],
        "threads": [
            _thread(thread, verdict.waits.get(Node(dump.pid, thread.tid)), depth) for thread in threads
        ],
    }


def finding_json(finding: Finding) -> dict[str, Any]:
    """Return one element of `verdict`."""
    return {
        "kind": finding.kind,
        "text": finding.text,
        "details": list(finding.lines),
        "threads": [{"pid": node.pid, "tid": node.tid or None} for node in finding.nodes],
        "goroutines": list(finding.goroutines),
    }


def _thread(named: NamedThread, wait: Wait | None, depth: int | None) -> dict[str, Any]:
    thread, stack = named.dump, named.dump.stack
    return {
        "tid": thread.tid,
        "name": thread.name,
        "state": thread.state or None,
        "idle_s": thread.idle_s,
        "cpu_ns": thread.cpu_ns,
        "moving": thread.moving,
        "signal": signal_name(thread.signal),
        "capture": str(thread.capture),
        "stop_ns": thread.stop_ns,
        "error": thread.error,
        "syscall": _syscall(thread.call),
        "wchan": thread.wchan,
        "kernel_stack": list(thread.kernel_stack),
        "waits_for": _wait(wait),
        "gil": thread.gil_state,
        "python": [
            {**python_json(frame), "locals": dict(named.locals_of(at)) if thread.facts.locals else None}
            for at, frame in enumerate(named.python)
        ]
        or None,
        "tasks": [_task(task) for task in thread.facts.tasks] or None,
        "request": None,  # attributes of the request that it serves: sfsample reads none yet
        "stop_reason": str(stack.stop_reason) if stack else None,
        "frames": [*_frames(named, depth)],
    }


def _goroutines(
    groups: Iterable[GoroutineGroup], waits: Mapping[int, Waiting], depth: int | None
) -> list[dict[str, Any]]:
    """Return a value for each goroutine, ascending by id."""
    found = {}
    for group in groups:
        creators = {pc: python_json(name) for pc, name in group.creator_names.items()}
        common = {
            "state": group.state,
            "tid": group.tid or None,
            "stop_reason": str(group.stack.stop_reason) if group.stack else None,
            "frames": [value for row in group.rows(depth) for value in frame_json(*row)],
        }
        for member in group.members:
            wait = waits.get(member.id)
            found[member.id] = {
                "id": member.id,
                "since_s": member.since_s,
                "parent": member.parent or None,
                "created_by": creators.get(member.created_at),
                "waits_for": wait and wait.json(),
                **common,
            }
    return [found[goid] for goid in sorted(found)]


def _frames(named: NamedThread, depth: int | None) -> Iterator[dict[str, Any]]:
    """Yield the frames; Python frames come before the native frame of the loop that evaluates them."""
    runs = dict(named.dump.python.activations) if named.dump.python else {}
    for index, (frame, module, names) in enumerate(named.rows(depth)):
        for place in runs.get(index, ()):
            unknown = dict.fromkeys(("pc", "sp", "cfa", "offset", "module", "module_offset", "build_id"))
            yield {**unknown, **python_json(python_frame(place)), "found": "python", "inlined": False}
        yield from frame_json(frame, module, names)


def _task(task: Task) -> dict[str, Any]:
    return {
        "name": task.name,
        "waits_for": task.awaits or None,
        "held_by": task.held_by or None,
        "frames": [python_json(python_frame(place)) for place in task.stack],
    }


def python_json(frame: NamedFrame) -> dict[str, Any]:
    """Return the value of a Python frame."""
    return {"function": frame.function, "file": frame.file, "line": frame.line}


def _syscall(call: DecodedSyscall | None) -> dict[str, Any] | None:
    if call is None:
        return None
    return {
        "number": call.syscall.number,
        "name": call.name,
        "args": [hex(argument) for argument in call.syscall.args],
        "refers_to": list(call.refers_to),
        "fds": [{"fd": d.fd, "kind": d.kind, "text": d.text} for d in call.descriptors],
        "connections": [{"fd": d.fd, "text": d.text} for d in call.connections],
        "timeout_s": call.timeout_s,
        "left_s": call.left_s,
    }


def _wait(wait: Wait | None) -> dict[str, Any] | None:
    if wait is None:
        return None
    return {"kind": wait.kind, "what": wait.what, "tid": wait.tid, "pids": list(wait.pids), "note": wait.note}


def frame_json(frame: Frame, module: Module | None, names: Sequence[NamedFrame]) -> Iterator[dict[str, Any]]:
    """Yield a value for each function at a frame; inlined functions have the pc of the frame."""
    for name in names:
        yield {
            "pc": hex(frame.pc),
            "sp": hex(frame.sp),
            "cfa": None if frame.cfa is None else hex(frame.cfa),
            "function": name.function,
            "offset": name.symbol_offset,
            "module": module.path if module else None,
            "module_offset": hex(module.vaddr(frame.pc)) if module else None,
            "build_id": module.build_id if module else None,
            "found": str(frame.found),
            "file": name.file,
            "line": name.line,
            "inlined": name.inlined,
        }
