"""The module index over invented maps: when it reads them, what it forgets, and what it says of failures."""

from functools import cache

from sfsample.errors import FormatError
from sfsample.formats.elf.image import ElfImage
from sfsample.modules.generated_code import GeneratedCode
from sfsample.modules.mapping import Mapping
from sfsample.modules.module_map import ModuleMap
from tests.builders.elf_builder import Load, elf

A, B, C = 0x40_0000, 0x50_0000, 0x60_0000
TEXT, SIZE = 0x1000, 0x1000


def mapping(
    start: int, path: str = "/lib/a.so", *, offset: int = TEXT, inode: int = 1, executable: bool = True
):
    return Mapping(start, start + SIZE, True, executable, offset, "08:01", inode, path, False)


class Process:
    """Its maps can be changed; it counts how often they are read, and what is opened."""

    def __init__(self, *maps: Mapping, unreadable: tuple[str, ...] = ()) -> None:
        self.maps = maps
        self.unreadable = unreadable
        self.read = 0
        self.opened: list[Mapping] = []
        self.index = ModuleMap(self._read, self._open)

    def _read(self):
        self.read += 1
        return self.maps

    def _open(self, wanted):
        self.opened.append(wanted)
        if wanted.path in self.unreadable:
            raise FormatError("ELF", 0, "damaged")
        return ElfImage(elf([Load(TEXT, bytes(0x3000), offset=TEXT)]), wanted.path)


def test_find():
    process = Process(mapping(A), mapping(B, "/lib/b.so", inode=2))
    index = process.index

    found = index.find(A)
    assert found is not None
    assert (found.path, found.load_bias) == ("/lib/a.so", A - TEXT)
    assert index.find(A + SIZE - 1) is found
    assert index.find(A + SIZE) is None
    assert index.find(A - 1) is None
    assert index.find(B).path == "/lib/b.so"
    assert index.find(0) is index.find(1 << 64) is index.find(-1) is None
    assert [m.path for m in index.modules] == ["/lib/a.so", "/lib/b.so"]
    assert len(process.opened) == 2


def test_nothing_is_opened_before_it_is_asked_for():
    process = Process(mapping(A))
    process.index.refresh()
    process.index.mapping(A)

    assert process.opened == []
    assert process.index.modules == ()


def test_the_maps_are_read_at_most_once_between_two_expiries():
    process = Process(mapping(A))
    index = process.index
    assert [index.mapping(address) for address in (1, 2, 3)] == [None] * 3
    assert process.read == 1
    assert index.find(A) is not None
    assert process.read == 1
    index.expire()
    assert process.read == 1  # expiry reads nothing: a miss does
    index.mapping(1)
    index.mapping(2)
    assert process.read == 2


def test_a_hit_reads_nothing():
    process = Process(mapping(A))
    process.index.refresh()
    process.index.expire()
    process.index.mapping(A)

    assert process.read == 1


def test_a_new_mapping_is_noticed_on_a_miss():
    process = Process(mapping(A))
    index = process.index
    index.refresh()
    first = index.find(A)
    process.maps = (mapping(A), mapping(B, "/lib/b.so", inode=2))
    assert index.find(B) is None  # not yet
    index.expire()
    assert index.find(B).path == "/lib/b.so"
    assert index.find(A) is first  # and what was there stays


def test_generation_counts_changes_of_executable_mappings():
    process = Process(mapping(A))
    index = process.index
    assert index.generation == 0
    index.refresh()
    assert index.generation == 1
    index.refresh()
    process.maps = (mapping(A), mapping(B, "[heap]", executable=False))
    index.refresh()
    assert index.generation == 1
    process.maps = (mapping(A), mapping(B))
    index.refresh()
    assert index.generation == 2


def test_another_library_at_the_same_address():
    """dlclose and dlopen: same start and size, another inode."""
    process = Process(mapping(A, "/lib/a.so", inode=1))
    index = process.index
    first = index.find(A)
    process.maps = (mapping(A, "/lib/other.so", inode=2),)
    index.refresh()
    second = index.find(A)

    assert (first.path, second.path) == ("/lib/a.so", "/lib/other.so")
    assert index.modules == (first, second)  # the profile may hold places in both
    assert index.generation == 2


def test_a_file_that_was_replaced_is_another_module():
    process = Process(mapping(A, inode=1))
    first = process.index.find(A)
    process.maps = (mapping(A, inode=2),)
    process.index.refresh()

    assert process.index.find(A) is not first


def test_one_object_with_several_executable_mappings_is_one_module():
    process = Process(mapping(A), mapping(A + SIZE, offset=TEXT + SIZE))
    index = process.index

    assert index.find(A) is index.find(A + SIZE)
    assert len(index.modules) == 1


def test_the_same_file_at_two_places_is_two_modules():
    process = Process(mapping(A), mapping(B))

    assert process.index.find(A) is not process.index.find(B)
    assert process.index.find(A).vaddr(A) == process.index.find(B).vaddr(B) == TEXT


