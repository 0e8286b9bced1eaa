"""Tests of saved stacks: what a file holds, replay, damaged files, and the directory of files."""

import json
import resource
import stat
import zlib
from base64 import b64encode

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfsample.core.arch import AARCH64, AMD64
from sfsample.core.memory import BytesMemory, PiecewiseMemory
from sfsample.core.stack import StopReason
from sfsample.errors import FormatError, SfsampleError
from sfsample.modules.mapping import parse_maps
from sfsample.saved_stacks.format import VDSO, from_json, save, to_json
from sfsample.saved_stacks.replay import replay
from sfsample.saved_stacks.store import MAX_FILES, BadStackStore
from sfsample.unwind.steppers.code_analysis.stepper import CodeStepper
from sfsample.unwind.unwinder import Unwinder
from tests.builders.elf_builder import PT_NOTE, Load, elf, note
from tests.builders.walks import (
    CODE,
    JIT,
    LEAF,
    OUTERMOST,
    STACK,
    TEXT,
    RowsByPc,
    module_map,
    snapshot,
    text,
    words,
)

TRUNCATED = RowsByPc({CODE: LEAF})


def walk_truncated(memory, modules=None, **thread):
    """Return the snapshot, its stack, which ends early, and the module map."""
    modules = modules or module_map()
    modules.refresh()
    taken = snapshot(memory, **thread)
    return taken, Unwinder(modules, steppers=(TRUNCATED,)).walk(taken), modules


def test_saved_stack_is_read_back_from_json():
    memory = PiecewiseMemory(words(CODE + 0x10, 7), words(1, 2, base=0x5000))
    taken, stack, modules = walk_truncated(memory, rbx=5)
    saved = save("name", taken._replace(arch=AMD64._replace(ra_mask=(1 << 47) - 1)), stack, modules)

    assert from_json(to_json(saved)) == saved
    assert saved.stop_reason == StopReason.NO_ROW
    assert saved.frames == ((CODE, "context"), (CODE + 0x10, "sframe"))
    assert saved.pieces == ((STACK, memory.pieces[0].data), (0x5000, memory.pieces[1].data))
    assert [mapping.path for mapping in saved.mappings] == ["/bin/invented", "[stack]"]
    assert [module.path for module in saved.modules] == ["/bin/invented"]


def test_file_holds_the_stack_up_to_the_last_frame_and_little_more():
    taken, stack, modules = walk_truncated(words(CODE + 0x10, *[0] * 30_000))
    saved = save("name", taken, stack, modules)

    assert (saved.bounded, len(saved.pieces[0][1])) == (True, 8 + (16 << 10))
    assert len(to_json(saved)) < 3000


def on_disk(tmp_path, *, build_id: bytes | None = bytes(20)):
    """Write the program of `walks` to a file; return its module map and the path."""
    notes = [Load(0x3000, note(build_id), type=PT_NOTE)] if build_id else []
    path = tmp_path / "root/bin/invented"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(elf([Load(TEXT, text(), offset=0x1000), *notes]))
    return module_map(*notes), path


@pytest.mark.parametrize("build_id", [bytes(range(20)), None])
def test_replay_uses_the_same_files_and_refuses_others(tmp_path, build_id):
    modules, path = on_disk(tmp_path, build_id=build_id)
    taken, stack, modules = walk_truncated(words(CODE + 0x10), modules)
    saved = from_json(to_json(save("name", taken, stack, modules)))
    better_stepper = RowsByPc({CODE: LEAF, CODE + 0x10: OUTERMOST})
    found = replay(saved, sysroot=str(tmp_path / "root"), steppers=(better_stepper,))

    assert [frame.pc for frame in found.stack.frames] == [CODE, CODE + 0x10]
    assert found.stack.stop_reason is StopReason.OUTERMOST
    assert [module.path for module in found.modules] == ["/bin/invented"] * 2
    path.write_bytes(path.read_bytes().replace(build_id or text()[:64], bytes(len(build_id or bytes(64)))))
    with pytest.raises(SfsampleError, match="/bin/invented: differs: "):
        replay(saved, sysroot=str(tmp_path / "root"), steppers=(better_stepper,))
    path.unlink()
    with pytest.raises(SfsampleError, match="/bin/invented: cannot be opened"):
        replay(saved, sysroot=str(tmp_path / "root"), steppers=(better_stepper,))


