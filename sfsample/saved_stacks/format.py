"""Defines a saved stack, as a value and as JSON.  A saved stack can be unwound later, or on another machine.

A saved stack has the registers, the bytes of the stack, the mappings, and the build-ids of the mapped files.
It also has code that is in no file: the vdso, and a few bytes of generated code.  It has no other memory of
the process, so it has no Python frames.

On some machines signal handlers return to the vdso.  If a walk ended too early, the vdso may be missing among
its modules, so an incomplete stack always contains the vdso.

Invariant: any damage in a file is a `FormatError` (tests/saved_stacks/test_replay.py).
"""

import json
from base64 import b64decode, b64encode
from collections.abc import Iterator
from hashlib import sha256
from typing import Any, NamedTuple
from zlib import compress, decompressobj
from zlib import error as zlib_error

from sfsample.core.arch import ARCHES, Arch
from sfsample.core.memory import BytesMemory, Memory, PiecewiseMemory
from sfsample.core.snapshot import ThreadSnapshot
from sfsample.core.stack import Stack, StopReason
from sfsample.errors import FormatError
from sfsample.modules.mapping import Mapping, maps_line, parse_maps
from sfsample.modules.module import Module
from sfsample.modules.module_map import ModuleMap

SCHEMA = "sfsample.stack/1"
VDSO = "[vdso]"
_BYTES_ABOVE_FRAME = 16 << 10  # bytes that are saved above the last frame, in each piece of stack
_MAX_STACK_BYTES = 1 << 20  # bytes of stack in one file
_MAX_UNPACKED_BYTES = 16 << 20  # bytes of one unpacked field
_MAX_PIECES = 5_000
MAX_CHARACTERS = 8 << 20  # characters that are read from a file; the JSON values take at most 200 MB
_CODE_BYTES = 512  # bytes of generated code that are saved from the pc of a frame on

Pieces = tuple[tuple[int, bytes], ...]  # (address, bytes) of each piece


class SavedModule(NamedTuple):
    """A file that was mapped."""

    path: str
    build_id: str | None  # None: the file has none
    checksum: str  # checksum of a few loaded bytes


class SavedStack(NamedTuple):
    """The captured registers and stack of a thread, the mappings, and the result of the walk."""

    process: str  # name of the process
    tid: int
    arch: Arch
    registers: dict[int, int]  # DWARF number -> value
    pieces: Pieces  # pieces of the stack
    bounded: bool  # True: the pieces are not the whole stack
    mappings: tuple[Mapping, ...]
    modules: tuple[SavedModule, ...]
    vdso: bytes
    code: Pieces  # generated code of frames in no module
    stop_reason: str
    stopped_at: str
    frames: tuple[tuple[int, str], ...]  # (pc, label) of each frame

    @property
    def snapshot(self) -> ThreadSnapshot:
        """The snapshot for an unwinder."""
        pieces = (BytesMemory(at, data, self.arch.byteorder) for at, data in self.pieces)
        memory = PiecewiseMemory(*pieces)
        return ThreadSnapshot(self.tid, self.registers, memory, self.bounded, 0, eintr=False, arch=self.arch)


def save(process: str, snapshot: ThreadSnapshot, stack: Stack, modules: ModuleMap) -> SavedStack:
    """Return the saved stack of a snapshot; `stack` is the result of its walk."""
    pieces, cut = _stack_pieces(snapshot, stack)
    images = {module.path: module for module in modules.open_all()}
    vdso = images.pop(VDSO, None)
    owners = [modules.find(frame.lookup_pc) for frame in stack.frames]  # modules of the frames
    generated = [frame.pc for frame, owner in zip(stack.frames, owners, strict=True) if owner is None]
    incomplete = stack.stop_reason is not StopReason.OUTERMOST
    needs_vdso = incomplete or any(owner and owner.path == VDSO for owner in owners)
    return SavedStack(
        process=process, tid=snapshot.tid, arch=snapshot.arch, registers=dict(snapshot.registers),
        pieces=pieces, bounded=snapshot.bounded or cut,
        mappings=tuple(m for m in modules.mappings if m.executable or any(
            m.start < at + len(data) and at < m.end for at, data in pieces)),
        modules=tuple(identify(module) for module in images.values()),
        vdso=bytes(vdso.image.data) if needs_vdso and vdso else b"",
        code=tuple((pc, data) for pc in dict.fromkeys(generated) if (data := modules.code(pc, _CODE_BYTES))),
        stop_reason=str(stack.stop_reason), stopped_at=stack.stopped_at or "",
        frames=tuple((f.pc, str(f.found)) for f in stack.frames),
    )  # fmt: skip


def identify(module: Module) -> SavedModule:
    """Return the identity of a module's file, so that another machine can recognize the file."""
    vaddr, size = module.image.fingerprint_range
    data = module.image.loaded(vaddr, size) or b""
    return SavedModule(module.path, module.build_id, sha256(data).hexdigest()[:32])


