"""The agents that a folder of checkpoints holds, for `load_model`."""

from __future__ import annotations

import os
import re

from dist_classicrl.agent.checkpoint_body import checkpoint_fault, refused
from dist_classicrl.checkpoint.folder import CheckpointFolder, Saved
from dist_classicrl.checkpoint.local import LocalStorage
from dist_classicrl.checkpoint.location import open_storage
from dist_classicrl.checkpoint.manifest import MANIFEST, of_another_version
from dist_classicrl.checkpoint.plan import CheckpointPlan
from dist_classicrl.errors import CheckpointError
from dist_classicrl.model.model_file import SavedModel, model_of
from dist_classicrl.rules import registry
from dist_classicrl.settings import Settings

_OF_RUN = ("model.npz", "best_model.npz", "checkpoints")  # what is meant where the folder of a run is given
_AGENT = re.compile("agent-[0-9]+")


def saved_model_of(path: str | os.PathLike[str]) -> SavedModel:
    """Return the agent as of the newest good checkpoint in a folder, which `load_model` describes.

    CheckpointError where there is no checkpoint, none that can be used, or several agents;
    CheckpointUnreadableError where it is of another version of this package, or cannot be read for now.
    Nothing in it is ever run.
    """
    saved = _saved_of(path)
    fault = checkpoint_fault(saved)
    settings = saved.body["settings"] if fault is None else {}
    if unknown := sorted(set(settings).difference(Settings.__dataclass_fields__)):
        raise of_another_version(saved.url, saved.body, f"it has no settings {', '.join(unknown)}")
    if advice := registry.to_register(settings):
        raise CheckpointError(f"{saved.url} cannot be loaded: {advice}")
    try:
        if fault is not None:
            raise ValueError(fault)
        return model_of(saved.body, saved.arrays)
    except ValueError as error:
        raise refused(saved, str(error), "give the folder of an earlier one") from error


def model_in_run(path: str | os.PathLike[str]) -> str | None:
    """Return the path of what `load_model` takes in the folder of a run; None where there is none."""
    inner = (os.path.join(os.fspath(path), each) for each in _OF_RUN)
    return next(filter(os.path.exists, inner), None)


def _saved_of(path: str | os.PathLike[str]) -> Saved:
    storage = open_storage(path, "", CheckpointPlan.checkpoint_mode)
    url = storage.url.removesuffix("/") or "/"
    # A link to a checkpoint's folder may have any name.
    location = os.path.realpath(storage.url) if isinstance(storage, LocalStorage) else os.fspath(path)
    names = storage.listed()
    above, name = _split(location)
    if MANIFEST in names:
        return CheckpointFolder(*_split(above)).read(name)
    agents = [name for name in names if _AGENT.fullmatch(name)]
    if len(agents) > 1:
        raise CheckpointError(
            f"There are {len(agents)} agents in {url}: {', '.join(agents)}. Give the subfolder of one, such "
            f"as {url}/{agents[0]}."
        )
    saved = None
    if agents:
        saved = CheckpointFolder(location, agents[0]).read_newest()
    elif not above.endswith("://"):  # a whole bucket is no agent's folder
        saved = CheckpointFolder(above, name).read_newest()
    if saved is None:
        if (meant := model_in_run(path)) is not None:
            raise CheckpointError(f"{url} is no folder of checkpoints. Write load_model({meant!r}).")
        raise CheckpointError(
            f"There is no checkpoint in {url}. Give what train was given as checkpoint_dir, an agent's "
            "subfolder there, one checkpoint's folder, or the path of a file that save_model wrote."
        )
    return saved


def _split(location: str) -> tuple[str, str]:
    """Return a path or URL without its last part, and that part."""
    above, _, name = location.rstrip("/").rpartition("/")
    # What is left of "scheme://name" is the root of that file system.
    return (f"{above}/" if not above or above.endswith(":/") else above), name
