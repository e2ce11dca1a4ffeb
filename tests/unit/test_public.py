"""What is public is said once, in the reference; documents and examples use that and nothing else."""

import ast
import importlib
import json
import re
from dataclasses import fields

import pytest
from documents import PAGES, PUBLIC, REFERENCE, ROOT, blocks

import dist_classicrl
from dist_classicrl.callbacks import BaseCallback
from dist_classicrl.cli.config import tomllib
from dist_classicrl.rules import LearningRule

#: Modules whose names are all public: their own pages have them.
WHOLE = {"dist_classicrl.errors"}
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("module", PUBLIC)
def test_what_is_said_to_be_public_is_there_and_complete(module):
    found = importlib.import_module(module)
    if module not in WHOLE:
        assert [name for name in PUBLIC[module] if not hasattr(found, name)] == []
        assert PUBLIC[module] == set(getattr(found, "__all__", PUBLIC[module]))


@pytest.mark.parametrize("module", sorted(set(PUBLIC) - WHOLE))
def test_all_that_is_public_comes_with_a_star(module):
    names = {}
    exec(f"from {module} import *", names)
    assert PUBLIC[module] - set(names) == set()


def imported(text):
    """Yield the module, and the name in it, of each import of this package in a program."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "dist_classicrl":
            yield from ((node.module, alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (
                (alias.name, None) for alias in node.names if alias.name.split(".")[0] == "dist_classicrl"
            )


def is_public(module, name):
    if module not in PUBLIC:
        return False
    return name is None or name in PUBLIC[module] or (module in WHOLE and not name.startswith("_"))


def test_documents_and_examples_use_what_is_public():
    programs = {str(block): block.text for page in PAGES for block in blocks(page, "python")}
    programs |= {path.name: path.read_text() for path in EXAMPLES}
    for path in NOTEBOOKS:
        cells = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
        lines = [line for cell in cells for line in (*cell["source"], "\n") if not line.startswith("%")]
        programs[path.name] = "".join(lines)
    used = [(where, *each) for where, text in programs.items() for each in imported(text)]
    assert len(used) > 30
    assert [each for each in used if not is_public(*each[1:])] == []


@pytest.mark.parametrize(
    "page, name", [("agent.md", "DistAsyncQLearning"), ("environments.md", "TabularMDP")]
)
def test_the_reference_has_all_methods_of_a_class_that_inherits_some(page, name):
    text = (REFERENCE.parent / page).read_text().split(f"::: dist_classicrl.{name}\n")[1].split("\n\n")[0]
    listed = re.search(r"members: \[(.*)\]", text)[1].split(", ")
    found = getattr(dist_classicrl, name)
    methods = {each: getattr(found, each) for each in dir(found) if not each.startswith("_")}
    assert sorted(listed) == [
        each for each, value in methods.items() if callable(value) or isinstance(value, property)
    ]


def test_the_reference_has_all_that_a_callback_may_override():
    text = (REFERENCE.parent / "monitoring.md").read_text().split("BaseCallback\n")[1].split("\n\n")[0]
    hooks = {name for name in vars(BaseCallback) if re.match(r"_init_callback|_next_step|_on_", name)}
    assert {name for name in re.findall(r"- (\w+)", text) if name != "record"} == hooks


def test_what_a_rule_may_have_is_in_the_table_of_its_page():
    table = (ROOT / "docs" / "learning-rules.md").read_text().split("| a rule has |")[1].split("\n\n")[0]
    own = {each.name for each in fields(LearningRule)} - {"name", "parameters"}
    assert own - set(re.findall(r"`(\w+)`", table)) == set()


def test_the_paths_that_earlier_scripts_import_from_still_lead_there():
    from dist_classicrl import DistAsyncQLearning
    from dist_classicrl.algorithms.runtime import q_learning_async_dist
    from dist_classicrl.environments import TicTacToeEnv, tiktaktoe_mod

    assert q_learning_async_dist.DistAsyncQLearning is DistAsyncQLearning
    assert tiktaktoe_mod.TicTacToeEnv is TicTacToeEnv


def test_what_is_advised_to_be_installed_can_be_installed():
    """A clone, or another package: on the index another project has the name of this one."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    required = [*project["dependencies"], *(each for group in extras.values() for each in group)]
    known = {re.match(r"[\w-]+", each)[0] for each in required} - {"dist-classicrl-mpi"}
    sources = [*(ROOT / "src").rglob("*.py"), *PAGES, ROOT / "Dockerfile"]
    sources += [path for path in (ROOT / "scripts").rglob("*") if path.is_file()]
    advised = []
    for path in sources:
        # Strings go on in the next line.
        text = re.sub(r'"\n\s*f?"', "", path.read_text(errors="ignore"))
        assert "dist_classicrl[" not in text and "dist-classicrl[" not in text, path
        found = re.findall(r"pip install +['\"]?([\w.][\w.,\[\]>=-]*)", text)
        advised += [(path.name, each) for each in found]
    assert len(advised) > 8
    for where, what in advised:
        name, _, chosen = what.rstrip(".").partition("[")
        if what.startswith("."):
            assert set(filter(None, chosen.rstrip("].").split(","))) <= set(extras), (where, what)
        else:
            assert re.match(r"[\w-]+", name)[0] in known, (where, what)


def test_the_page_for_one_process_is_about_one_process():
    page = ROOT / "docs" / "one-process.md"
    said = re.findall(
        r"\b(?:rank|lease|stale|worker|server|mpirun|cluster)\w*", page.read_text(), re.IGNORECASE
    )
    assert said == ["cluster", "cluster"]  # the title says what it is not about, and the end where to go on
    assert len(blocks(page, "python")) >= 6
    assert "one-process.md" in (ROOT / "mkdocs.yml").read_text()


def test_the_agent_has_two_names():
    assert dist_classicrl.TabularAgent is dist_classicrl.DistAsyncQLearning
