"""What can be learned without a server in the data path."""

from __future__ import annotations

from dist_classicrl._words import name_of
from dist_classicrl.errors import SettingsError
from dist_classicrl.settings import Settings


def check_decentralized(
    settings: Settings, asked: str = 'topology="decentralized"', instead: str = 'topology="flat"'
) -> None:
    """Raise SettingsError where `asked` cannot be had with these settings; it says what comes nearest.

    `instead` is what to write where these settings are to stay.
    """
    if not settings.async_updates:
        raise SettingsError(
            f"The reproducible mode (async_updates=False) cannot be had with {asked}: there one rank merges "
            f"the maps, in a fixed order. Write {instead}, or use async_updates=True."
        )
    if settings.compression_threshold > 0.0:
        raise SettingsError(
            f"compression_threshold={settings.compression_threshold:g} cannot be had with {asked}: what "
            "waits at a rank is lost with it, and each round has to be merged whole. Write "
            f"compression_threshold=0 and compression='lossless', or {instead}."
        )
    if (name := name_of(settings.compression)) in ("top_k", "quantized"):
        raise SettingsError(
            f'compression="{name}" cannot be had with {asked}: what waits at a rank is lost with it, and '
            "each round has to be merged whole. Write compression='lossless', which changes no bit, or "
            f"{instead}."
        )
    if settings.on_error == "exclude":
        raise SettingsError(
            f'on_error="exclude" cannot be had with {asked}: a rank that has failed has steps of the round '
            f'under way, which all others wait for. Write on_error="raise", or {instead}.'
        )
    if settings.on_failure == "replace":
        raise SettingsError(
            f'on_failure="replace" cannot be had with {asked}: a replacement reaches the coordinator alone, '
            f'and no other rank. Write on_failure="continue", or {instead}.'
        )
    if settings.max_staleness is not None:
        raise SettingsError(
            f"max_staleness={settings.max_staleness} cannot be had with {asked}: it is about the versions of "
            f"one server, and there is none. Write max_staleness=None, or {instead}."
        )
    if settings.merging != "affine":
        raise SettingsError(
            f'merging="{settings.merging}" cannot be had with {asked}: it says how a server merges, and '
            f'there is none. Write merging="affine", or {instead}.'
        )
    if settings.topology == "tree" or settings.tree_group_size is not None:
        given, without = 'topology="tree"', 'topology="decentralized"'
        if settings.tree_group_size is not None:
            given, without = f"tree_group_size={settings.tree_group_size}", "tree_group_size=None"
        raise SettingsError(
            f"{given} cannot be had with {asked}: maps go by that, and through no tree of servers. Write "
            f"{without}, or {instead}."
        )
