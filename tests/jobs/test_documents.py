"""The Python in the documents runs as it stands: each file's blocks as one program, in one folder."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def program(document):
    return "\n".join(re.findall(r"^```python\n(.*?)^```", document.read_text(), re.MULTILINE | re.DOTALL))


@pytest.mark.parametrize("ranks", [None, 3])
def test_the_blocks_of_all_documents_run(run_python, tmp_path, ranks):
    blocks = {document.name: program(document) for document in DOCUMENTS}
    assert blocks["README.md"] and blocks["design.md"]
    for name, block in blocks.items():
        script = tmp_path / f"{name}.py"
        # The table read back, where a document reads one, is the one that was trained before.
        script.write_text(block + "\nif 'q_table' in globals():\n    print('read', q_table.shape)\n")
        job = run_python(script, ranks=ranks if name == "README.md" else None)
        if name == "README.md":
            assert re.search(r"greedy return: 0\.[78]\d", job.output)
        if name == "design.md":
            assert "read (16, 4)" in job.output
