"""Whether all hosts reach the folder in which each is to save its rows of a divided table."""

from __future__ import annotations

import socket

from dist_classicrl.agent.agreement import Agreement
from dist_classicrl.checkpoint.plan import CheckpointPlan
from dist_classicrl.comm import envelope
from dist_classicrl.errors import CheckpointError
from dist_classicrl.model.agent_state import AgentState
from dist_classicrl.model.places import PlaceName

_REACH_SECONDS = 20.0
"""So long a host looks for what another one has written: network file systems may tell of it late."""


def check_reach(
    state: AgentState,
    plan: CheckpointPlan,
    agreement: Agreement,
    own: PlaceName | None,
    error: BaseException | None,
) -> None:
    """Raise CheckpointError on all ranks unless all of them reach the folder of the plan.

    `own`: what the head, which alone knows it, is to save the call in; None where it makes no steps, or has
    the `error`.
    """
    places, told = state.places, None
    if agreement.is_head:
        claimed = None
        if own is not None:
            fence = places.of(plan).folder.fence
            claimed = fence.claimed
            try:
                fence.check()
            except CheckpointError as caught:  # the others must hear of it
                own, error = None, caught
        told = envelope.text({"place": own, "claimed": claimed})
    said = envelope.from_text(agreement.broadcast_message(told, "where the call is saved"))
    if said["place"] is not None and error is None:
        # Not what the agent knows of: if the head is lost now, another one looks through it.
        folder = places.folder(plan, PlaceName(*said["place"]).number)
        try:
            sees = folder.fence.sees(
                tuple(said["claimed"]), min(_REACH_SECONDS, state.settings.timeout / 2.0)
            )
        except CheckpointError as caught:  # likewise
            error = caught
        else:
            error = None if sees else _not_found(agreement, folder.url)
    try:
        agreement.agree(error, {}, [], "all hosts to look into the folder of checkpoints")
    finally:
        del error  # see `Alone.agree`


def _not_found(agreement: Agreement, url: str) -> CheckpointError:
    return CheckpointError(
        f"Rank {agreement.rank} on {socket.gethostname()} does not find in {url} what rank {agreement.head} "
        "has written there just now. Of a table that is divided between hosts each host saves its own rows: "
        "give a checkpoint_dir that all hosts reach, on a file system that they share, or a URL such as "
        "s3://bucket/run."
    )
