"""The failure detector over real messages: who falls silent is found, who comes back is welcome."""

import time

import numpy as np
import pytest

from dist_classicrl import FailureDetector
from dist_classicrl.errors import RankTimeoutError

INTERVAL = 0.05
# Far more than a rank is kept from its core by the others, where ranks outnumber cores.
PATIENT = 60.0
WITHIN_SECONDS = 30.0


def run_until(condition, what, *detectors, beat=True):
    """Beat and check until `condition()`, which must come true in time; return the last health of each."""
    deadline = time.monotonic() + WITHIN_SECONDS
    while True:
        if beat:
            for detector in detectors:
                detector.send_heartbeat()
        healths = [detector.check_node_health() for detector in detectors]
        if condition():
            return healths
        assert time.monotonic() < deadline, f"waited {WITHIN_SECONDS:g} s for {what}"
        time.sleep(0.002)


def run_until_all(world, detector, beat=True):
    """Go on until every rank of `world` has come here."""
    request = world.Ibarrier()
    return run_until(request.Test, "the other ranks", detector, beat=beat)[0]


@pytest.mark.core
def test_all_are_healthy_and_tell_their_progress(world):
    with FailureDetector(world, INTERVAL, PATIENT, threshold=1e9) as detector:
        detector.send_heartbeat(progress=100 + world.rank)
        others = {rank: 100 + rank for rank in range(world.size) if rank != world.rank}
        health = run_until(lambda: detector.progress == others, "the others' progress", detector)[0]
        assert health == dict.fromkeys(range(world.size), "healthy")
        run_until_all(world, detector)
    assert detector.failed_nodes == detector.suspected_nodes == frozenset()


@pytest.mark.core
def test_a_rank_that_falls_silent_and_comes_back(world):
    told = []
    culprit = world.size - 1
    detector = FailureDetector(
        world,
        INTERVAL,
        0.5,
        on_failure=lambda rank: told.append(("failure", rank)),
        on_recovery=lambda rank: told.append(("recovery", rank)),
    )
    with detector:
        run_until_all(world, detector)
        if world.size > 1 and world.rank != culprit:
            run_until(lambda: culprit in detector.failed_nodes, "the silent rank's failure", detector)
            assert "silent for" in detector.reason(culprit)
        # Meanwhile the culprit waits here and sends nothing.
        run_until_all(world, detector, beat=world.rank != culprit)
        healthy = dict.fromkeys(range(world.size), "healthy")
        run_until(lambda: detector.check_node_health() == healthy, "everybody's health", detector)
        run_until_all(world, detector)
    if world.size > 1 and world.rank != culprit:
        # On few cores others may have been late as well.
        about = [what for what, rank in told if rank == culprit and what != "suspect"]
        assert about[:2] == ["failure", "recovery"]


def test_a_rank_that_does_nothing_at_all_holds_up_nobody(world, folder):
    culprit = world.size - 1
    found = [folder / f"found by {rank}" for rank in range(world.size) if rank != culprit]
    with FailureDetector(world, INTERVAL, 0.5) as detector:
        run_until_all(world, detector)
        request = world.Ibarrier()
        if world.rank == culprit:
            deadline = time.monotonic() + WITHIN_SECONDS
            while not all(file.exists() for file in found) and time.monotonic() < deadline:
                time.sleep(0.01)
        else:
            run_until(lambda: culprit in detector.failed_nodes, "the sleeper's failure", detector)
            found[world.rank].touch()
        run_until(request.Test, "the other ranks", detector)
        run_until(lambda: not detector.failed_nodes, "everybody's health", detector)
        run_until_all(world, detector)


def test_a_rank_that_closes_its_detector_has_left(world):
    culprit = world.size - 1
    detector = FailureDetector(world, INTERVAL, PATIENT, threshold=1e9)
    request = world.Ibarrier()
    if world.rank == culprit:
        detector.close()
    else:
        run_until(lambda: detector.check_node_health()[culprit] == "left", "the farewell", detector)
    assert not detector.failed_nodes
    while not request.Test():
        time.sleep(0.001)
    detector.close()


def test_no_message_of_the_user_is_taken_and_none_of_its_own_turns_up(world):
    with FailureDetector(world, INTERVAL, PATIENT, threshold=1e9) as detector:
        following, before = (world.rank + 1) % world.size, (world.rank - 1) % world.size
        given = np.full(3, float(world.rank))
        run_until_all(world, detector)
        request = world.Isend(given, following, 1)
        arrived = []

        def receive():
            if world.Iprobe():  # any source, any tag
                numbers = np.empty(3)
                world.Recv(numbers)
                arrived.append(numbers.tolist())
            return bool(arrived)

        run_until(receive, "the user's own message", detector)
        assert arrived == [[float(before)] * 3]
        request.Wait()
        run_until_all(world, detector)
        assert not world.Iprobe()


def test_again_and_again_and_several_at_a_time(world):
    for _ in range(10):
        with FailureDetector(world, INTERVAL, PATIENT) as one, FailureDetector(world, 1.0, PATIENT) as other:
            one.send_heartbeat(progress=1)
            other.send_heartbeat(progress=2)
            peers = [rank for rank in range(world.size) if rank != world.rank]
            run_until(
                lambda one=one, other=other, peers=peers: (
                    one.progress == dict.fromkeys(peers, 1) and other.progress == dict.fromkeys(peers, 2)
                ),
                "the first beats",
                one,
                other,
            )


def test_the_two_groups_of_an_intercommunicator_watch_each_other(world):
    if world.size == 1:
        pytest.skip("takes two groups")
    half = world.rank % 2
    local = world.Split(half, world.rank)
    inter = local.Create_intercomm(0, world, 1 - half, 5)
    with FailureDetector(inter, INTERVAL, PATIENT, threshold=1e9) as detector:
        detector.send_heartbeat(progress=7)
        everybody = dict.fromkeys(range(inter.Get_remote_size()), 7)
        health = run_until(lambda: detector.progress == everybody, "the other group", detector)[0]
        assert health == dict.fromkeys(everybody, "healthy")
        run_until_all(world, detector)
    inter.Free()
    local.Free()


def test_a_rank_that_does_not_construct_it_is_not_waited_for_for_ever(world):
    if world.size == 1:
        pytest.skip("takes another rank to wait for")
    late = world.size - 1
    own = world.Dup()  # the duplicate that is given up must not get mixed up with collectives of other tests
    request = world.Ibarrier() if world.rank == late else None
    if world.rank != late:
        begun = time.monotonic()
        with pytest.raises(RankTimeoutError, match="all ranks to construct their FailureDetector"):
            FailureDetector(own, timeout=0.3)
        assert time.monotonic() - begun < WITHIN_SECONDS
        request = world.Ibarrier()
    while not request.Test():
        time.sleep(0.001)
    if world.rank == late:  # only now, so that MPI is through with the duplicate on every rank
        with pytest.raises(RankTimeoutError, match="all ranks to construct their FailureDetector"):
            FailureDetector(own, timeout=3.0)
