"""The site is built without a warning, and what the pages tell to type is there to be typed."""

import importlib
import os
import re
import shlex
import subprocess
import sys

import click
import documents
import pytest
from documents import PUBLIC, ROOT

from dist_classicrl import callbacks, errors
from dist_classicrl.cli.main import COMMANDS, cli, main
from dist_classicrl.cli.synonyms import SYNONYMS

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ERRORS = [name for name, value in vars(errors).items() if getattr(value, "__module__", "") == errors.__name__]
CLUSTERS = ROOT / "docs" / "clusters.md"
COMMAND_LINE = ROOT / "docs" / "command-line.md"
SLURM = ROOT / "docs" / "slurm.md"
# They start many ranks, or take a minute.
NOT_RUN = ("bench", "doctor", "launch", "profile")
SCRIPTS = ("scripts/benchmark", "scripts/train", "scripts/test", "scripts/test-cluster")
# What the tests do with a block, by its language:
# python  a page's blocks run as one program (test_documents.py)
# sh      each line is a command, and checked by what it starts, see `check_command`; those on the page of the
#         command line are run here, and those of the quick start are typed (test_first_ten_minutes.py)
# bash    a batch script, which runs with stand-ins for SLURM and MPI (test_documents.py), or is compared with
#         what the command line prints
# toml    a configuration, which is trained with
# text    what a program wrote, or a file's form
LANGUAGES = {"python", "sh", "bash", "toml", "text"}


def test_the_site_is_built_without_a_warning(tmp_path):
    # Not with --quiet, which keeps warnings from being counted.
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, timeout=120.0)
    assert done.returncode == 0 and "WARNING -" not in done.stderr, done.stderr
    pages = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.html")}
    written = {path.relative_to(ROOT / "docs") for path in documents.PAGES if path.parent != ROOT}
    assert {path.with_suffix(".html").as_posix() for path in written} <= pages
    # Nothing is fetched from elsewhere when a page is shown.
    for page in pages:
        text = (tmp_path / page).read_text()
        assert not re.findall(r'<(?:script|link|img)[^>]*(?:src|href)="(?:https?:)?//', text), page
    reference = "".join(path.read_text() for path in (tmp_path / "reference").glob("*.html"))
    entries = re.findall(r'id="(dist_classicrl[\w.]*)\.(\w+)"', reference)
    # By what they are: an entry may have the path that a name is imported by, or that of where it is written.
    written = {id(found) for module, name in entries if (found := found_in(module, name)) is not None}
    public = {"dist_classicrl.errors": ERRORS, **{module: names for module, names in PUBLIC.items() if names}}
    named = {(module, name): found_in(module, name) for module, names in public.items() for name in names}
    assert [where for where, found in named.items() if id(found) not in written] == []


def found_in(module, name):
    try:
        return getattr(importlib.import_module(module), name, None)
    except ImportError:  # of a class
        return None


@pytest.mark.core
@pytest.mark.parametrize("page", documents.PAGES, ids=lambda page: page.stem)
def test_every_block_is_of_a_kind_that_is_tested(page):
    for block in documents.blocks(page):
        assert block.language in LANGUAGES and not block.indented, str(block)
    assert "```" not in documents.prose(page)
    assert not re.search(r"\n\n    ", documents.prose(page)), "an indented block says nothing of its kind"


@pytest.mark.core
def test_errors_callbacks_and_options_that_pages_name_are_there():
    known = {*ERRORS, *callbacks.__all__, *callbacks._INSTEAD}  # the last ones are of Stable-Baselines3
    for page in documents.PAGES:
        assert set(re.findall(r"`([A-Z]\w+(?:Error|Callback))\b", documents.prose(page))) <= known, page.name
    commands = [cli.get_command(click.Context(cli), name) for name in COMMANDS]
    options = {word for command in commands for param in command.params for word in param.opts}
    options |= {word for command in commands for param in command.params for word in param.secondary_opts}
    options |= {f"--{word.replace('_', '-')}" for word in SYNONYMS}
    assert set(re.findall(r"`(--[a-z-]+)", documents.prose(COMMAND_LINE))) <= options | {"--help"}


@pytest.mark.core
def test_every_command_is_there_to_be_typed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pages = [
        page for page in documents.PAGES if page != CLUSTERS
    ]  # tests/cluster runs the commands of that one
    checked = [check_command(page, line) for page in pages for line in commands_of(page)]
    assert {"dist-classicrl", "mpirun", "python", "pip", "scripts/train"} <= set(checked)