def test_anonymous_and_special_memory_has_no_module():
    process = Process(
        mapping(A, "", inode=0), mapping(B, "[vsyscall]", inode=0), mapping(C, "[vdso]", offset=0, inode=0)
    )
    index = process.index

    assert index.find(A) is index.find(B) is None
    assert index.mapping(A) == process.maps[0]
    assert [m.path for m in process.opened] == []


def test_the_vdso_is_a_module_at_file_offset_0():
    image = ElfImage(elf([Load(0, bytes(0x1000), offset=0)]), "[vdso]")
    here = mapping(A, "[vdso]", offset=0x7000, inode=0)  # old kernels write an offset
    index = ModuleMap(lambda: (here,), lambda _: image)

    assert index.find(A + 0x10).load_bias == A


def test_code_in_anonymous_memory_amid_a_file_is_that_files():
    """Copied to huge pages: the file is named on both sides."""
    below, moved = mapping(A), mapping(A + SIZE, "", offset=0, inode=0)
    above = mapping(A + 2 * SIZE, offset=TEXT + 2 * SIZE)

    index = Process(below, moved, above).index
    assert index.find(A + SIZE) is index.find(A) is index.find(A + 2 * SIZE)
    assert index.find(A + SIZE).vaddr(A + SIZE) == TEXT + SIZE


def test_a_gap_may_follow_code_that_comes_first():
    """As on AArch64, whose segments are aligned for pages of 64 KiB."""

    def found(gap: int):
        moved = mapping(A + TEXT, "", offset=0, inode=0)
        data = mapping(moved.end + gap, offset=0x3000, executable=False)
        loads = [Load(TEXT, bytes(SIZE), offset=TEXT),
                 Load(TEXT + SIZE + gap, bytes(SIZE), offset=0x3000, flags=6)]  # fmt: skip
        image = ElfImage(elf(loads), "/lib/a.so")
        return ModuleMap(lambda: (moved, data), lambda _: image).find(A + TEXT)

    near = found(0x1E000)
    assert near is not None
    assert (near.path, near.load_bias) == ("/lib/a.so", A)
    assert found(0x20000) is None


def test_other_anonymous_code_is_nobodys():
    moved = mapping(A + SIZE, "", offset=0, inode=0)
    other = mapping(A + 2 * SIZE, "/lib/b.so", inode=2)

    assert Process(mapping(A), moved, other).index.find(A + SIZE) is None
    assert Process(mapping(A), moved).index.find(A + SIZE) is None
    assert Process(moved, mapping(A + 2 * SIZE)).index.find(A + SIZE) is None
    far = mapping(A + 3 * SIZE, offset=TEXT + 2 * SIZE)
    assert Process(mapping(A), moved, far).index.find(A + SIZE) is None  # not next to it
    # next to each other, but the file has no code there
    data = mapping(A, offset=0x9000)
    assert Process(data, moved, mapping(A + 2 * SIZE, offset=0xB000)).index.find(A + SIZE) is None


def test_an_unreadable_image_is_a_problem_that_is_said_once():
    process = Process(mapping(A), mapping(A + SIZE, offset=TEXT + SIZE), unreadable=("/lib/a.so",))
    index = process.index
    for _ in range(9):
        assert index.find(A) is index.find(A + SIZE) is None
        index.refresh()
        assert index.problems == ["/lib/a.so: ELF+0x0: damaged"]
        index.expire()

    assert len(process.opened) == 6  # three times for each mapping, not once for each look
    process.maps = ()
    process.maps = (mapping(C),)
    index.refresh()
    assert index.find(C) is None
    assert len(index.problems) == 1


def test_a_file_that_is_just_coming_is_tried_again():
    process = Process(mapping(A), unreadable=("/lib/a.so",))
    index = process.index
    assert index.find(A) is None
    assert index.is_unsettled(A)
    assert not index.is_unsettled(B)
    generation = index.generation
    process.unreadable = ()
    assert index.find(A) is None  # not before the next look
    index.expire()

    assert index.find(A).path == "/lib/a.so"
    assert index.generation > generation  # that nobody knew a row there is void
    assert not index.is_unsettled(A)
    assert index.problems == []


def test_a_file_that_was_unmapped_before_it_could_be_opened_is_no_problem():
    process = Process(mapping(A), mapping(B, "/lib/b.so"), unreadable=("/lib/a.so",))
    process.index.refresh()
    process.maps = ()  # the process has ended
    assert process.index.find(A) is None
    assert process.index.problems == []

    process.maps = (mapping(B, "/lib/b.so"),)
    process.index.expire()
    assert process.index.find(A) is None
    assert process.index.problems == []


def test_what_cannot_be_opened_is_settled_after_a_few_tries():
    process = Process(mapping(A), unreadable=("/lib/a.so",))
    index = process.index
    unsettled = []
    for _ in range(4):
        index.find(A)
        unsettled.append(index.is_unsettled(A))
        index.expire()

    assert unsettled == [True, True, False, False]


