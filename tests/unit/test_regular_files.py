"""Whoever reads a file takes a regular one only: a named pipe without a writer would be waited for."""

import os

import numpy as np
import pytest

from dist_classicrl import DistAsyncQLearning, TabularMDP
from dist_classicrl._files import open_regular, read_regular
from dist_classicrl.callbacks.evaluation_log import EvaluationLog
from dist_classicrl.cli import config
from dist_classicrl.errors import LauncherError, MetricsError, ModelFileError, SettingsError
from dist_classicrl.export.table_file import read_table
from dist_classicrl.launch.hosts import read_hostfile
from dist_classicrl.monitoring.reading import read_metrics

MODEL = TabularMDP.garnet(3, 2, 2, seed=0)


@pytest.fixture
def pipe(tmp_path):
    def make(name):
        os.mkfifo(tmp_path / name)
        return tmp_path / name

    return make


@pytest.mark.parametrize(
    ("name", "read", "error"),
    [
        ("model.npz", DistAsyncQLearning.load_model, ModelFileError),
        ("table.npz", read_table, ModelFileError),
        ("table.csv", read_table, ModelFileError),
        ("table.json", read_table, ModelFileError),
        ("metrics.jsonl", read_metrics, MetricsError),
        ("config.toml", config.read, SettingsError),
        ("config.toml", config.is_of_run, OSError),
        ("hosts", read_hostfile, LauncherError),
    ],
)
def test_a_pipe_is_refused_by_name(pipe, name, read, error):
    with pytest.raises(error, match="Not a regular file"):
        read(pipe(name))


def test_a_log_of_evaluations_that_is_a_pipe_is_set_aside(pipe, caplog):
    path = pipe("evaluations.npz")
    assert EvaluationLog.read(path).timesteps == []
    assert "Not a regular file" in caplog.text and not path.exists()


@pytest.mark.slow
def test_a_manifest_that_is_a_pipe_is_no_checkpoint(tmp_path):
    folder = tmp_path / "checkpoints"
    agent = DistAsyncQLearning(seed=1)
    agent.train(MODEL, total_steps=100, checkpoint_dir=folder)
    (manifest,) = folder.glob("agent-0/*/manifest.json")
    manifest.unlink()
    os.mkfifo(manifest)
    with pytest.raises(ValueError, match="Not a regular file"):
        DistAsyncQLearning.load_model(folder)


def test_a_regular_file_is_read_also_by_way_of_a_link(tmp_path):
    (tmp_path / "file").write_bytes(b"content")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    assert read_regular(tmp_path / "link") == b"content"
    with open_regular(tmp_path / "file") as file:
        assert np.frombuffer(file.read(), np.uint8).size == 7
    for nothing in (tmp_path, "/dev/zero"):
        with pytest.raises(OSError, match="Not a regular file"):
            read_regular(nothing)