def test_the_commands_on_their_page_run_as_they_stand(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    configuration, study = documents.blocks(COMMAND_LINE, "toml")
    (tmp_path / "lake.toml").write_text(configuration.text)
    (tmp_path / "study.toml").write_text(study.text)
    run = []
    for line in commands_of(COMMAND_LINE):
        # Alone, which is quicker.
        _, name, *arguments = shlex.split(re.sub(r" --ranks \d+|>.*", "", line))
        if name not in NOT_RUN:
            assert main([name, *arguments]) == 0, f"{line}\n{capsys.readouterr()}"
            run.append(name)
    assert {*run, *NOT_RUN} == set(COMMANDS)
    assert set(re.findall(r"^## ([a-z]+)$", COMMAND_LINE.read_text(), re.MULTILINE)) == set(COMMANDS)
    table = COMMAND_LINE.read_text().split("| file | what it is |")[1].split("\n\n")[0]
    files = re.findall(r"`([\w./]+)`(?=[^|]*\|[^|]*\|$)", table, re.MULTILINE)
    assert files and [name for name in files if not (tmp_path / "runs" / "lake" / name).exists()] == []


@pytest.mark.core
def test_the_batch_script_on_its_page_is_the_one_that_is_printed(capsys):
    line, _ = [line for block in documents.blocks(SLURM, "sh")[:1] for line in block.text.splitlines()]
    _, *arguments = shlex.split(line.split(">")[0])
    assert main(arguments) == 0
    assert capsys.readouterr().out == documents.blocks(SLURM, "bash")[0].text


def commands_of(page):
    """Return the lines of a page's shell blocks, each a command."""
    text = "".join(block.text for block in documents.blocks(page, "sh")).replace("\\\n", " ")
    return [line for line in text.splitlines() if shlex.split(line, comments=True)]


def check_command(page, line):
    """Check that what a page tells to type can be typed; return the program."""
    words = shlex.split(line, comments=True)
    if ">" in words:
        words = words[: words.index(">")]
    while re.fullmatch(r"\w+=.*", words[0]):
        words.pop(0)
    match words:
        case ["dist-classicrl", *arguments] | ["python", "-m", "dist_classicrl", *arguments]:
            check_arguments(arguments)
            return "dist-classicrl"
        case ["python", "-m", "pytest", *chosen]:
            check_tests(chosen, line)
        case ["python", "-c", program]:
            compile(program, line, "exec")
        case ["mpirun", "-n", _, "dist-classicrl", *arguments]:
            check_arguments(arguments)
        case ["python", script, *options] if (ROOT / script).is_file():
            text = (ROOT / script).read_text()
            assert all(f'"{word}"' in text for word in options if word.startswith("--")), line
        case ["mpirun", "-n", _, *options, "python", script] | ["python", script, *options]:
            # What the page itself shows, or a program of this repository.
            assert documents.blocks(page, "python") or (ROOT / script).is_file(), line
            assert set(options) <= {"--map-by", ":OVERSUBSCRIBE", "--bind-to", "none"}, line
        case ["pip", "install", package]:
            extras = re.fullmatch(r"\.(?:\[([\w,]+)\])?", package)[1] or ""
            known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
            assert set(filter(None, extras.split(","))) <= set(known), line
        case ["unshare", *_]:  # and after the end of a small script, what runs there
            check_arguments(words[words.index("dist-classicrl") + 1 :])
        case [("docker" | "apptainer"), "build", *options]:
            stage = options[options.index("--target") + 1] if "--target" in options else "runtime"
            assert f" AS {stage}\n" in (ROOT / "Dockerfile").read_text(), line
        case [("docker" | "apptainer" | "srun"), *arguments]:  # in a container, what follows its image
            assert "dist-classicrl" in line
            if "dist-classicrl" in arguments:
                last = len(arguments) - arguments[::-1].index("dist-classicrl")
                check_arguments(arguments[last:])
        case ["kubectl", *arguments]:
            named = [word for word in arguments if "/" in word and not word.startswith("job/")]
            assert all((ROOT / path).exists() for path in named), line
        case [("cp" | "mkdir" | "ssh-keygen" | "sudo"), *_]:
            pass
        case ["git", "clone", _] | ["cd", _] | ["sbatch", _] | ["export", *_]:
            pass
        case [script, *chosen] if script in SCRIPTS:
            assert os.access(ROOT / script, os.X_OK), line
            check_tests(chosen, line)
        case ["ruff", ("check" | "format"), *_] | ["mypy"] | ["lint-imports"]:
            pass
        case _:
            raise AssertionError(f"{page.name}: no rule says how to check {line!r}")
    return words[0]


def check_tests(words, line):
    """Check that the folders of tests that a line names are there."""
    assert all((ROOT / word).exists() for word in words if word.startswith("tests")), line


def check_arguments(arguments):
    """Let the command line read arguments, without doing anything."""
    name, *rest = arguments
    command = cli.get_command(click.Context(cli), name)
    assert command is not None, name
    command.make_context(name, rest)