def test_replay_does_not_need_files_of_other_modules(tmp_path):
    taken, stack, modules = walk_truncated(words(CODE + 0x10))
    saved = save("name", taken, stack, modules)
    outside = saved._replace(registers={**saved.registers, AMD64.pc: 0})

    assert replay(outside, sysroot=str(tmp_path), steppers=()).stack.stop_reason is StopReason.NO_MODULE


def test_generated_code_is_saved_with_the_stack(tmp_path):
    pytest.importorskip("iced_x86", reason="no decoder for x86-64 here")
    generated = bytes.fromhex("4883ec08 ffd1 4883c408 c3")  # sub $8,%rsp; call *%rcx; add $8,%rsp; ret
    on_disk(tmp_path, build_id=None)
    rows = RowsByPc({CODE: LEAF, CODE + 0x20: OUTERMOST})
    modules = module_map(generated=generated)
    modules.refresh()
    taken = snapshot(words(JIT + 6, 0, CODE + 0x20))
    stack = Unwinder(modules, steppers=(rows,)).walk(taken)
    saved = from_json(to_json(save("name", taken, stack, modules)))
    found = replay(saved, sysroot=str(tmp_path / "root"), steppers=(rows, CodeStepper()))

    assert [piece[0] for piece in saved.code] == [JIT + 6]
    assert [frame.pc for frame in found.stack.frames] == [CODE, JIT + 6, CODE + 0x20]


def test_replay_refuses_a_module_that_was_unreadable_when_saved(tmp_path):
    modules, _ = on_disk(tmp_path)
    taken, stack, modules = walk_truncated(words(CODE + 0x10), modules)
    saved = save("name", taken, stack, modules)._replace(modules=())
    with pytest.raises(SfsampleError, match="could not be read when"):
        replay(saved, sysroot=str(tmp_path / "root"), steppers=(TRUNCATED,))


# -- damaged files


def document(**changes) -> str:
    taken, stack, modules = walk_truncated(words(CODE + 0x10))
    return json.dumps({**json.loads(to_json(save("name", taken, stack, modules))), **changes})


BOMB = b64encode(zlib.compress(bytes(1 << 20))).decode()  # 1 MiB


@pytest.mark.parametrize(
    "changed",
    [
        {"schema": "sfsample.stack/2"},
        {"arch": "pdp11"},
        {"registers": {}},
        {"registers": {"7": "0x1", "16": hex(1 << 64)}},
        {"registers": None},
        {"stack": [["0x0", "AAAA"]]},
        {"stack": [["0x0", "not base64"]]},
        {"stack": [[0, ""]]},
        {"maps": ["2000-3000 r-xp 0 00:00 0", "1000-2000 r-xp 0 00:00 0"]},
        {"maps": 7},
        {"modules": [{}]},
        {"frames": [["0x1"]]},
        {"bounded": True, "vdso": None},
        {"code": [["0x0", "AAAA"]]},
        {"tid": float("inf")},
        {"stack": [["0x0", BOMB]] * 20},
    ],
)
def test_damaged_file_is_a_format_error(changed):
    with pytest.raises(FormatError):
        from_json(document(**changed))


@pytest.mark.parametrize("text", ["", "[]", "{", "null", "[" * 100_000, '{"schema": "sfsample.stack/1"}'])
def test_text_that_is_no_saved_stack_is_a_format_error(text):
    with pytest.raises(FormatError):
        from_json(text)


@settings(deadline=None)
@given(st.data())
def test_any_damage_is_an_error_or_a_stack(data):
    whole = document()
    at = data.draw(st.integers(0, len(whole)))
    damaged = whole[:at] + data.draw(st.text(max_size=4)) + whole[at + data.draw(st.integers(0, 40)) :]
    try:
        saved = from_json(damaged)
        replay(saved, sysroot="/nowhere", steppers=(TRUNCATED,))
    except SfsampleError:
        pass


