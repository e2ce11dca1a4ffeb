"""Put pip into a virtual environment where Python came without `ensurepip`, as Debian's does.

One wheel of pip, known by its SHA-256, is taken from the package index that pip is configured for, and
installs itself. From then on that pip does everything, with its own certificates and its own configuration.
"""

from __future__ import annotations

import base64
import configparser
import hashlib
import html.parser
import os
import ssl
import subprocess
import sys
import tempfile
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

WHEEL = "pip-25.3-py3-none-any.whl"
WHEEL_SHA256 = "9655943313a94722b7774661c21049070f6bbb0a1516bf02f7c8d5d9201514cd"
DEFAULT_INDEX = "https://pypi.org/simple"
TIMEOUT_SECONDS = 60


class PipError(Exception):
    """pip could not be had."""


def install_pip(environment_python: Path) -> None:
    """Install pip into the virtual environment of this Python.

    Raises
    ------
    PipError
        No index gave the wheel, or it could not be installed.
    """
    with tempfile.TemporaryDirectory() as folder:
        wheel = Path(folder) / WHEEL
        wheel.write_bytes(fetch_wheel())
        # A wheel is a zip file and pip is pure Python, so pip runs from inside its own wheel.
        done = subprocess.run(
            [environment_python, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", wheel],
            env={**os.environ, "PYTHONPATH": str(wheel), "PIP_USER": "0"},
        )
    if done.returncode != 0:
        raise PipError(f"{WHEEL} could not install itself (exit status {done.returncode}).")


def fetch_wheel() -> bytes:
    """Give the content of pip's wheel, from the first configured index that has it."""
    failures = []
    for index in indexes():
        page = index.rstrip("/") + "/pip/"
        try:
            content = read(wheel_address(page))
        except (OSError, PipError, ValueError) as error:
            failures.append(f"  {without_password(page)}: {error}")
            continue
        if hashlib.sha256(content).hexdigest() == WHEEL_SHA256:
            return content
        failures.append(f"  {without_password(page)}: what it gives as {WHEEL} has another SHA-256")
    raise PipError(
        f"This Python has no ensurepip, and {WHEEL} could not be fetched:\n"
        + "\n".join(failures)
        + "\nInstall python3-venv or virtualenv, or set PIP_INDEX_URL to an index that is in reach."
    )


def indexes() -> list[str]:
    """Give the addresses of the package indexes that pip would ask, in its order."""
    return [*setting("index-url", DEFAULT_INDEX).split(), *setting("extra-index-url", "").split()]


def setting(name: str, default: str) -> str:
    """Read one of pip's settings the way pip does: from the environment, else from its files."""
    variable = "PIP_" + name.upper().replace("-", "_")
    if os.environ.get(variable):
        return os.environ[variable]
    value = default
    for path in configuration_files():
        parser = configparser.RawConfigParser()
        try:
            parser.read(path, encoding="utf-8")
        except (OSError, configparser.Error):
            continue
        for section in ("global", "install"):
            value = parser.get(section, name, fallback=value)
    return value


def configuration_files() -> list[Path]:
    """List pip's configuration files; a later one wins."""
    only = os.environ.get("PIP_CONFIG_FILE")
    if only == os.devnull:
        return []
    home = Path.home()
    site_wide = [
        Path(folder, "pip/pip.conf") for folder in os.environ.get("XDG_CONFIG_DIRS", "/etc/xdg").split(":")
    ]
    own = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config")
    files = [*site_wide, Path("/etc/pip.conf"), home / ".pip/pip.conf", own / "pip/pip.conf"]
    return files + ([Path(only)] if only else [])


class Links(html.parser.HTMLParser):
    """Collects where the links of a page lead."""

    def __init__(self) -> None:
        super().__init__()
        self.targets: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep the target of a link."""
        if tag == "a":
            self.targets += [value for name, value in attrs if name == "href" and value]


def wheel_address(page: str) -> str:
    """Find the wheel on an index's page about pip."""
    # A folder of files has its page in a file of its own.
    source = page + "index.html" if page.startswith("file:") else page
    links = Links()
    links.feed(read(source).decode("utf-8", "replace"))
    for target in links.targets:
        address = urllib.parse.urljoin(page, target)
        if urllib.parse.unquote(urllib.parse.urlsplit(address).path).endswith("/" + WHEEL):
            return urllib.parse.urldefrag(address).url
    raise PipError(f"it lists no {WHEEL}")


def read(address: str) -> bytes:
    """Fetch one address, with the certificates, the proxy and the password that pip would use."""
    parts = urllib.parse.urlsplit(address)
    headers = {"Accept": "text/html, */*;q=0.1"}
    if parts.username:
        secret = f"{urllib.parse.unquote(parts.username)}:{urllib.parse.unquote(parts.password or '')}"
        headers["Authorization"] = "Basic " + base64.b64encode(secret.encode()).decode()
        address = urllib.parse.urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
    request = urllib.request.Request(address, headers=headers)
    try:
        return open_with(request, ssl.create_default_context(cafile=setting("cert", "") or None))
    except urllib.error.URLError as error:
        # A bare system has no list of certificate authorities (pip brings its own, which is not here yet).
        # The wheel is known by its hash, so it does not matter who serves it, unless he would get a password.
        if isinstance(error.reason, ssl.SSLCertVerificationError) and not parts.username:
            return open_with(request, ssl._create_unverified_context())
        raise


def open_with(request: urllib.request.Request, context: ssl.SSLContext) -> bytes:
    """Send a request and read the whole answer."""
    handlers: list[urllib.request.BaseHandler] = [urllib.request.HTTPSHandler(context=context)]
    if proxy := setting("proxy", ""):
        handlers.append(urllib.request.ProxyHandler({"http": proxy, "https": proxy}))
    with urllib.request.build_opener(*handlers).open(request, timeout=TIMEOUT_SECONDS) as answer:
        content: bytes = answer.read()
        return content


def without_password(address: str) -> str:
    """Give the address as it may be shown."""
    parts = urllib.parse.urlsplit(address)
    return urllib.parse.urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


if __name__ == "__main__":
    install_pip(Path(sys.argv[1]))
