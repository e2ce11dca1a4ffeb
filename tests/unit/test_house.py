"""The plan of the folders: no circles, no folder that is too large, and a map that is true."""

import re
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import grimp

import dist_classicrl
from dist_classicrl.cli.config import tomllib

PACKAGE = Path(dist_classicrl.__file__).parent
ROOT = Path(__file__).resolve().parents[2]
MOST_FILES, MOST_LINES = 20, 4_000


def circle_of(graph):
    """Return modules that import each other in a circle, the first one again at the end; None without one."""
    imported = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    try:
        TopologicalSorter(imported).prepare()
    except CycleError as error:
        return error.args[1]
    return None


def folders():
    return [PACKAGE, *(path for path in sorted(PACKAGE.rglob("*")) if (path / "__init__.py").exists())]


def test_no_module_imports_itself_by_way_of_others():
    """Imports within functions count, and so do those for types alone."""
    graph = grimp.build_graph("dist_classicrl", cache_dir=None)
    assert "dist_classicrl.agent.agent" in graph.modules
    assert circle_of(graph) is None


def test_a_circle_would_be_found():
    graph = grimp.ImportGraph()
    for importer, imported in ("ab", "bc", "ca"):
        graph.add_import(importer=importer, imported=imported)
    assert set(circle_of(graph)) == {"a", "b", "c"}


def test_no_folder_is_too_large():
    for folder in folders():
        files = list(folder.glob("*.py"))
        lines = sum(len(path.read_text().splitlines()) for path in files)
        assert len(files) <= MOST_FILES and lines <= MOST_LINES, (
            f"{folder}: {len(files)} files, {lines} lines"
        )


def test_the_map_in_the_design_notes_shows_the_folders_from_top_to_bottom():
    table = (ROOT / "docs" / "design.md").read_text().split("| folder | what it is for |")[1].split("\n\n")[0]
    shown = re.findall(r"^\| `(\w+)/` \| \S", table, re.MULTILINE)
    assert len(shown) == len(table.splitlines()) - 2  # the line below the head is none
    assert set(shown) == {path.name for path in folders() if path.parent == PACKAGE}
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (house,) = (contract for contract in contracts if contract["containers"] == ["dist_classicrl"])
    floors = {
        name: floor for floor, names in enumerate(house["layers"]) for name in re.split("[ |:]+", names)
    }
    assert [floors[name] for name in shown] == sorted(floors[name] for name in shown)


def test_the_files_that_the_design_notes_name_are_there():
    named = set(re.findall(r"`([\w/]+\.py)`", (ROOT / "docs" / "design.md").read_text()))
    assert named
    assert [name for name in sorted(named) if not any((at / name).is_file() for at in (PACKAGE, ROOT))] == []
