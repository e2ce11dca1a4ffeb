"""The engine as an object, for patterns of one's own: ``placement=Decentralized(MyPattern())``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dist_classicrl.checks import takes
from dist_classicrl.engines.decentralized.checks import check_decentralized
from dist_classicrl.engines.decentralized.patterns import ExchangePattern
from dist_classicrl.errors import SettingsError

if TYPE_CHECKING:
    from dist_classicrl.engines.outcome import Outcome
    from dist_classicrl.engines.run import Run
    from dist_classicrl.membership.admission import Entry
    from dist_classicrl.membership.group import Group
    from dist_classicrl.membership.handshake import Setup
    from dist_classicrl.settings import Settings


class Decentralized:
    """Trains without a server in the data path, with an exchange pattern of one's own.

    Parameters
    ----------
    pattern : ExchangePattern
        Any object with the two methods of it. All ranks have to give the same one.

    Raises
    ------
    SettingsError
        If it has not both methods, or one takes other arguments.
    """

    all_learn = True

    def __init__(self, pattern: ExchangePattern) -> None:
        if not isinstance(pattern, ExchangePattern) or isinstance(pattern, type):
            raise SettingsError(
                f"An exchange pattern is an object with methods suits and exchange, got {pattern!r}."
            )
        for method, arguments in (("suits", ("hosts",)), ("exchange", ("place", "hosts", "own"))):
            if not takes(getattr(pattern, method), len(arguments)):
                named = ", ".join(arguments)
                raise SettingsError(
                    f"The method {method} of the exchange pattern {type(pattern).__name__} cannot be called "
                    f"as {method}({named}). Write `def {method}(self, {named}):`."
                )
        self._pattern = pattern

    @property
    def name(self) -> str:
        """What it is called, the same on all ranks."""
        return f"decentralized, by {type(self._pattern).__name__}"

    def suits(self, settings: Settings, ranks: int) -> bool:
        """Whether it can train with these settings on so many ranks, where it is registered."""
        return settings.async_updates and ranks > 1

    def check_settings(self, settings: Settings) -> None:
        """See `ChecksSettings`."""
        asked = "an exchange pattern of your own"
        check_decentralized(settings, asked, instead='placement="auto"')
        if settings.exchange_pattern != "auto":
            raise SettingsError(
                f'exchange_pattern="{settings.exchange_pattern}" cannot be had with {asked}, which is '
                'another one. Write exchange_pattern="auto", or placement="auto".'
            )

    def train(self, run: Run, group: Group | None, start: Setup | Entry | None) -> Outcome:
        """See `Engine`."""
        from dist_classicrl.engines.decentralized.training import train

        return train(run, group, start, self._pattern)
