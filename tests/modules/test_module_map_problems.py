"""Files that cannot be opened, that come and go, or that were unmapped."""

from functools import cache

from sfsample.errors import FormatError
from sfsample.modules.module_map import ModuleMap
from tests.modules.fake_process import SIZE, TEXT, A, B, C, FakeProcess, mapping


def test_a_file_that_cannot_be_opened_is_reported_once():
    process = FakeProcess(mapping(A), mapping(A + SIZE, offset=TEXT + SIZE), unreadable=("/lib/a.so",))
    module_map = process.modules
    for _ in range(9):
        assert module_map.find(A) is module_map.find(A + SIZE) is None
        module_map.refresh()
        assert module_map.problems == ["/lib/a.so: ELF+0x0: damaged"]
        module_map.allow_refresh()

    assert len(process.opened) == 6  # three attempts for each mapping, not one for each sample
    process.maps = ()
    process.maps = (mapping(C),)
    module_map.refresh()
    assert module_map.find(C) is None
    assert len(module_map.problems) == 1


def test_opening_a_file_is_retried_after_allow_refresh():
    process = FakeProcess(mapping(A), unreadable=("/lib/a.so",))
    module_map = process.modules
    assert module_map.find(A) is None
    assert module_map.will_retry_open(A)
    assert not module_map.will_retry_open(B)
    generation = module_map.generation
    process.unreadable = ()
    assert module_map.find(A) is None  # not before the next sample
    module_map.allow_refresh()

    assert module_map.find(A).path == "/lib/a.so"
    assert module_map.generation > generation  # so that the cached "no unwind row here" is void
    assert not module_map.will_retry_open(A)
    assert module_map.problems == []


def test_a_file_that_was_unmapped_before_it_could_be_opened_is_no_problem():
    process = FakeProcess(mapping(A), mapping(B, "/lib/b.so"), unreadable=("/lib/a.so",))
    process.modules.refresh()
    process.maps = ()  # the process has ended
    assert process.modules.find(A) is None
    assert process.modules.problems == []

    process.maps = (mapping(B, "/lib/b.so"),)
    process.modules.allow_refresh()
    assert process.modules.find(A) is None
    assert process.modules.problems == []


def test_opening_is_not_retried_after_three_attempts():
    process = FakeProcess(mapping(A), unreadable=("/lib/a.so",))
    module_map = process.modules
    retried = []
    for _ in range(4):
        module_map.find(A)
        retried.append(module_map.will_retry_open(A))
        module_map.allow_refresh()

    assert retried == [True, True, False, False]


def test_a_mapping_that_matches_no_segment_is_reported_once():
    process = FakeProcess(mapping(A, offset=0x9_0000), mapping(B, offset=0x9_0000))
    module_map = process.modules

    assert module_map.find(A) is module_map.find(B) is None
    assert module_map.problems == ["/lib/a.so: no segment is loaded from file offset 0x90000"]


def test_problems_of_a_module_are_problems_of_the_module_map():
    process = FakeProcess(mapping(A))
    process.modules.find(A).note_damage(FormatError(".sframe", 4, "unknown ABI 9"))

    assert process.modules.problems == ["/lib/a.so: .sframe+0x4: unknown ABI 9"]


def test_modules_of_files_that_come_and_go_are_unstable():
    """A module that only comes, as most libraries do, is not unstable, nor is one that is not in use."""
    one, other = mapping(A, "/lib/one.so", inode=1), mapping(A, "/lib/other.so", inode=2)
    process = FakeProcess(one)
    module_map = process.modules
    module_map.find(A)
    process.maps = (one, mapping(B, "/lib/late.so", inode=3))
    module_map.allow_refresh()
    module_map.find(B)
    assert module_map.unstable_modules == frozenset()
    process.maps = (other, mapping(B, "/lib/late.so", inode=3))
    module_map.refresh()
    assert module_map.unstable_modules == frozenset()  # the new module was not looked up yet
    found = module_map.find(A)
    assert found.path == "/lib/other.so"
    assert module_map.unstable_modules == {found}


def test_only_the_last_unmapped_modules_stay_open(monkeypatch):
    monkeypatch.setattr("sfsample.modules.module_map._MAX_UNMAPPED_MODULES", 2)
    process, found = FakeProcess(), []
    # cached: a file that is opened again is the same image
    module_map = ModuleMap(process.read_maps, cache(process.open_image))
    for number in range(5):
        process.maps = (mapping(A, "/bin/a"), mapping(B, f"/lib/{number}.so", inode=number + 2))
        module_map.refresh()
        found.append(module_map.find(B))
        module_map.reload([module_map.find(A)])  # it is mapped all the time
    process.maps = process.maps[:1]
    module_map.refresh()

    assert [module.is_closed for module in found] == [True, True, True, False, False]
    assert [len(module.image.data) for module in found[2:]] == [64 + 56, 0x4000, 0x4000]
    assert {module.path for module in module_map.modules} == {"/bin/a", "/lib/3.so", "/lib/4.so"}
    assert not module_map.find(A).is_closed
    process.maps = (mapping(A, "/bin/a"), mapping(B, "/lib/3.so", inode=5))
    module_map.refresh()
    assert module_map.find(B) is found[3]  # mapped again
