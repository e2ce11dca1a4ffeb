"""Model files as earlier versions of this library wrote them."""

import json

import numpy as np


def without(path, *names):
    """Let the model file at `path` lack these parts of what it says besides its arrays."""
    with np.load(path, allow_pickle=False) as archive:
        arrays = dict(archive)
    about = json.loads(arrays["about"].tobytes())
    for name in names:
        del about[name]
    arrays["about"] = np.frombuffer(json.dumps(about).encode(), np.uint8)
    with open(path, "wb") as file:
        np.savez_compressed(file, **arrays)
    return path
