"""The tables of machines: found by an ELF header, and consistent in themselves."""

import pytest

from sfsample.core.arch import AARCH64, AARCH64_BE, AMD64, ARCHES, LAYOUTS, S390X, arch_of
from sfsample.formats.sframe.rows import ABIS


@pytest.mark.parametrize(
    ("machine", "byteorder", "expected"),
    [
        (62, "little", AMD64),
        (183, "little", AARCH64),
        (183, "big", AARCH64_BE),
        (22, "big", S390X),
        (62, "big", None),
        (22, "little", None),
        (3, "little", None),
        (0, "", None),
    ],
)
def test_arch_of_finds_machine_and_byte_order(machine, byteorder, expected):
    assert arch_of(machine, byteorder) is expected


def test_sp_fp_and_pc_are_different_registers():
    for arch in ARCHES:
        assert len({arch.sp, arch.fp, arch.pc}) == 3
        assert arch.fp in arch.callee_saved
        assert arch.sp not in arch.callee_saved


def test_amd64_registers_are_those_of_the_psabi():
    """Figure 3.36 (DWARF numbers) and section 3.2.1 (rbx, rbp, r12 to r15 belong to the caller)."""
    assert (AMD64.sp, AMD64.fp, AMD64.ra, AMD64.pc) == (7, 6, 16, 16)
    assert AMD64.callee_saved == {3, 6, 12, 13, 14, 15}
    assert AMD64.red_zone == 128


def test_every_machine_has_a_register_layout_and_relocations():
    assert set(LAYOUTS) == {arch.machine for arch in ARCHES}
    for arch in ARCHES:
        layout = LAYOUTS[arch.machine]
        assert list(layout.event_bits) == sorted(layout.event_bits)
        assert len(layout.arguments) == 6


def test_every_sframe_abi_has_an_architecture():
    assert {abi.arch for abi in ABIS.values()} == set(ARCHES)
    assert all(abi.tracks_ra == (abi.arch.ra != abi.arch.pc) for abi in ABIS.values())
