"""Debug files are downloaded from a local test server into the standard client's cache."""

import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from sfsample.cli import dump
from sfsample.cli.environment import symbol_options
from sfsample.cli.options import NameFlags
from sfsample.cli.parse import parse
from sfsample.errors import SfsampleError, UsageError
from sfsample.formats.elf.image import ElfImage
from sfsample.modules.debug_files import DebugFiles
from sfsample.modules.module import Module
from sfsample.symbolize import debuginfod
from sfsample.symbolize.debuginfod import Debuginfod, make_private
from sfsample.symbolize.module_symbols import ModuleSymbols
from tests.builders import elf_builder as e
from tests.builders import symtab_builder as b

BUILD_ID = bytes(range(1, 21))
HEX = BUILD_ID.hex()


def elf_file(*symbols, build_id=BUILD_ID):
    symtab, strtab = b.build(*symbols)
    sections = [
        e.Bytes(".text", 0x1000, bytes(0x100), flags=6),
        e.Bytes(".symtab", 0, symtab, e.SHT_SYMTAB, 0, link=3),
        e.Bytes(".strtab", 0, strtab, e.SHT_STRTAB, 0),
    ]
    loads = [e.Load(0x1000, bytes(0x100)), e.Load(0x2000, e.note(build_id), e.R, e.PT_NOTE)]
    return e.elf(loads, sections if symbols else None)


DEBUG = elf_file(b.Sym("found", 0x1010, 0x10))


class Server(ThreadingHTTPServer):
    """Serves `answers`, {path: (status, body)}, and records the requested paths."""

    def __init__(self, answers):
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers, self.requests = answers, []

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}/"


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.requests.append(self.path)
        status, body = self.server.answers.get(self.path, (404, b"not found"))
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def serve():
    servers = []

    def start(status=200, body=DEBUG):
        server = Server({f"/buildid/{HEX}/debuginfo": (status, body)})
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def client(cache, *servers, **options):
    return Debuginfod([server.url for server in servers], str(cache), 10, lambda _: None, **options)


def symbols(fetch):
    stripped = Module(ElfImage(elf_file(), "stripped"), 0, "/opt/stripped")
    return ModuleSymbols(stripped, DebugFiles([], fetch=fetch))


def test_a_stripped_module_is_symbolized_by_a_downloaded_file(serve, tmp_path):
    server = serve()
    assert symbols(client(tmp_path, server)).find(0x1010).name == "found"
    assert server.requests == [f"/buildid/{HEX}/debuginfo"]


def test_a_download_is_cached_as_the_standard_client_does(serve, tmp_path):
    server = serve()
    client(tmp_path, server)(HEX)
    assert (tmp_path / HEX / "debuginfo").read_bytes() == DEBUG
    assert os.listdir(tmp_path / HEX) == ["debuginfo"]
    assert bytes(client(tmp_path, server)(HEX)) == DEBUG
    assert len(server.requests) == 1


def test_the_next_server_is_asked_when_one_has_no_file(serve, tmp_path):
    first, second = serve(404, b""), serve()
    assert bytes(client(tmp_path, first, second)(HEX)) == DEBUG
    assert len(first.requests) == len(second.requests) == 1


def test_a_missing_file_is_remembered_for_a_while(serve, tmp_path):
    server = serve(404, b"")
    assert client(tmp_path, server)(HEX) is None
    assert (tmp_path / HEX / "debuginfo").stat().st_size == 0
    assert client(tmp_path, server)(HEX) is None
    assert len(server.requests) == 1
    os.utime(tmp_path / HEX / "debuginfo", (0, 0))
    assert client(tmp_path, server)(HEX) is None
    assert len(server.requests) == 2


def test_only_the_cache_is_used_offline(serve, tmp_path):
    server = serve()
    assert client(tmp_path, server, online=False)(HEX) is None
    assert server.requests == []
    client(tmp_path, server)(HEX)
    assert bytes(client(tmp_path, server, online=False)(HEX)) == DEBUG


@pytest.mark.parametrize("status", [500, 403])
def test_an_error_of_the_server_is_reported(serve, tmp_path, status):
    found = symbols(client(tmp_path, serve(status, b"")))
    assert found.find(0x1010) is None
    assert str(status) in found.why_unnamed()
    assert os.listdir(tmp_path / HEX) == []  # asked again next time


def test_an_unreachable_server_is_reported(serve, tmp_path):
    server = serve()
    server.shutdown()
    server.server_close()
    with pytest.raises(SfsampleError, match=r"debuginfod: URLError: .*refused"):
        client(tmp_path, server)(HEX)


