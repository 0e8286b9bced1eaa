"""Real sections with changed bytes, cut off or spliced with another raise nothing but `FormatError`.

SFrame, `.eh_frame` with its header, DWARF expressions of libc, whole files (with notes and segments), symbol
tables.  `fuzz_targets.py` judges: a value, None or `FormatError`.  Without --all, test_fuzz_smoke.py does
nearly the same.
"""

from functools import cache

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sfsample.formats.elf.image import ElfImage, build_id_of
from sfsample.formats.elf.image import notes as read_notes
from tests.properties.fuzz_targets import TARGETS, fixtures, seeds

seeds_of = cache(lambda name: list(seeds(name)))
BYTES = st.one_of(st.integers(0, 255), st.sampled_from([0, 1, 0x7F, 0x80, 0xFF]))
NEAR_THE_FRONT = st.one_of(st.integers(0, 40), st.integers(0, 400), st.integers(0, 1 << 20))
CHANGES = st.lists(st.tuples(NEAR_THE_FRONT, BYTES), min_size=1, max_size=4)
QUICK = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


def changed(data: bytes, changes: list[tuple[int, int]]) -> bytes:
    out = bytearray(data)
    for at, byte in changes:
        out[at % len(out)] = byte
    return bytes(out)


@pytest.mark.extended
@pytest.mark.parametrize("name", TARGETS)
@QUICK
@given(st.data())
def test_changed_bytes(name, data):
    TARGETS[name](changed(data.draw(st.sampled_from(seeds_of(name))), data.draw(CHANGES)))


@pytest.mark.extended
@pytest.mark.parametrize("name", TARGETS)
@QUICK
@given(st.data())
def test_cut_off_or_spliced(name, data):
    first, second = (data.draw(st.sampled_from(seeds_of(name))) for _ in range(2))
    head = first[: data.draw(st.integers(0, len(first)))]
    tail = second[data.draw(st.integers(0, len(second))) :] if data.draw(st.booleans()) else b""

    TARGETS[name](head + tail)


def notes() -> list[bytes]:
    found = []
    for path in fixtures():
        image = ElfImage(path.read_bytes(), path.name)
        found += [bytes(image.data[s.offset : s.offset + s.filesz]) for s in image.segments if s.type == 4]
    return found


NOTES = notes()


@QUICK
@given(st.sampled_from(NOTES), CHANGES, st.integers(0, 200), st.sampled_from(["little", "big"]))
def test_changed_notes(good, changes, cut, byteorder):
    data = changed(good, changes)[: len(good) - cut if cut < len(good) else None]
    found = build_id_of(read_notes(memoryview(data), byteorder))

    assert found is None or 0 < len(bytes.fromhex(found)) <= len(good)
