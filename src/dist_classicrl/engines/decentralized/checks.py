"""What can be learned without a server in the data path."""

from __future__ import annotations

from dist_classicrl.compression import name_of
from dist_classicrl.errors import SettingsError
from dist_classicrl.settings import Settings


def check_decentralized(settings: Settings, asked: str = 'topology="decentralized"') -> None:
    """Raise SettingsError where `asked` cannot be had with these settings; it says what comes nearest."""
    if not settings.async_updates:
        raise SettingsError(
            f"{asked} has no place in the reproducible mode (async_updates=False), where one rank merges the "
            'maps in a fixed order. Write topology="flat", or use async_updates=True.'
        )
    if settings.compression_threshold > 0.0:
        raise SettingsError(
            f"{asked} cannot be had with compression_threshold={settings.compression_threshold:g}: what "
            "waits at a rank is lost with it, and each round has to be merged whole. Write "
            "compression_threshold=0 and compression='lossless', or topology=\"flat\"."
        )
    if (name := name_of(settings.compression)) in ("top_k", "quantized"):
        raise SettingsError(
            f'{asked} cannot be had with compression="{name}": what waits at a rank is lost with it, and '
            "each round has to be merged whole. Write compression='lossless', which changes no bit, or "
            'topology="flat".'
        )
    if settings.on_error == "exclude":
        raise SettingsError(
            f'on_error="exclude" cannot be had with {asked}: a rank that has failed has steps of the round '
            'under way, which all others wait for. Write on_error="raise", or topology="flat".'
        )
    if settings.on_failure == "replace":
        raise SettingsError(
            f'on_failure="replace" cannot be had with {asked}: a replacement reaches the coordinator alone, '
            'and no other rank. Write on_failure="continue", or topology="flat".'
        )
