import base64
import hashlib
import http.server
import importlib.util
import threading
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "_pip.py"
CONTENT = b"stands for the wheel"


@pytest.fixture
def script(monkeypatch, tmp_path):
    """The script, without any pip configuration of this machine, and with a wheel that is easy to make."""
    spec = importlib.util.spec_from_file_location("fetching_pip", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name in ("INDEX_URL", "EXTRA_INDEX_URL", "CERT", "PROXY", "CONFIG_FILE"):
        monkeypatch.delenv(f"PIP_{name}", raising=False)
    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "own"))
    monkeypatch.setenv("XDG_CONFIG_DIRS", str(tmp_path / "site"))
    monkeypatch.setattr(module, "WHEEL_SHA256", hashlib.sha256(CONTENT).hexdigest())
    return module


def make_index(folder, wheel, content=CONTENT, link="../../files/{}#sha256=00"):
    """Make a folder that serves as a package index, and give its address."""
    (folder / "simple" / "pip").mkdir(parents=True)
    (folder / "files").mkdir()
    (folder / "files" / wheel).write_bytes(content)
    links = ["../../files/pip-9.0.1-py2.py3-none-any.whl", link.format(wheel)]
    page = "<html><body>" + "".join(f'<a href="{target}">{target}</a>' for target in links)
    (folder / "simple" / "pip" / "index.html").write_text(page)
    return f"file://{folder}/simple"


def test_the_wheel_is_found_through_the_page_of_a_configured_index(script, tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_INDEX_URL", make_index(tmp_path / "index", script.WHEEL) + "/")
    assert script.fetch_wheel() == CONTENT


def test_what_has_another_hash_is_refused_and_the_next_index_asked(script, tmp_path, monkeypatch):
    bad = make_index(tmp_path / "bad", script.WHEEL, b"something else")
    monkeypatch.setenv("PIP_INDEX_URL", bad)
    with pytest.raises(script.PipError, match=f"{bad}/pip/: .* another SHA-256"):
        script.fetch_wheel()
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", make_index(tmp_path / "good", script.WHEEL))
    assert script.fetch_wheel() == CONTENT


def test_indexes_that_cannot_be_reached_or_lack_the_wheel_are_named(script, tmp_path, monkeypatch):
    lacking = make_index(tmp_path / "lacking", "pip-1.0-py3-none-any.whl")
    nowhere = f"file://{tmp_path}/nowhere"
    monkeypatch.setenv("PIP_INDEX_URL", nowhere)
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", lacking)
    with pytest.raises(script.PipError) as caught:
        script.fetch_wheel()
    assert f"{nowhere}/pip/" in str(caught.value)
    assert f"{lacking}/pip/: it lists no {script.WHEEL}" in str(caught.value)


def test_settings_come_from_where_pip_looks(script, tmp_path, monkeypatch):
    def write(path, section, index):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"[{section}]\nindex-url = {index}\n")

    monkeypatch.setattr(script, "configuration_files", without_etc(script.configuration_files))
    assert script.indexes() == [script.DEFAULT_INDEX]
    write(tmp_path / "site/pip/pip.conf", "global", "https://site")
    assert script.indexes() == ["https://site"]
    write(tmp_path / "own/pip/pip.conf", "install", "https://own")
    assert script.indexes() == ["https://own"]
    write(tmp_path / "chosen.conf", "global", "https://chosen")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "chosen.conf"))
    assert script.indexes() == ["https://chosen"]
    monkeypatch.setenv("PIP_INDEX_URL", "https://environment")
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "https://one https://two")
    assert script.indexes() == ["https://environment", "https://one", "https://two"]


def without_etc(configuration_files):
    return lambda: [path for path in configuration_files() if not str(path).startswith("/etc/")]


@pytest.fixture
def guarded_index(tmp_path):
    """A server on this machine that wants a user and a password, and the requests that it had."""
    seen = []

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *arguments):
            super().__init__(*arguments, directory=str(tmp_path / "index"))

        def do_GET(self):
            seen.append((self.path, self.headers.get("Authorization")))
            expected = "Basic " + base64.b64encode(b"me:p@ss").decode()
            if seen[-1][1] == expected:
                super().do_GET()
            else:
                self.send_error(401)

        def log_message(self, *arguments):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port, seen
        server.shutdown()
        thread.join()


def test_a_password_in_the_address_is_used_and_not_shown(script, tmp_path, monkeypatch, guarded_index):
    port, seen = guarded_index
    make_index(tmp_path / "index", script.WHEEL)
    monkeypatch.setenv("PIP_INDEX_URL", f"http://me:p%40ss@127.0.0.1:{port}/simple")
    assert script.fetch_wheel() == CONTENT
    assert [path for path, _ in seen] == ["/simple/pip/", f"/files/{script.WHEEL}"]
    monkeypatch.setenv("PIP_INDEX_URL", f"http://me:wrong@127.0.0.1:{port}/simple")
    with pytest.raises(script.PipError) as caught:
        script.fetch_wheel()
    assert "401" in str(caught.value)
    assert "wrong" not in str(caught.value)
