"""An exchange pattern of one's own: ranks swap with one neighbor, then with the other."""

from dist_classicrl.engines.decentralized.patterns import Step


class Pairs:
    """For four ranks: each swaps with the one beside it, and then with the one across, on any hosts."""

    def suits(self, hosts):
        """Whether there are four ranks."""
        return len(hosts) == 4

    def exchange(self, place, hosts, own):
        """Swap twice; both add in the order of their places, so that they get the same bits."""
        total = own
        for partner in (place ^ 1, place ^ 2):
            came = yield Step({partner: total}, (partner,))
            others = came[partner]
            total = total.plus(others) if place < partner else others.plus(total)
        return total


class ForgetfulPairs(Pairs):
    """The same without the second swap."""

    def suits(self, hosts):
        """It says that it can be had with any number of ranks."""
        return True

    def exchange(self, place, hosts, own):
        """Swap once, if there is a partner."""
        partner = place ^ 1
        if partner >= len(hosts):
            return own
        came = yield Step({partner: own}, (partner,))
        return own.plus(came[partner]) if place < partner else came[partner].plus(own)
