"""The notebooks run from top to bottom, and are kept without what they print."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).resolve().parents[2] / "examples" / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=[path.stem for path in NOTEBOOKS])
def test_a_notebook_runs(path, tmp_path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert not any(cell.get("outputs") for cell in notebook.cells)
    NotebookClient(notebook, timeout=240, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    assert not [output for output in shown if output.output_type == "error" or output.get("name") == "stderr"]
    kinds = {kind for output in shown for kind in output.get("data", ())}
    wanted = {"first_steps": {"text/html", "image/png"}, "inventory": {"text/html"}, "study": {"image/png"}}
    assert wanted.get(path.stem, set()) <= kinds


def test_there_are_notebooks():
    assert {"first_steps", "inventory", "study"} <= {path.stem for path in NOTEBOOKS}
