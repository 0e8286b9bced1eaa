"""Code that lies in no file is read from the memory of the target, page by page."""

from sfsample.modules.module_map import ModuleMap
from tests.modules.fake_process import SIZE, A, B, FakeProcess, mapping


def test_code_is_read_once_per_page_until_the_mappings_change():
    read_addresses = []

    def read(address, size):
        read_addresses.append(address)
        return None if address >= A + 2 * SIZE else bytes([address >> 12 & 255]) * size

    maps = [mapping(A, "", inode=0)]
    module_map = ModuleMap(lambda: tuple(maps), lambda _: None, read)
    module_map.refresh()

    assert module_map.code(A + 8, 4) == b"\0" * 4
    assert module_map.code(A + SIZE - 1, 3) == b"\0\1\1"
    assert module_map.code(A + 2 * SIZE - 1, 3) == b"\1"
    assert module_map.code(A + 2 * SIZE, 3) == b""
    # a page that cannot be read is tried again: it may be there the next time
    assert read_addresses == [A, A + SIZE, A + 2 * SIZE, A + 2 * SIZE]
    module_map.refresh()
    module_map.code(A, 1)
    assert len(read_addresses) == 4
    maps.append(mapping(B, "", inode=0))
    module_map.refresh()
    module_map.code(A, 1)
    assert len(read_addresses) == 5


def test_the_number_of_kept_pages_is_limited():
    read_count = 0

    def read(_address, size):
        nonlocal read_count
        read_count += 1
        return bytes(size)

    module_map = ModuleMap(lambda: (), lambda _: None, read)
    for number in range(300):
        module_map.code(number * 4096, 1)
    assert len(module_map._code_pages) <= 256
    module_map.code(299 * 4096, 1)
    assert read_count == 300


def test_there_is_no_code_where_memory_cannot_be_read():
    assert FakeProcess(mapping(A)).modules.code(A, 8) == b""
