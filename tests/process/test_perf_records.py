"""Records of perf events are parsed from bytes that are built here as perf_event_open(2) describes them."""

from struct import pack

import pytest

from sfsample.core.arch import AARCH64, AMD64, S390X
from sfsample.process.perf_events import PerfEvents
from sfsample.process.perf_records import Born, Family, Lost, Mapped, Named, Parser, PerfSample

_ID = pack("=IIQ", 7, 8, 1_000)  # pid, tid, time


def record(kind, body, misc=0):
    """A record with its header; `body` is a multiple of 8 bytes."""
    return pack("=IHH", kind, misc, 8 + len(body)) + body


def sample(arch, values, stack, copied, *, abi=2, chain=()):
    body = pack(f"=IIQQQ{len(chain)}Q", 7, 8, 1_000, 10_000, len(chain), *chain) + pack("=Q", abi)
    body += pack(f"={len(values)}Q", *values)
    body += pack("=Q", len(stack)) + stack + (pack("=Q", copied) if stack else b"")
    return Parser(arch).parse(record(9, body))


@pytest.mark.parametrize("arch", [AMD64, AARCH64, S390X], ids=lambda arch: arch.name)
def test_sample_has_the_requested_registers(arch):
    count = Parser(arch).mask.bit_count()
    found = sample(arch, range(100, 100 + count), bytes(range(64)), 40)
    assert isinstance(found, PerfSample)
    assert found[:4] == (1_000, 7, 8, 10_000)
    assert sorted(found.registers.values()) == [*range(100, 100 + count)]
    assert arch.pc in found.registers
    assert arch.callee_saved <= found.registers.keys()
    assert (found.memory.base, found.memory.data) == (found.registers[arch.sp], bytes(range(40)))
    assert not found.bounded
    assert sample(arch, range(count), bytes(64), 64).bounded


def test_register_order_on_amd64_is_that_of_the_kernel():
    """asm/perf_regs.h: AX BX CX DX SI DI BP SP IP, and R8 to R15 behind flags and segments."""
    high = [f"r{n}" for n in range(8, 16)]
    names = ["rax", "rbx", "rcx", "rdx", "rsi", "rdi", "rbp", "rsp", "rip", *high]
    dwarf = ["rax", "rdx", "rcx", "rbx", "rsi", "rdi", "rbp", "rsp", *high, "rip"]
    found = sample(AMD64, range(17), b"", 0).registers
    assert {dwarf[number]: names[value] for number, value in found.items()} == {name: name for name in names}
    assert Parser(AMD64).mask == 0xFF01FF


def test_sample_of_an_exiting_thread_has_no_registers():
    found = sample(AMD64, (), b"", 0, abi=0)
    assert found.registers == {}
    assert found.memory.data == b""


def test_sample_of_32_bit_code_has_no_registers():
    assert sample(AMD64, range(17), bytes(8), 8, abi=1).registers == {}


def test_sample_in_the_kernel_has_the_call_chain_after_its_mark():
    """PERF_CONTEXT_KERNEL of linux/perf_event.h is -128; in user space the chain is empty."""
    chain = ((1 << 64) - 128, 0xFFFFFFFF81000010, 0xFFFFFFFF81000020)
    found = sample(AMD64, range(17), bytes(64), 40, chain=chain)
    assert found.kernel == chain[1:]
    assert found[:4] == (1_000, 7, 8, 10_000)
    assert (sorted(found.registers.values()), found.memory.data) == ([*range(17)], bytes(40))
    assert sample(AMD64, range(17), bytes(64), 40).kernel == ()


class _GrowingRing:
    """A ring; while it is read, records are added to it and to other rings."""

    def __init__(self, records, others=()):
        self.records, self.others = records, others

    def head(self):
        return len(self.records)

    def take(self, head):
        for ring in (self, *self.others):
            ring.records.append(pack("=IHHQQIIQ", 2, 0, 40, 1, 1, 7, 8, 99))
        yield from self.records[:head]
        del self.records[:head]

    def close(self):
        pass


def test_records_written_during_a_read_are_left_for_the_next():
    """Otherwise a record of the second ring could come before an earlier one that the first still has."""
    first, second = pack("=IHHQQIIQ", 2, 0, 40, 1, 1, 7, 8, 1), pack("=IHHQQIIQ", 2, 0, 40, 1, 1, 7, 8, 2)
    events = PerfEvents([1], (), AMD64, 10**7, 4096)
    events.close()  # these rings take the place of its own
    other = _GrowingRing([second])
    events._rings = {0: _GrowingRing([first], [other]), 1: other}
    assert [record.at_ns for record in events.read()] == [1, 2]


def test_records_other_than_samples_are_parsed():
    parse = Parser(AMD64).parse
    mapped = pack("=IIQQ", 7, 7, 0x1000, 0x2000) + bytes(40) + b"/lib/a.so".ljust(16, b"\0")
    assert parse(record(10, mapped + _ID)) == Mapped(1_000, 7, 0x1000, 0x3000)
    named = pack("=II", 7, 8) + b"worker".ljust(8, b"\0")
    assert parse(record(3, named + _ID)) == Named(1_000, 7, 8, "worker", program=False)
    assert parse(record(3, named + _ID, misc=1 << 13)) == Named(1_000, 7, 8, "worker", program=True)
    assert parse(record(2, pack("=QQ", 1, 5) + _ID)) == Lost(1_000, 5)
    assert parse(record(7, pack("=IIIIQ", 7, 6, 9, 5, 1_000) + _ID)) == Born(1_000, 7, 6, 9, 5)
    assert parse(record(4, bytes(24) + _ID)) is None  # PERF_RECORD_EXIT, which is not used


def test_family_is_the_processes_and_with_subprocesses_those_that_they_create():
    born = [Born(1, 8, 7, 8, 7), Born(2, 9, 8, 9, 8), Born(3, 11, 10, 11, 10), Born(4, 7, 7, 12, 7)]
    alone, with_children = Family([7], subprocesses=False), Family([7], subprocesses=True)
    assert [alone.has(record) for record in born] == [False, False, False, True]
    assert [with_children.has(record) for record in born] == [True, True, False, True]
    assert alone.has(Lost(5, 3))
    assert not alone.has(Mapped(6, 8, 0, 4096))
    assert with_children.has(Mapped(6, 9, 0, 4096))