def test_files_that_come_and_go_are_changing():
    """Not those that only come, as most libraries do; and of those that are in use, what is there now."""
    one, other = mapping(A, "/lib/one.so", inode=1), mapping(A, "/lib/other.so", inode=2)
    process = Process(one)
    index = process.index
    index.find(A)
    process.maps = (one, mapping(B, "/lib/late.so", inode=3))
    index.expire()
    index.find(B)
    assert index.changing == frozenset()
    process.maps = (other, mapping(B, "/lib/late.so", inode=3))
    index.refresh()
    assert index.changing == frozenset()  # nobody has asked for it
    found = index.find(A)
    assert found.path == "/lib/other.so"
    assert index.changing == {found}


def test_a_mapping_that_no_segment_explains_is_a_problem_that_is_said_once():
    process = Process(mapping(A, offset=0x9_0000), mapping(B, offset=0x9_0000))
    index = process.index

    assert index.find(A) is index.find(B) is None
    assert index.problems == ["/lib/a.so: no segment is loaded from file offset 0x90000"]


def test_problems_of_a_module_are_problems_of_the_index():
    process = Process(mapping(A))
    process.index.find(A).lose(FormatError(".sframe", 4, "unknown ABI 9"))

    assert process.index.problems == ["/lib/a.so: .sframe+0x4: unknown ABI 9"]


def test_after_the_process_has_ended_what_was_known_stays():
    """/proc/PID/maps is empty then; a profile still wants to say which modules there were."""
    process = Process(mapping(A))
    known = process.index.find(A)
    process.maps = ()
    process.index.refresh()

    assert process.index.find(A) is known
    assert process.index.modules == (known,)
    assert process.index.generation == 1


def test_any_mapping_finds_stacks():
    process = Process(mapping(A), mapping(B, "[stack]", executable=False))
    index = process.index
    assert index.any_mapping(B) is None  # never reads
    index.refresh()

    assert index.any_mapping(B).path == "[stack]"
    assert index.any_mapping(A).path == "/lib/a.so"
    assert index.any_mapping(B + SIZE) is index.any_mapping(0) is None
    assert index.mapping(B) is None


# -- code that lies in no file


def test_code_is_read_once_a_page_and_again_when_the_mappings_change():
    asked = []

    def read(address, size):
        asked.append(address)
        return None if address >= A + 2 * SIZE else bytes([address >> 12 & 255]) * size

    maps = [mapping(A, "", inode=0)]
    index = ModuleMap(lambda: tuple(maps), lambda _: None, read)
    index.refresh()

    assert index.code(A + 8, 4) == b"\0" * 4
    assert index.code(A + SIZE - 1, 3) == b"\0\1\1"
    assert index.code(A + 2 * SIZE - 1, 3) == b"\1"
    assert index.code(A + 2 * SIZE, 3) == b""
    assert asked == [
        A,
        A + SIZE,
        A + 2 * SIZE,
        A + 2 * SIZE,
    ]  # what cannot be read may be there the next time
    index.refresh()
    index.code(A, 1)
    assert len(asked) == 4
    maps.append(mapping(B, "", inode=0))
    index.refresh()
    index.code(A, 1)
    assert len(asked) == 5


def test_only_so_many_pages_of_code_are_kept():
    read = 0

    def page(_address, size):
        nonlocal read
        read += 1
        return bytes(size)

    code = GeneratedCode(page)
    for number in range(300):
        code.at(number * 4096, 1)
    assert len(code._pages) <= 256
    code.at(299 * 4096, 1)
    assert read == 300


def test_where_no_memory_can_be_read_there_is_no_code():
    assert Process(mapping(A)).index.code(A, 8) == b""


def test_of_many_modules_that_have_gone_the_last_are_kept_open(monkeypatch):
    monkeypatch.setattr("sfsample.modules.module_map._MOST_GONE", 2)
    process, found = Process(), []
    index = ModuleMap(process._read, cache(process._open))  # a file that is still there is the same
    for number in range(5):
        process.maps = (mapping(A, "/bin/a"), mapping(B, f"/lib/{number}.so", inode=number + 2))
        index.refresh()
        found.append(index.find(B))
        index.reload([index.find(A)])  # which is there all the time
    process.maps = process.maps[:1]
    index.refresh()

    assert [module.let_go for module in found] == [True, True, True, False, False]
    assert [len(module.image.data) for module in found[2:]] == [64 + 56, 0x4000, 0x4000]
    assert {module.path for module in index.modules} == {"/bin/a", "/lib/3.so", "/lib/4.so"}
    assert not index.find(A).let_go
    process.maps = (mapping(A, "/bin/a"), mapping(B, "/lib/3.so", inode=5))
    index.refresh()
    assert index.find(B) is found[3]  # it is back