def _stack_pieces(snapshot: ThreadSnapshot, stack: Stack) -> tuple[Pieces, bool]:
    """Return the stack up to some bytes above the last frame; True: bytes were left out."""
    pieces, room, is_cut = [], _MAX_STACK_BYTES, False
    for at, data in _flatten(snapshot.memory):
        inside = [frame.sp - at for frame in stack.frames if at <= frame.sp < at + len(data)]
        size = min(max(inside, default=0) + _BYTES_ABOVE_FRAME, room, len(data))
        pieces.append((at, bytes(data[:size])))
        room -= size
        is_cut |= size < len(data)
    return tuple(pieces), is_cut


def _flatten(memory: Memory) -> Iterator[tuple[int, bytes]]:
    if isinstance(memory, BytesMemory):
        yield memory.base, memory.data
    elif isinstance(memory, PiecewiseMemory):
        for piece in memory.pieces:
            yield from _flatten(piece)


# -- JSON


def to_json(saved: SavedStack) -> str:
    """Return the text of the file."""
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "process": saved.process,
        "tid": saved.tid,
        "arch": saved.arch.name,
        "ra_mask": hex(saved.arch.ra_mask),
        "stop_reason": saved.stop_reason,
        "stopped_at": saved.stopped_at,
        "frames": [[hex(pc), found] for pc, found in saved.frames],
        "registers": {str(number): hex(value) for number, value in saved.registers.items()},
        "bounded": saved.bounded,
        "maps": [maps_line(mapping) for mapping in saved.mappings],
        "modules": [module._asdict() for module in saved.modules],
        "vdso": _pack(saved.vdso),
        "code": [[hex(at), _pack(data)] for at, data in saved.code],
        "stack": [[hex(at), _pack(data)] for at, data in saved.pieces],
    }
    return json.dumps(document, indent=1) + "\n"


def from_json(text: str) -> SavedStack:
    """Return the saved stack in the text of a file.  Raises FormatError."""
    try:
        document = json.loads(text[:MAX_CHARACTERS])
    except (ValueError, RecursionError) as damage:
        raise FormatError("saved stack", 0, f"is not JSON: {damage}") from None
    try:
        if not isinstance(document, dict) or document.get("schema") != SCHEMA:
            raise FormatError("saved stack", 0, f"is not a saved stack ({SCHEMA})")
        return _from_document(document)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, zlib_error) as damage:
        raise FormatError("saved stack", 0, f"is damaged: {type(damage).__name__}: {damage}") from None


def _from_document(document: dict[str, Any]) -> SavedStack:
    arch = next(arch for arch in (*ARCHES, None) if arch is None or arch.name == document["arch"])
    if arch is None:
        raise ValueError(f"unknown architecture {document['arch']!r}")
    registers = {int(number): _parse_word(value) for number, value in document["registers"].items()}
    if arch.pc not in registers or arch.sp not in registers:
        raise ValueError("pc or sp is missing")
    paths = {str(module["path"]) for module in document["modules"]}
    mappings = parse_maps("\n".join(document["maps"]), lambda path, _: path in paths)
    if list(mappings) != sorted(mappings, key=lambda mapping: mapping.start):
        raise ValueError("mappings are not in order")
    return SavedStack(
        process=str(document["process"]), tid=int(document["tid"]),
        arch=arch._replace(ra_mask=_parse_word(document["ra_mask"])), registers=registers,
        pieces=_pieces_of(document["stack"]), bounded=bool(document["bounded"]), mappings=mappings,
        modules=tuple(_module(module) for module in document["modules"]), vdso=_unpack(document["vdso"]),
        code=_pieces_of(document.get("code", ())), stop_reason=str(document["stop_reason"]),
        stopped_at=str(document["stopped_at"]),
        frames=tuple((_parse_word(pc), str(found)) for pc, found in document["frames"]),
    )  # fmt: skip


def _module(value: dict[str, Any]) -> SavedModule:
    build_id = None if value["build_id"] is None else str(value["build_id"])
    return SavedModule(str(value["path"]), build_id, str(value["checksum"]))


def _pieces_of(rows: list[list[str]]) -> Pieces:
    pieces, room = [], _MAX_UNPACKED_BYTES
    if len(rows) > _MAX_PIECES:
        raise ValueError(f"{len(rows)} pieces, more than {_MAX_PIECES}")
    for at, data in rows:
        pieces.append((_parse_word(at), _unpack(data, room)))
        room -= len(pieces[-1][1])
    return tuple(pieces)


def _parse_word(text: str) -> int:
    value = int(text, 16)
    if not 0 <= value < 1 << 64:
        raise ValueError(f"{text} is not an address")
    return value


def _pack(data: bytes) -> str:
    return b64encode(compress(data, 9)).decode("ascii")


def _unpack(text: str, room: int = _MAX_UNPACKED_BYTES) -> bytes:
    unpacker = decompressobj()
    data = unpacker.decompress(b64decode(text, validate=True), max(room, 1))  # 0 would mean no limit
    if not unpacker.eof:
        raise ValueError("packed bytes do not end")
    return data
