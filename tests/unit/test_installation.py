"""Another project's distribution that was installed into this package's folder is reported."""

import re
import sys

import pytest

from dist_classicrl._version import __version__
from dist_classicrl.cli.config import tomllib
from dist_classicrl.diagnosis.installation import DISTRIBUTION, examine


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Install a distribution dist-classicrl that has this file."""
    monkeypatch.setattr(sys, "path", [str(tmp_path)])

    def install(file):
        folder = tmp_path / "dist_classicrl-3.2.1.dist-info"
        folder.mkdir()
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).touch()  # what is not there is not listed everywhere
        (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: dist_classicrl\nVersion: 3.2.1\n")
        (folder / "RECORD").write_text(f"{file},,\n{folder.name}/METADATA,,\n")

    return install


def test_what_was_installed_over_the_package_is_reported_with_a_remedy(installed):
    installed("dist_classicrl/__init__.py")
    (found,) = examine()
    assert "dist-classicrl 3.2.1" in found.found
    assert "pip uninstall dist-classicrl" in found.remedy and DISTRIBUTION in found.remedy


def test_an_editable_installation_is_not(installed):
    installed("_editable_impl_dist_classicrl.pth")
    assert list(examine()) == []


def test_nothing_is_reported_where_there_is_none(installed):
    assert list(examine()) == []


def test_the_name_is_that_of_the_project(pytestconfig):
    project = tomllib.loads((pytestconfig.rootpath / "pyproject.toml").read_text())["project"]
    assert project["name"] == DISTRIBUTION
    (own,) = (each for each in project["optional-dependencies"]["test"] if "dist" in each and "[" in each)
    assert own.startswith(f"{DISTRIBUTION}[")


def test_who_cites_the_software_cites_this_version(pytestconfig):
    (version,) = re.findall(r'^version: "(.+)"$', (pytestconfig.rootpath / "CITATION.cff").read_text(), re.M)
    assert version == __version__
