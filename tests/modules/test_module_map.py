"""The module map over invented mappings: when it reads them, and which module is at an address."""

from sfsample.formats.elf.image import ElfImage
from sfsample.modules.module_map import ModuleMap
from tests.builders.elf_builder import Load, elf
from tests.modules.fake_process import SIZE, TEXT, A, B, C, FakeProcess, mapping


def test_find_returns_the_module_at_an_address():
    process = FakeProcess(mapping(A), mapping(B, "/lib/b.so", inode=2))
    module_map = process.modules

    found = module_map.find(A)
    assert found is not None
    assert (found.path, found.load_bias) == ("/lib/a.so", A - TEXT)
    assert module_map.find(A + SIZE - 1) is found
    assert module_map.find(A + SIZE) is None
    assert module_map.find(A - 1) is None
    assert module_map.find(B).path == "/lib/b.so"
    assert module_map.find(0) is module_map.find(1 << 64) is module_map.find(-1) is None
    assert [m.path for m in module_map.modules] == ["/lib/a.so", "/lib/b.so"]
    assert len(process.opened) == 2


def test_a_module_is_opened_on_first_use():
    process = FakeProcess(mapping(A))
    process.modules.refresh()
    process.modules.mapping(A)

    assert process.opened == []
    assert process.modules.modules == ()


def test_the_maps_are_read_at_most_once_after_each_allow_refresh():
    process = FakeProcess(mapping(A))
    module_map = process.modules
    assert [module_map.mapping(address) for address in (1, 2, 3)] == [None] * 3
    assert process.read_count == 1
    assert module_map.find(A) is not None
    assert process.read_count == 1
    module_map.allow_refresh()
    assert process.read_count == 1  # that alone reads nothing: an unknown address does
    module_map.mapping(1)
    module_map.mapping(2)
    assert process.read_count == 2


def test_a_known_address_does_not_read_the_maps():
    process = FakeProcess(mapping(A))
    process.modules.refresh()
    process.modules.allow_refresh()
    process.modules.mapping(A)

    assert process.read_count == 1


def test_an_unknown_address_finds_a_new_mapping_after_allow_refresh():
    process = FakeProcess(mapping(A))
    module_map = process.modules
    module_map.refresh()
    first = module_map.find(A)
    process.maps = (mapping(A), mapping(B, "/lib/b.so", inode=2))
    assert module_map.find(B) is None  # not yet
    module_map.allow_refresh()
    assert module_map.find(B).path == "/lib/b.so"
    assert module_map.find(A) is first  # it stays


def test_generation_counts_changes_of_executable_mappings():
    process = FakeProcess(mapping(A))
    module_map = process.modules
    assert module_map.generation == 0
    module_map.refresh()
    assert module_map.generation == 1
    module_map.refresh()
    process.maps = (mapping(A), mapping(B, "[heap]", executable=False))
    module_map.refresh()
    assert module_map.generation == 1
    process.maps = (mapping(A), mapping(B))
    module_map.refresh()
    assert module_map.generation == 2


def test_another_library_at_the_same_address_is_another_module():
    """dlclose and dlopen: same start and size, another inode."""
    process = FakeProcess(mapping(A, "/lib/a.so", inode=1))
    module_map = process.modules
    first = module_map.find(A)
    process.maps = (mapping(A, "/lib/other.so", inode=2),)
    module_map.refresh()
    second = module_map.find(A)

    assert (first.path, second.path) == ("/lib/a.so", "/lib/other.so")
    assert module_map.modules == (first, second)  # the profile may have locations in both
    assert module_map.generation == 2


def test_a_file_that_was_replaced_is_another_module():
    process = FakeProcess(mapping(A, inode=1))
    first = process.modules.find(A)
    process.maps = (mapping(A, inode=2),)
    process.modules.refresh()

    assert process.modules.find(A) is not first


def test_one_object_with_several_executable_mappings_is_one_module():
    process = FakeProcess(mapping(A), mapping(A + SIZE, offset=TEXT + SIZE))
    module_map = process.modules

    assert module_map.find(A) is module_map.find(A + SIZE)
    assert len(module_map.modules) == 1


def test_the_same_file_at_two_places_is_two_modules():
    process = FakeProcess(mapping(A), mapping(B))

    assert process.modules.find(A) is not process.modules.find(B)
    assert process.modules.find(A).vaddr(A) == process.modules.find(B).vaddr(B) == TEXT


