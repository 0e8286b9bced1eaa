"""A profile says whose it is: labels of a process that runs, of its environment, of its process context."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.live.cli_runner import sfsample
from tests.live.compiled import compile_c, needs_gcc
from tests.live.compiled import started as started_program

pytestmark = [pytest.mark.live, pytest.mark.any_load]
# Publishes a process context as OTEP 4719 says: in a memfd with argument "memfd", else in anonymous memory.
PUBLISHER = r"""
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
static const char payload[] = "\x0a\x1a\x0a\x18\x0a\x0c" "service.name" "\x12\x08\x0a\x06" "orders";
struct header { char signature[8]; uint32_t version, size; uint64_t published_ns; const char *payload; };
int main(void)
{
    int fd = memfd_create("OTEL_CTX", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, sizeof(struct header)))
        return 1;
    struct header *made = mmap(NULL, sizeof *made, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
    close(fd);
    madvise(made, sizeof *made, MADV_DONTFORK);
    made->version = 2; made->size = sizeof payload - 1; made->payload = payload;
    memcpy(made->signature, "OTEL_CTX", 8);
    __atomic_store_n(&made->published_ns, 1, __ATOMIC_RELEASE);
    puts("ready"); fflush(stdout);
    for (;;) __asm__ volatile("");
}
"""


@contextmanager
def busy(**environment: str | bytes) -> Iterator[int]:
    """Run a program that uses a CPU, with these environment variables added; yield its pid."""
    words = [sys.executable, "-c", "print(flush=True)\nwhile True: pass"]
    given = {os.fsencode(key): value for key, value in {**os.environ, **environment}.items()}
    with subprocess.Popen(words, stdout=subprocess.PIPE, env=given) as child:
        try:
            assert child.stdout is not None
            child.stdout.readline()
            yield child.pid
        finally:
            child.kill()


def profile(out: Path, *words: object) -> dict[str, object]:
    done = sfsample("record", "-d", "500ms", "--mode", "wall", "-o", out, *words)
    assert done.code == 0, done.err
    return json.loads(out.read_text())


def test_labels_of_kernel_environment_and_flags(tmp_path):
    variables = {
        "OTEL_SERVICE_NAME": "shop",
        "OTEL_RESOURCE_ATTRIBUTES": "team=a,region=eu",
        "X": "confidential",
    }
    with busy(**variables) as pid:
        found = profile(tmp_path / "a.json", "-p", pid, "--label", "team=b", "--label", "team=c")
        without = profile(tmp_path / "b.json", "-p", pid, "--no-environ")
        exe = os.readlink(f"/proc/{pid}/exe")
    labels, target = found["labels"], found["target"]
    assert {"service.name": "shop", "team": "c", "region": "eu"}.items() <= labels.items()
    assert labels["host.name"] == found["host"]
    assert target["exe"] == exe
    assert target["build_id"] == labels.get("process.executable.build_id.gnu")
    assert 0 < target["started"] < found["started_ns"] / 1e9
    assert labels.keys() - without["labels"].keys() == {"service.name", "team", "region"}
    assert without["target"] == target
    assert "confidential" not in (tmp_path / "a.json").read_text()


def test_two_processes_have_the_labels_that_both_have(tmp_path):
    with busy(DD_SERVICE="shop", DD_ENV="a") as first, busy(DD_SERVICE="shop", DD_ENV="b") as second:
        found = profile(tmp_path / "a.json", "-p", f"{first},{second}")
    assert found["labels"]["service.name"] == "shop"
    assert "deployment.environment.name" not in found["labels"]
    assert found["target"]["exe"] == os.path.realpath(sys.executable)


def test_large_environment_that_is_no_text(tmp_path):
    many = {f"V{n}": "x" * 100_000 for n in range(10)}
    with busy(**many, DD_SERVICE=b"a\xff\x1b[31m;b", OTEL_RESOURCE_ATTRIBUTES=b"\xff" * 100_000) as pid:
        found = profile(tmp_path / "a.json", "-p", pid)
    assert found["labels"]["service.name"] == "a\ufffd?[31m:b"


@needs_gcc
def test_process_context_of_a_program(tmp_path):
    with started_program(compile_c(tmp_path, "publisher", PUBLISHER)) as child:
        found = profile(tmp_path / "a.json", "-p", child.pid)
    assert found["labels"]["service.name"] == "orders"
    assert found["labels"]["comm"] == "publisher"


def test_every_format_that_has_a_place_shows_them(tmp_path):
    with busy(DD_SERVICE="shop") as pid:
        profile(tmp_path / "a.json", "-p", pid)
    for name in ("a.html", "a.pb.gz"):
        assert sfsample("convert", tmp_path / "a.json", "-o", tmp_path / name).code == 0
    assert "service.name=shop" in (tmp_path / "a.html").read_text()
    again = json.loads(sfsample("convert", tmp_path / "a.pb.gz", "-f", "json").out)
    assert again["labels"] == json.loads((tmp_path / "a.json").read_text())["labels"]


def test_watch_takes_the_same_flags(tmp_path):
    with busy(DD_SERVICE="shop") as pid:
        words = ("watch", "-p", pid, "--every", "1s", "--for", "500ms", "--mode", "wall", "--label", "a=b")
        with subprocess.Popen(
            [sys.executable, "-m", "sfsample", *map(str, words), "--output-dir", str(tmp_path / "w")],
            stderr=subprocess.PIPE,
        ) as child:
            assert child.stderr is not None
            child.stderr.readline()  # of the first slice
            child.terminate()
    written = sorted((tmp_path / "w").iterdir())
    assert {"a": "b", "service.name": "shop"}.items() <= json.loads(written[0].read_text())["labels"].items()
