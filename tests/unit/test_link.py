"""What compression="auto" comes to, for links as they may be measured."""

import pytest

from dist_classicrl.engines.roles.link import choose
from dist_classicrl.membership.handshake import LinkSpeed


@pytest.mark.parametrize(
    "speed, has_library, kind",
    [
        (None, True, "none"),
        (1.2e7, True, "lossless"),
        (1.2e7, False, "delta"),
        (2.9e8, True, "lossless"),
        (1.2e9, True, "none"),
    ],
)
def test_a_slow_link_gets_what_changes_no_bit_and_one_host_or_a_fast_link_nothing(speed, has_library, kind):
    link = None if speed is None else LinkSpeed(5e-3, speed, 2)
    chosen, why = choose(link, 100_000, has_library)
    assert chosen == kind and why.startswith('compression="auto": ')
    measured = "one host" if link is None else f"5 ms there and back between hosts, {speed / 1e6:.3g} MB/s"
    assert measured in why and (link is None or "100,000 entries" in why)


@pytest.mark.parametrize(
    "entries, ranks, kind", [(256, 2, "none"), (256, 4, "none"), (256, 5, "lossless"), (600, 2, "lossless")]
)
def test_messages_that_are_sooner_sent_than_they_arrive_go_as_they_are(entries, ranks, kind):
    """28 bytes an entry and rank, in the 2.5 ms of one way: 30,000 bytes."""
    assert choose(LinkSpeed(5e-3, 1.2e7, ranks), entries, True)[0] == kind