def test_anonymous_and_special_memory_has_no_module():
    process = FakeProcess(
        mapping(A, "", inode=0), mapping(B, "[vsyscall]", inode=0), mapping(C, "[vdso]", offset=0, inode=0)
    )
    module_map = process.modules

    assert module_map.find(A) is module_map.find(B) is None
    assert module_map.mapping(A) == process.maps[0]
    assert [m.path for m in process.opened] == []


def test_page_of_a_jitdump_has_no_module():
    """A JIT maps it as code, so that perf notices the file; the file is no ELF file."""
    process = FakeProcess(mapping(A, "/root/.debug/jit-17.dump"), mapping(B, "/lib/jit.dump"))

    assert process.modules.find(A) is None
    assert process.modules.find(B) is not None
    assert [m.path for m in process.opened] == ["/lib/jit.dump"]
    assert process.modules.problems == []


def test_the_vdso_is_a_module_at_file_offset_0():
    image = ElfImage(elf([Load(0, bytes(0x1000), offset=0)]), "[vdso]")
    vdso = mapping(A, "[vdso]", offset=0x7000, inode=0)  # old kernels write an offset
    module_map = ModuleMap(lambda: (vdso,), lambda _: image)

    assert module_map.find(A + 0x10).load_bias == A


def test_modules_stay_known_after_the_process_has_ended():
    """/proc/PID/maps is empty then, but the profile still lists the modules."""
    process = FakeProcess(mapping(A))
    known = process.modules.find(A)
    process.maps = ()
    process.modules.refresh()

    assert process.modules.find(A) is known
    assert process.modules.modules == (known,)
    assert process.modules.generation == 1


def test_any_mapping_finds_stacks():
    process = FakeProcess(mapping(A), mapping(B, "[stack]", executable=False))
    module_map = process.modules
    assert module_map.any_mapping(B) is None  # does not read the maps
    module_map.refresh()

    assert module_map.any_mapping(B).path == "[stack]"
    assert module_map.any_mapping(A).path == "/lib/a.so"
    assert module_map.any_mapping(B + SIZE) is module_map.any_mapping(0) is None
    assert module_map.mapping(B) is None


def test_code_copied_to_anonymous_memory_belongs_to_the_file_on_both_sides():
    """Programs copy their code so to huge pages; the file is mapped on both sides."""
    below, copied = mapping(A), mapping(A + SIZE, "", offset=0, inode=0)
    above = mapping(A + 2 * SIZE, offset=TEXT + 2 * SIZE)

    module_map = FakeProcess(below, copied, above, memory=bytes(SIZE)).modules
    assert module_map.find(A + SIZE) is module_map.find(A) is module_map.find(A + 2 * SIZE)
    assert module_map.find(A + SIZE).vaddr(A + SIZE) == TEXT + SIZE
    for other in (b"\x90" * SIZE, b""):
        assert FakeProcess(below, copied, above, memory=other).modules.find(A + SIZE) is None


def test_a_gap_may_follow_copied_code_at_the_start_of_a_file():
    """As on AArch64, where segments are aligned for pages of 64 KiB."""

    def module_before_gap(gap: int):
        copied = mapping(A + TEXT, "", offset=0, inode=0)
        data = mapping(copied.end + gap, offset=0x3000, executable=False)
        loads = [Load(TEXT, bytes(SIZE), offset=TEXT),
                 Load(TEXT + SIZE + gap, bytes(SIZE), offset=0x3000, flags=6)]  # fmt: skip
        image = ElfImage(elf(loads), "/lib/a.so")
        return ModuleMap(lambda: (copied, data), lambda _: image, lambda _, size: bytes(size)).find(A + TEXT)

    near = module_before_gap(0x1E000)
    assert near is not None
    assert (near.path, near.load_bias) == ("/lib/a.so", A)
    assert module_before_gap(0x20000) is None


def test_other_anonymous_code_has_no_module():
    copied = mapping(A + SIZE, "", offset=0, inode=0)
    other = mapping(A + 2 * SIZE, "/lib/b.so", inode=2)

    assert FakeProcess(mapping(A), copied, other).modules.find(A + SIZE) is None
    assert FakeProcess(mapping(A), copied).modules.find(A + SIZE) is None
    assert FakeProcess(copied, mapping(A + 2 * SIZE)).modules.find(A + SIZE) is None
    far = mapping(A + 3 * SIZE, offset=TEXT + 2 * SIZE)
    assert FakeProcess(mapping(A), copied, far).modules.find(A + SIZE) is None  # not next to it
    # next to each other, but the file has no code there
    data = mapping(A, offset=0x9000)
    assert FakeProcess(data, copied, mapping(A + 2 * SIZE, offset=0xB000)).modules.find(A + SIZE) is None
