"""How many of something there are, in messages."""

import hand_made_metrics as hand_made
import pytest
from learned_runs import run_command

from dist_classicrl._words import counted
from dist_classicrl.diagnosis import cores
from dist_classicrl.diagnosis.plan import TrainingPlan
from dist_classicrl.plotting import canvas
from dist_classicrl.settings import Settings


@pytest.mark.parametrize(
    "number, said", [(0, "0 workers"), (1, "1 worker"), (2, "2 workers"), (1024, "1,024 workers")]
)
def test_one_is_no_plural(number, said):
    assert counted(number, "worker") == said


def test_commands_say_one_worker(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(canvas, "save", lambda figure, path: path)
    run = hand_made.learning_run(tmp_path / "run", reports=2, workers=1)
    assert run_command(capsys, "plot", str(run))[1] == f"{run / 'plot.png'}: 2 reports, 1 worker\n"
    assert run_command(capsys, "plot", str(run), "--kind", "timeline")[1].endswith(": 1 rank, 0 events\n")


def test_doctor_says_one_worker(monkeypatch):
    monkeypatch.setattr(cores, "usable_cores", lambda: 4)
    assert "1 worker and a server" in str(cores.examine_slots(TrainingPlan(2, Settings())))
