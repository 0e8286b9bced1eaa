"""One copied thread as a value, and as JSON: enough to unwind it again, elsewhere and later.

Law: registers, the bytes of its stack, where what is mapped, and which files those are (build-ids); no other
memory of the process, except code of frames that is in no file: the vdso, and some bytes of what was
generated.  A walk that ended too early may have missed the vdso (handlers return to it on some machines), so
it is kept then, too.  The text is foreign when it is read: whatever is wrong with it is one `FormatError`.
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
_ABOVE = 16 << 10  # bytes kept above the last frame of each piece of stack
_MOST = 1 << 20  # bytes of stack in one file
_MOST_UNPACKED = 64 << 20  # of a file that somebody gives us
_MOST_TEXT = 32 << 20
_CODE = 512  # bytes of generated code kept behind the pc of a frame

Pieces = tuple[tuple[int, bytes], ...]  # address, bytes


class SavedModule(NamedTuple):
    """A file that was mapped: its build-id, or, of one without, a checksum of its head.

    `begins_at`: where in the file, if that is an archive.
    """

    path: str
    build_id: str | None
    checksum: str
    begins_at: int = 0


class SavedStack(NamedTuple):
    """A thread's copy, and what was made of it."""

    process: str
    tid: int
    arch: Arch
    registers: dict[int, int]
    pieces: Pieces
    bounded: bool
    mappings: tuple[Mapping, ...]
    modules: tuple[SavedModule, ...]
    vdso: bytes
    code: Pieces  # generated code
    stop_reason: str
    stopped_at: str
    frames: tuple[tuple[int, str], ...]  # pc, found

    @property
    def snapshot(self) -> ThreadSnapshot:
        """The copy, as a walk takes it."""
        pieces = (BytesMemory(at, data, self.arch.byteorder) for at, data in self.pieces)
        memory = PiecewiseMemory(*pieces)
        return ThreadSnapshot(self.tid, self.registers, memory, self.bounded, 0, eintr=False, arch=self.arch)


def save(process: str, snapshot: ThreadSnapshot, stack: Stack, index: ModuleMap) -> SavedStack:
    """Keep what a walk of `snapshot`, which ended in `stack`, had to go by."""
    pieces, cut = _kept(snapshot, stack)
    modules = index.open_all()
    images = {(module.path, module.image.begins_at): module for module in modules}
    vdso = images.pop((VDSO, 0), None)
    owners = [index.find(frame.lookup_pc) for frame in stack.frames]
    generated = [frame.pc for frame, owner in zip(stack.frames, owners, strict=True) if owner is None]
    incomplete = stack.stop_reason is not StopReason.OUTERMOST
    wants_vdso = incomplete or any(owner and owner.path == VDSO for owner in owners)
    return SavedStack(
        process, snapshot.tid, snapshot.arch, dict(snapshot.registers), pieces, snapshot.bounded or cut,
        tuple(m for m in index.mappings if m.executable or _holds(m, pieces)),
        tuple(identify(module) for module in images.values()),
        bytes(vdso.image.data) if wants_vdso and vdso else b"",
        tuple((pc, data) for pc in dict.fromkeys(generated) if (data := index.code(pc, _CODE))),
        str(stack.stop_reason), stack.stopped_at or "", tuple((f.pc, str(f.found)) for f in stack.frames),
    )  # fmt: skip


def identify(module: Module) -> SavedModule:
    """Return by what a file is known again."""
    vaddr, size = module.image.fingerprint_range
    head = module.image.loaded(vaddr, size) or b""
    return SavedModule(module.path, module.build_id, sha256(head).hexdigest()[:32], module.image.begins_at)


def _kept(snapshot: ThreadSnapshot, stack: Stack) -> tuple[Pieces, bool]:
    """Return the stack as far as the walk came, and a little above; whether something was left out."""
    kept, room, cut = [], _MOST, False
    for at, data in _pieces(snapshot.memory):
        inside = [frame.sp - at for frame in stack.frames if at <= frame.sp < at + len(data)]
        size = min(max(inside, default=0) + _ABOVE, room, len(data))
        kept.append((at, bytes(data[:size])))
        room -= size
        cut |= size < len(data)
    return tuple(kept), cut


def _pieces(memory: Memory) -> Iterator[tuple[int, bytes]]:
    if isinstance(memory, BytesMemory):
        yield memory.base, memory.data
    elif isinstance(memory, PiecewiseMemory):
        for piece in memory.pieces:
            yield from _pieces(piece)


def _holds(mapping: Mapping, pieces: Pieces) -> bool:
    return any(mapping.start < at + len(data) and at < mapping.end for at, data in pieces)


# -- JSON


def to_json(saved: SavedStack) -> str:
    """Return the file's text."""
    document = {
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


def from_json(text: str, name: str = "saved stack") -> SavedStack:
    """Read a file's text.  Raises FormatError."""
    try:
        document = json.loads(text[:_MOST_TEXT])
        if not isinstance(document, dict) or document.get("schema") != SCHEMA:
            raise FormatError(name, 0, f"is not a saved stack ({SCHEMA})")
        return _read(document)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, zlib_error) as damage:
        raise FormatError(name, 0, f"is damaged: {type(damage).__name__}: {damage}") from None


def _read(document: dict[str, Any]) -> SavedStack:
    arch = next(arch for arch in (*ARCHES, None) if arch is None or arch.name == document["arch"])
    if arch is None:
        raise ValueError(f"unknown architecture {document['arch']!r}")
    registers = {int(number): _word(value) for number, value in document["registers"].items()}
    if arch.pc not in registers or arch.sp not in registers:
        raise ValueError("pc or sp is missing")
    mappings = parse_maps("\n".join(document["maps"]))
    if list(mappings) != sorted(mappings, key=lambda mapping: mapping.start):
        raise ValueError("mappings are not in order")
    return SavedStack(
        str(document["process"]), int(document["tid"]), arch._replace(ra_mask=_word(document["ra_mask"])),
        registers, _pieces_of(document["stack"]),
        bool(document["bounded"]), mappings, tuple(_module(module) for module in document["modules"]),
        _unpack(document["vdso"]), _pieces_of(document.get("code", ())),
        str(document["stop_reason"]), str(document["stopped_at"]),
        tuple((_word(pc), str(found)) for pc, found in document["frames"]),
    )  # fmt: skip


def _module(value: dict[str, Any]) -> SavedModule:
    build_id = value["build_id"]
    return SavedModule(
        str(value["path"]),
        None if build_id is None else str(build_id),
        str(value["checksum"]),
        int(value.get("begins_at", 0)),
    )


def _pieces_of(rows: list[list[str]]) -> Pieces:
    return tuple((_word(at), _unpack(data)) for at, data in rows)


def _word(text: str) -> int:
    value = int(text, 16)
    if not 0 <= value < 1 << 64:
        raise ValueError(f"{text} is not an address")
    return value


def _pack(data: bytes) -> str:
    return b64encode(compress(data, 9)).decode("ascii")


def _unpack(text: str) -> bytes:
    unpacker = decompressobj()
    data = unpacker.decompress(b64decode(text, validate=True), _MOST_UNPACKED)
    if not unpacker.eof:
        raise ValueError("packed bytes do not end")
    return data