# -- the directory


def test_store_writes_one_file_for_each_distinct_stack(tmp_path):
    store = BadStackStore(str(tmp_path / "bad"))
    for _ in range(3):
        for cells in ((CODE + 0x10,), (CODE + 0x20,)):
            taken, stack, modules = walk_truncated(words(*cells))
            store.keep("name", taken, stack, modules)
    again = BadStackStore(str(tmp_path / "bad"))
    again.keep("name", taken, stack, modules)

    files = sorted((tmp_path / "bad").iterdir())
    assert (store.written, again.written, len(files), store.problems) == (2, 0, 2, [])
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
    assert stat.S_IMODE((tmp_path / "bad").stat().st_mode) == 0o700
    assert {from_json(path.read_text()).frames[-1] for path in files} == {
        (CODE + 0x10, "sframe"), (CODE + 0x20, "sframe")}  # fmt: skip


def test_store_does_not_keep_complete_stacks(tmp_path):
    store = BadStackStore(str(tmp_path))
    modules = module_map()
    taken = snapshot(words(CODE + 0x10))
    for steppers, limit in (((RowsByPc({CODE: OUTERMOST}),), 9), ((TRUNCATED,), 1)):
        store.keep("name", taken, Unwinder(modules, steppers, limit).walk(taken), modules)

    assert list(tmp_path.iterdir()) == []


def test_store_limits_the_number_of_files(tmp_path):
    store = BadStackStore(str(tmp_path))
    for number in range(MAX_FILES + 5):
        taken, stack, modules = walk_truncated(words(CODE + number + 1))
        store.keep("name", taken, stack, modules)

    assert store.written == len(list(tmp_path.iterdir())) == MAX_FILES
    assert store.full


def test_store_reports_what_it_cannot_write(tmp_path):
    with pytest.raises(SfsampleError, match="cannot write: /proc/none"):
        BadStackStore("/proc/none")
    store = BadStackStore(str(tmp_path / "bad"))
    (tmp_path / "bad").rmdir()
    taken, stack, modules = walk_truncated(words(CODE + 0x10))
    store.keep("name", taken, stack, modules)

    assert (store.written, len(store.problems)) == (0, 1)


def test_store_removes_a_file_that_was_not_written_whole(tmp_path):
    """Half a file cannot be replayed, and the next recording would not write the whole file."""
    store = BadStackStore(str(tmp_path))
    taken, stack, modules = walk_truncated(words(CODE + 0x10))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        store.keep("name", taken, stack, modules)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)

    assert list(tmp_path.iterdir()) == []
    assert store.problems[0].endswith("File too large")
    again = BadStackStore(str(tmp_path))
    again.keep("name", taken, stack, modules)
    assert again.written == 1


def test_mappings_are_read_back_from_json():
    lines = ["1000-2000 r-xp 1000 08:01 7 /a\\012b (deleted)", "2000-3000 r--p 0 00:00 0",
             "7ff000-800000 r-xp 0 00:00 0 [vdso]"]  # fmt: skip
    taken, stack, modules = walk_truncated(BytesMemory(0, b""))
    saved = save("n", taken, stack, modules)
    saved = saved._replace(mappings=parse_maps("\n".join(lines)), vdso=b"x", arch=AARCH64)
    same = {**saved.registers, AARCH64.pc: 1, AARCH64.sp: 2}

    assert json.loads(to_json(saved))["maps"] == lines
    assert from_json(to_json(saved._replace(registers=same))).mappings == saved.mappings
    assert saved.mappings[2].path == VDSO


def test_file_of_a_saved_stack_that_is_really_called_deleted():
    saved = save("n", *walk_truncated(words(CODE + 0x10)))
    path = f"{saved.modules[0].path} (deleted)"
    saved = saved._replace(mappings=tuple(m._replace(path=path) if m.is_file else m for m in saved.mappings),
                           modules=(saved.modules[0]._replace(path=path),))  # fmt: skip

    assert from_json(to_json(saved)) == saved
