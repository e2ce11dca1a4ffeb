"""The environment of the peers, from the package index, and the process in it that runs them."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from pathlib import Path
from typing import Any

from suite.form import LeftOutError
from suite.options import ROOT

FOLDER = ROOT / ".venv-peers"
STAMP = FOLDER / "dist_classicrl-peers.json"
# Without what these declare and their tables and grids never use: torch with its libraries for graphics
# cards, some gigabytes, and the data files of games.
PEERS: dict[str, tuple[list[str], list[str]]] = {
    # distribution: installed without what it declares, and what of that it needs here
    "gymnasium": ([], ["gymnasium", "numpy", "scipy"]),
    "mushroom-rl": (
        ["mushroom-rl"],
        ["joblib", "tqdm", "matplotlib", "scikit-learn", "opencv-python-headless", "pygame"],
    ),
    "envpool": (["envpool"], ["dm-env", "optree", "packaging", "types-protobuf", "typing-extensions"]),
    "quantecon": ([], ["quantecon"]),
    "pymdptoolbox": ([], ["pymdptoolbox"]),
}
ANSWER_SECONDS = 120.0
"""After which a peer that has not answered is ended."""
OF_LIBRARY = {"mushroom": "mushroom-rl"}


def set_up() -> dict[str, str]:
    """Make or complete the environment; return what does not install, each with the reason.

    What is there is kept: a stamp says for which list it was made.
    """
    python = FOLDER / "bin" / "python"
    about = [sys.version.split()[0], str(FOLDER), json.dumps(PEERS)]
    try:
        stamp = json.loads(STAMP.read_text())
    except (OSError, ValueError):
        stamp = {}
    if stamp.get("about") == about and python.exists():
        return stamp["failed"]
    print("==> installing the peers into .venv-peers", flush=True)
    made = _run(sys.executable, "-m", "venv", "--clear", str(FOLDER))
    if made:
        return dict.fromkeys(PEERS, f"no environment could be made for it: {made}")
    failed = {}
    for name, (alone, needed) in PEERS.items():
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]
        reason = (alone and _run(*pip, "--no-deps", *alone)) or _run(*pip, *needed)
        if reason:
            failed[name] = f"it does not install: {reason}"
            print(f"==> {name} is left out, {failed[name]}", flush=True)
    if not failed:  # an index that did not answer is asked again the next time
        STAMP.write_text(json.dumps({"about": about, "failed": failed}))
    return failed


def _run(*command: str) -> str:
    """Run a command; return the last line of what it complains of where it fails, else nothing."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    errors = [line for line in done.stdout.splitlines() if "ERROR" in line] or done.stdout.splitlines()
    return "" if done.returncode == 0 else (errors[0].strip()[:300] if errors else "it failed")


class Peers:
    """The process that runs the libraries of others; it starts with the first question.

    Parameters
    ----------
    failed : dict of str to str
        What did not install, with the reason.
    python : path
        Of the environment of the peers.
    """

    def __init__(self, failed: dict[str, str], python: Path = FOLDER / "bin" / "python") -> None:
        self._failed = failed
        self._python = python
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Peers:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait()

    def ask(self, what: str, **arguments: Any) -> dict[str, Any]:
        """Return the answer of the function of that name in `driver`.

        Raises
        ------
        LeftOutError
            It is not installed, fails, or does not answer in time.
        """
        for name in (OF_LIBRARY.get(what, what), "gymnasium"):
            if name in self._failed:
                raise LeftOutError(self._failed[name])
        if self._process is None or self._process.poll() is not None:
            environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
            self._process = subprocess.Popen(
                [str(self._python), str(Path(__file__).with_name("driver.py"))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                env=environment,
            )
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps({"what": what, **arguments}) + "\n")
            self._process.stdin.flush()
            answers, _, _ = select.select([self._process.stdout], [], [], ANSWER_SECONDS)
            if not answers:
                self._process.kill()
                self._process.wait()
                raise LeftOutError(f"no answer within {ANSWER_SECONDS:g} s")
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise LeftOutError(f"its process ended with status {self._process.wait()}")
        answer = json.loads(line)
        if "left_out" in answer:
            raise LeftOutError(answer["left_out"])
        return answer
