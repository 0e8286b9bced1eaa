"""Any bytes are an ELF image or raise FormatError."""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sfsample.errors import FormatError
from sfsample.formats.elf.image import ElfImage, build_id_of
from sfsample.formats.elf.image import notes as read_notes
from tests.builders.elf_builder import (
    EHDR,
    PHDR,
    PT_GNU_SFRAME,
    PT_NOTE,
    SHT_SYMTAB,
    Bytes,
    Load,
    elf,
    note,
)

TEXT = Load(0x1000, b"code" * 16, offset=0x1000)


def read_everything(data: bytes) -> None:
    """Read everything of a file, or have the constructor raise FormatError."""
    try:
        made = ElfImage(data, "hostile")
    except FormatError:
        return
    made.sframe(), made.eh_frame_hdr(), made.symbols()
    assert made.build_id is None or bytes.fromhex(made.build_id)
    for section in made.sections:
        assert len(made.contents(section)) <= len(data)
    for start, _ in (*made.executable, *made.code_sections):
        loaded = made.loaded(start, 16)
        assert loaded is None or len(loaded) == 16
        made.load_bias(start & -4096, 0, executable=True)


QUICK = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
SMALL = elf(
    [
        TEXT._replace(offset=None),
        Load(0x300, note(b"\xab" * 20), type=PT_NOTE),
        Load(0x2000, b"x" * 40, type=PT_GNU_SFRAME),
    ],
    [Bytes(".sframe", 0x2000, b"x" * 40), Bytes(".symtab", 0, b"s" * 24, SHT_SYMTAB, link=2)],
)
INTERESTING = st.sampled_from(
    [0, 1, 2, 0x7F, 0x80, 0xFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, (1 << 63) - 1, (1 << 64) - 1]
)
MUTATIONS = st.lists(
    st.tuples(
        st.one_of(st.integers(0, EHDR + 3 * PHDR), st.integers(0, len(SMALL) - 1)),
        st.sampled_from([1, 2, 4, 8]),
        st.one_of(INTERESTING, st.integers(0, (1 << 64) - 1)),
    ),
    min_size=1,
    max_size=6,
)


@QUICK
@given(st.binary(max_size=200))
def test_any_bytes_parse_or_raise_format_error(data):
    read_everything(data)
    read_everything(b"\x7fELF\2\1" + data)


@QUICK
@given(MUTATIONS, st.integers(0, 200))
def test_mutated_headers_parse_or_raise_format_error(mutations, cut):
    data = bytearray(SMALL[: len(SMALL) - cut // 2])
    for position, size, value in mutations:
        offset = position % len(data)
        data[offset : offset + size] = (value & (1 << 8 * size) - 1).to_bytes(size, "little")
    read_everything(bytes(data))


@QUICK
@given(st.binary(max_size=80))
def test_any_notes_have_a_hexadecimal_build_id_or_none(notes):
    for byteorder in ("little", "big"):
        found = build_id_of(read_notes(memoryview(notes), byteorder))
        assert found is None or bytes.fromhex(found)
