"""The path of a Python file from the entry of sys.path, by its name and by where the program runs."""

import pytest

from sfsample.modules.location import import_path

OWN = ("/srv/shop/web", "/srv/shop")


@pytest.mark.parametrize(
    ("file", "path"),
    [
        ("/srv/shop/web/app.py", "app.py"),
        ("/srv/shop/web/views/app.py", "views/app.py"),
        ("/srv/shop/models/user.py", "models/user.py"),
        ("/srv/shopping/app.py", "app.py"),
        ("/srv/shop/venv/lib/python3.12/site-packages/flask/app.py", "flask/app.py"),
        ("/usr/lib/python3/dist-packages/yaml/nodes.py", "yaml/nodes.py"),
        ("/usr/lib/python3.11/asyncio/base_events.py", "asyncio/base_events.py"),
        ("/usr/lib64/python3.13t/threading.py", "threading.py"),
        ("/usr/lib/python312.zip/json/decoder.py", "json/decoder.py"),
        ("/home/me/lib/python3/tools/app.py", "app.py"),
        ("./app.py", "app.py"),
        ("shop/views.py", "shop/views.py"),
        ("<frozen importlib._bootstrap>", "<frozen importlib._bootstrap>"),
        ("<string>", "<string>"),
        ("/", ""),
        ("", ""),
        ("/a/site-packages/" * 100_000 + "x.py", "x.py"),
    ],
    ids=lambda value: value[:40],
)
def test_import_path(file: str, path: str) -> None:
    assert import_path(file, OWN) == path


def test_without_directories_own_files_have_their_base_name() -> None:
    assert import_path("/srv/shop/web/views/app.py") == "app.py"