def test_a_file_of_another_module_is_refused(serve, tmp_path):
    other = elf_file(b.Sym("wrong", 0x1010, 0x10), build_id=bytes(20))
    found = symbols(client(tmp_path, serve(body=other)))
    assert found.find(0x1010) is None
    assert (
        found.why_unnamed()
        == f"a debug file does not belong to this module: debuginfod: has build-id {'00' * 20}"
    )


def test_a_file_that_is_not_elf_is_refused(serve, tmp_path):
    found = symbols(client(tmp_path, serve(body=b"<html>")))
    assert found.find(0x1010) is None
    assert "not an ELF file" in found.why_unnamed()


def test_a_file_that_is_too_large_is_refused(serve, tmp_path, monkeypatch):
    monkeypatch.setattr(debuginfod, "_MAX_FILE_BYTES", 100)
    with pytest.raises(SfsampleError, match="more than"):
        client(tmp_path, serve())(HEX)
    assert os.listdir(tmp_path / HEX) == []


@pytest.mark.parametrize("where", ["cache", "parent"])
@pytest.mark.parametrize("online", [True, False])
def test_a_cache_where_another_user_may_write_is_not_used(serve, tmp_path, where, online):
    server, cache = serve(), tmp_path / "parent" / "cache"
    client(cache, server)(HEX)
    (cache if where == "cache" else cache.parent).chmod(0o777)
    found = symbols(client(cache, server, online=online))
    assert found.find(0x1010) is None
    reason = f"debuginfod: not used, as another user can write there: {cache}/{HEX}"
    assert found.why_unnamed() == reason
    assert len(server.requests) == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_file_of_another_user_in_the_cache_is_not_used(serve, tmp_path):
    server = serve()
    client(tmp_path, server)(HEX)
    os.chown(tmp_path / HEX / "debuginfo", 65534, 65534)
    found = symbols(client(tmp_path, server))
    assert found.find(0x1010) is None
    assert found.why_unnamed().startswith("debuginfod: not used, as it belongs to another user: ")


def test_a_cache_is_made_for_the_user_alone_whatever_the_umask(serve, tmp_path):
    before = os.umask(0)
    try:
        client(tmp_path / "new" / "cache", serve())(HEX)
    finally:
        os.umask(before)
    assert bytes(client(tmp_path / "new" / "cache")(HEX)) == DEBUG
    modes = [(tmp_path / name).stat().st_mode & 0o777 for name in ("new", "new/cache", f"new/cache/{HEX}")]
    assert modes == [0o700] * 3


def test_a_build_id_that_is_none_leads_to_no_path(serve, tmp_path):
    server = serve()
    assert client(tmp_path / "cache", server)("../escaped") is None
    assert server.requests == []
    assert os.listdir(tmp_path) == []


def test_debuginfod_flag_needs_a_server_and_dump_asks_none(monkeypatch, tmp_path, serve):
    monkeypatch.delenv("DEBUGINFOD_URLS", raising=False)
    with pytest.raises(UsageError, match="no server is configured"):
        symbol_options(NameFlags(debuginfod=True), quiet=True)
    assert symbol_options(NameFlags(), quiet=True).fetch is None
    server = serve()
    monkeypatch.setenv("DEBUGINFOD_URLS", f"{server.url} file:///etc")
    monkeypatch.setenv("DEBUGINFOD_CACHE_PATH", str(tmp_path / "cache"))
    assert dump.symbols(parse(["dump", "-p", "1", "--debuginfod"])).fetch(HEX) is None
    assert server.requests == []
    assert bytes(symbol_options(NameFlags(debuginfod=True), quiet=True).fetch(HEX)) == DEBUG


@pytest.mark.parametrize("mode", [0o770, 0o707])
def test_a_directory_that_other_users_may_replace_is_not_private(tmp_path, mode):
    """The right to write to a directory is the right to rename what is in it."""
    assert make_private(str(tmp_path / "new" / "cache"))
    (tmp_path / "new").chmod(mode)
    assert not make_private(str(tmp_path / "new" / "cache"))
    (tmp_path / "new").chmod(mode | 0o1000)  # sticky, as /tmp is
    assert make_private(str(tmp_path / "new" / "cache"))


def test_a_directory_behind_a_link_that_others_may_replace_is_not_private(tmp_path):
    make_private(str(tmp_path / "new" / "cache"))
    (tmp_path / "open").mkdir()
    (tmp_path / "open" / "link").symlink_to(tmp_path / "new")
    assert make_private(str(tmp_path / "open" / "link" / "cache"))
    (tmp_path / "open").chmod(0o777)
    assert not make_private(str(tmp_path / "open" / "link" / "cache"))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_directory_below_that_of_another_user_is_not_private(tmp_path):
    make_private(str(tmp_path / "new" / "cache"))
    os.chown(tmp_path / "new", 65534, 65534)
    assert not make_private(str(tmp_path / "new" / "cache"))
