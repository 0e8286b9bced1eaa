"""Where slices are sent, with which headers, and which credentials are refused."""

from pathlib import Path

import pytest

from sfsample.cli import main
from sfsample.cli.parse import parse
from sfsample.core.quantities import BadValue
from sfsample.errors import SfsampleError, UsageError
from sfsample.watching.push.backend import PATHS, headers_for, parse_backend
from sfsample.watching.push.encode import series_labels

OTLP = ("--push", "otlp=http://a")
BEARER = "Authorization: Bearer abc123"


def write(path: Path, text: str, mode: int = 0o600) -> str:
    path.write_text(text)
    path.chmod(mode)
    return str(path)


@pytest.mark.parametrize(
    ("text", "host", "port", "path"),
    [
        ("parca=http://db:7070", "db", 7070, "/api/profiles/writeraw"),
        ("parca=http://db", "db", 80, "/api/profiles/writeraw"),
        ("otlp=https://[::1]/a/b/", "::1", 443, "/a/b/v1development/profiles"),
        ("pyroscope=HTTP://DB:1/x", "db", 1, "/x/push.v1.PusherService/Push"),
    ],
)
def test_url_is_the_base_of_the_path(text, host, port, path):
    assert parse_backend(text)[2:6:1][:2] == (host, port)
    assert parse_backend(text).path == path


@pytest.mark.parametrize(
    "text",
    ["", "parca", "parca=", "parca=db:7070", "parca=ftp://db", "parca=http://", "tempo=http://db",
     "parca=http://db:99999", "parca=http://db:x", "parca=http://[::1", "parca=http://db/a b",
     "parca=http://db/\n", "parca=http://db/?a=b", "parca=http://db/#a", "parca=http://dbö"],
)  # fmt: skip
def test_other_texts_are_refused(text):
    with pytest.raises(BadValue):
        parse_backend(text)


def test_password_in_a_url_is_refused_and_not_repeated(capsys):
    assert main(["history", "push", "--push", "parca=http://me:secret@db:7070"]) == 2
    said = capsys.readouterr().err
    assert "--push-auth-file" in said
    assert "secret" not in said


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["watch", "1", "--no-history", "--output-dir", "d", *OTLP], "--push needs a history"),
        (["watch", "1", "--push-auth-file", "f"], "--push-auth-file needs --push"),
        (["history", "push"], "history push needs --push"),
        (["history", "list", *OTLP], "unrecognized arguments: --push"),
        (["history", "list", "--follow"], "unrecognized arguments: --follow"),
        (["history", "push", *OTLP, "--since", "1h"], "unrecognized arguments: --since"),
    ],
)  # fmt: skip
def test_flags_that_do_not_go_together(words, why):
    with pytest.raises(UsageError, match=why):
        parse(words)


def test_a_backend_that_is_given_twice_is_one():
    words = ["--push", "otlp=http://a", "--push", "otlp=http://a", "--push", "otlp=http://b"]
    assert len(parse(["history", "push", *words]).push.backends) == 2


def test_headers_are_those_of_the_file(tmp_path):
    path = write(tmp_path / "auth", "# a comment\nX-Scope-OrgID: all\n\nA:2\n")
    backend = parse_backend("parca=https://a")
    assert headers_for(backend, path) == {"X-Scope-OrgID": "all", "A": "2"}
    assert headers_for(backend, None) == {}


def test_headers_of_a_section_go_to_that_kind_only(tmp_path):
    text = "Common: 1\n[pyroscope]\nAuthorization: Bearer p\n[otlp]\nAuthorization: Bearer o\n"
    path = write(tmp_path / "auth", text)
    found = {kind: headers_for(parse_backend(f"{kind}=https://a"), path) for kind in PATHS}
    assert found == {
        "pyroscope": {"Common": "1", "Authorization": "Bearer p"},
        "parca": {"Common": "1"},
        "otlp": {"Common": "1", "Authorization": "Bearer o"},
    }


@pytest.mark.parametrize("text", ["abc123", "A b: abc123", "[abc123]", "A: ", "A: abc\1"])
def test_lines_that_are_no_header_are_refused_and_not_repeated(tmp_path, text):
    path = write(tmp_path / "auth", f"\n{text}\n")
    with pytest.raises(SfsampleError, match="line 2") as failure:
        headers_for(parse_backend("parca=https://a"), path)
    assert "abc123" not in f"{failure.value} {failure.value.help}"


def test_file_that_others_read_is_refused(tmp_path):
    path = write(tmp_path / "auth", BEARER, 0o644)
    with pytest.raises(SfsampleError, match="other users") as failure:
        headers_for(parse_backend("parca=https://a"), path)
    assert failure.value.help == (f"chmod 600 {path}",)


@pytest.mark.parametrize("url", ["https://db", "http://localhost:1", "http://127.0.0.9", "http://[::1]:7"])
def test_credentials_are_sent_where_no_one_reads_them(tmp_path, url):
    path = write(tmp_path / "auth", BEARER)
    assert headers_for(parse_backend(f"parca={url}"), path) == {"Authorization": "Bearer abc123"}


@pytest.mark.parametrize("url", ["http://db", "http://10.0.0.1", "http://localhost.example.org"])
def test_credentials_are_not_sent_unencrypted(tmp_path, url):
    backend = parse_backend(f"parca={url}")
    with pytest.raises(SfsampleError, match="unencrypted"):
        headers_for(backend, write(tmp_path / "auth", BEARER))
    assert headers_for(backend, write(tmp_path / "tenant", "x-scope-orgid: team")) == {
        "x-scope-orgid": "team"
    }


def test_systemds_credential_is_used_first(tmp_path, monkeypatch):
    write(tmp_path / "push-auth", BEARER)
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    assert headers_for(parse_backend("parca=https://a"), "/missing") == {"Authorization": "Bearer abc123"}


def test_history_push_with_credentials_that_cannot_be_used_is_an_error(tmp_path, capsys):
    words = ["history", "push", "--history", str(tmp_path), "--push", "parca=http://db", "--push-auth-file"]
    assert main([*words, write(tmp_path / "auth", BEARER)]) == 1
    said = capsys.readouterr().err
    assert "unencrypted" in said
    assert "cannot push" not in said


def test_labels_get_names_that_backends_take():
    labels = {"service.name": "shop", "a.b": "1", "a/b": "2", "9": "4", "__name__": "5", "ö": "6"}
    assert series_labels(labels) == {"__name__": "process_cpu", "service_name": "shop", "a_b": "2", "_9": "4",
                                     "_": "6"}  # fmt: skip


def test_watch_checks_the_file_of_credentials(tmp_path, capsys):
    words = ["watch", "1", "--history", str(tmp_path), "--push", "parca=https://a", "--push-auth-file"]
    assert main([*words, str(tmp_path / "missing"), "--check"]) == 1
    assert "cannot read" in capsys.readouterr().err
    assert main([*words, write(tmp_path / "auth", BEARER), "--check"]) == 0
