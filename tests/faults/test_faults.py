"""One or two runs of each kind of failure; the programs beside this file make many."""

from random import Random

import kill_decentralized
import kill_node_servers
import kill_server
import kill_supersteps
import kill_workers
import pytest
import soak
import stop_and_continue

pytestmark = pytest.mark.usefixtures("survivable")

# They take their time until all has happened to them, on any machine, and leave its cores free: a minute and
# more, of which the first seconds are enough where nobody keeps the test itself waiting.
COUNTED = {"environment": "counted", "total_steps": 100_000, "pause": 2e-3, "span": 0.05}
LAKE = {"environment": "lake", "slow": True, "span": 0.02}
APART = {"steps": 15_000_000, "slow": True, "span": 0.05}
# Silence of a rank that is stopped: longer than a busy machine makes others wait, most times.
SILENCE = 12.0


def test_two_of_three_workers_are_killed():
    seen = kill_workers.one_run(workers=3, deaths=2, chance=Random(1), **COUNTED)
    assert seen["killed"] == 2


@pytest.mark.core
def test_the_server_and_a_worker_are_killed():
    seen = kill_server.one_run(workers=3, companions=["worker"], saving=False, chance=Random(2), **COUNTED)
    assert seen["killed"] == 2


def test_the_server_of_a_node_and_one_of_its_workers_are_killed():
    seen = kill_node_servers.one_run(victims=(3, 4), chance=Random(8), size=3, ranks=6, **COUNTED)
    assert seen["killed"] == 2


def test_the_server_and_the_next_one_are_killed_where_checkpoints_are_written():
    seen = kill_server.one_run(workers=3, companions=["server"], saving=True, chance=Random(3), **LAKE)
    assert seen["killed"] == 2


@pytest.mark.parametrize(
    ("asked", "how"),
    [
        ("worker", {}),
        ("server", {"agent": {"async_updates": False}, "placement": "replicated"}),
        ("worker", {"agent": {"topology": "decentralized"}}),
        ("worker", {"placement": "sharded"}),
    ],
    ids=["server", "rounds", "decentralized", "sharded"],
)
def test_a_new_server_that_cannot_save_stops_when_it_is_asked_to(asked, how):
    kill_server.stopped_without_room(asked, **how)


@pytest.mark.parametrize(
    "how",
    [{"agent": {"topology": "decentralized"}}, {"placement": "sharded"}],
    ids=["decentralized", "sharded"],
)
def test_the_loss_of_who_coordinates_the_others_may_be_one_too_many(how):
    kill_server.one_loss_too_many(**how)


def test_a_new_server_saves_once_there_is_room():
    kill_server.stopped_without_room("worker", has_room_again=True)


@pytest.mark.parametrize(
    ("victims", "by_messages"), [(("worker", "worker"), False), (("server", "worker"), True)]
)
def test_owners_of_rows_are_killed(victims, by_messages):
    seen = kill_supersteps.one_run("lake", victims, by_messages, Random(6), **APART)
    assert seen["killed"] == 2


@pytest.mark.parametrize("placement", ["sharded", "replicated"])
def test_who_has_no_core_takes_the_place_of_a_rank_that_is_killed(placement):
    victims = ("worker", "server", "worker")
    options = {**APART, "cores": 1 if placement == "replicated" else 2}
    seen = kill_supersteps.one_run("lake", victims, False, Random(8), placement=placement, **options)
    assert seen["killed"] == 3


def test_a_rank_and_the_coordinator_are_killed_where_there_is_no_server():
    victims = ("worker", "server")
    seen = kill_decentralized.one_run("lake", victims, "ring", Random(6), **APART)
    assert seen["killed"] == 2


def test_owners_of_rows_that_are_there_once_go_back_to_a_checkpoint():
    victims = ("server", "worker")
    seen = kill_supersteps.one_run("lake", victims, False, Random(6), saving=True, rows_once=True, **APART)
    assert seen["killed"] == 2


def test_without_a_checkpoint_the_loss_of_rows_that_are_there_once_is_named_on_all_ranks():
    kill_supersteps.one_loss_without_checkpoint("server", ranks=3)


def test_owners_of_rows_that_step_environments_are_killed():
    victims = ("worker", "server")
    seen = kill_supersteps.one_run("counted", victims, False, Random(7), steps=50_000, span=0.1)
    assert seen["killed"] == 2


def test_a_worker_and_the_server_are_stopped_and_let_in_again():
    pace = {"steps": 150_000, "pause": 2e-3, "silence": SILENCE}
    seen = stop_and_continue.one_run("counted", True, True, Random(4), **pace)
    assert seen["killed"] == 0


def test_dead_workers_are_replaced():
    assert soak.replaced(2, Random(5)) == 2
