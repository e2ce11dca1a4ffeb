"""CUDA cards: which there are, which of them a rank takes, and why none can be had.

numba-cuda is imported when a card is asked for, and not before: it takes a second, and most runs need none.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np

from dist_classicrl._hints import local_rank_of_environment, local_size_of_environment
from dist_classicrl.errors import DeviceError, MissingExtraError

VISIBLE = "CUDA_VISIBLE_DEVICES"

NO_NUMBA_CUDA = (
    'device="cuda" needs numba-cuda, which is an extra: pip install ".[gpu]" in a clone of this project, or '
    'pip install "numba-cuda[cu13]" (with a driver below 580, "numba-cuda[cu12]"). Else write device="cpu".'
)
_ON_CORES = 'Write device="cpu" to learn on cores, or device="auto" to take a card where there is one.'


@dataclass(frozen=True)
class Card:
    """A CUDA card that this process can see.

    Attributes
    ----------
    number : int
        Among those that `CUDA_VISIBLE_DEVICES` lets it see.
    name : str
    capability : tuple of int
        Compute capability, major and minor.
    memory : int
        Bytes.
    multiprocessors : int
    is_simulated : bool
        Whether numba's CUDA simulator runs kernels as Python threads instead (NUMBA_ENABLE_CUDASIM=1).
    """

    number: int
    name: str
    capability: tuple[int, int]
    memory: int
    multiprocessors: int
    is_simulated: bool = False

    def __str__(self) -> str:
        if self.is_simulated:
            return "numba's CUDA simulator"
        major, minor = self.capability
        return (
            f"card {self.number}, {self.name} (compute capability {major}.{minor}, {self.memory / 2**30:.0f} "
            f"GiB, {self.multiprocessors} multiprocessors)"
        )


@cache
def numba_cuda() -> Any:
    """Return the module `numba.cuda` of numba-cuda; MissingExtraError where that is not installed.

    DeviceError where it is and cannot be imported.
    """
    if find_spec("numba_cuda") is None:
        raise MissingExtraError(NO_NUMBA_CUDA)
    if not hasattr(np, "row_stack"):  # gone from NumPy 2.5, and numba-cuda 0.30 still names it
        np.row_stack = np.vstack  # noqa: NPY201
    try:
        return import_module("numba.cuda")
    except Exception as error:  # what is missing may be a library that it loads
        raise DeviceError(
            f"numba-cuda is installed, but cannot be imported: {error}. Install it anew with the libraries "
            f'of your driver, pip install --force-reinstall "numba-cuda[cu13]" (below driver 580, '
            f'"numba-cuda[cu12]"). {_ON_CORES}'
        ) from error


def is_simulated() -> bool:
    """Whether kernels run in numba's CUDA simulator, which is chosen before numba is first imported."""
    numba_cuda()
    return bool(import_module("numba.core.config").ENABLE_CUDASIM)


def driver_version() -> tuple[int, int]:
    """Return the newest CUDA that the driver runs; DeviceError where there is no driver."""
    numba_cuda()
    driver: Any = import_module("numba.cuda.cudadrv.driver")
    try:
        major, minor = driver.driver.get_version()
    except Exception as error:  # CudaSupportError, an ImportError, or what the library says
        reason = " ".join(str(error).replace("Error at driver init:", "").split()).rstrip(".: ")
        raise DeviceError(
            f'device="cuda" needs a card and NVIDIA\'s driver, and there is none that works here: {reason}. '
            f"See whether nvidia-smi lists a card; in a container, start it with --gpus all or --nv. "
            f"{_ON_CORES}"
        ) from error
    return int(major), int(minor)


def toolkit_version() -> tuple[int, int]:
    """Return the CUDA that kernels are compiled with, that of the libraries beside numba-cuda."""
    try:
        import_module("numba.cuda.cudadrv.nvvm").NVVM()
        runtime: Any = import_module("numba.cuda.cudadrv.runtime")
        major, minor = runtime.get_version()
    except Exception as error:
        raise DeviceError(
            f"numba-cuda does not find what compiles kernels: {error}. Install it with its libraries: pip "
            f'install "numba-cuda[cu13]" (below driver 580, "numba-cuda[cu12]"). {_ON_CORES}'
        ) from error
    return int(major), int(minor)


def cards() -> list[Card]:
    """Return the cards that this process can see, at least one.

    Raises
    ------
    MissingExtraError
        Without numba-cuda.
    DeviceError
        If there is no driver, it is too old, or there is no card.
    """
    cuda = numba_cuda()
    if is_simulated():
        return [Card(0, "simulator", (0, 0), 1 << 30, 1, is_simulated=True)]
    has, needs = driver_version(), toolkit_version()
    if has[0] < needs[0]:
        raise DeviceError(
            f"NVIDIA's driver is too old: it runs CUDA up to {has[0]}.{has[1]}, and kernels are compiled "
            f"with CUDA {needs[0]}.{needs[1]}. Install a newer driver, or the libraries of its CUDA: pip "
            f'install "numba-cuda[cu{has[0]}]". {_ON_CORES}'
        )
    try:
        found = [_card(number, each) for number, each in enumerate(cuda.gpus)]
    except Exception as error:
        raise DeviceError(f"NVIDIA's driver lists no card: {error}. {_ON_CORES}") from error
    if not found:
        seen = os.environ.get(VISIBLE)
        why = "" if seen is None else f" that {VISIBLE}={seen} lets this process see"
        raise DeviceError(f"There is a driver, but no card{why}. {_ON_CORES}")
    return found


def _card(number: int, each: Any) -> Card:
    with each:
        memory = int(import_module("numba.cuda").current_context().get_memory_info().total)
    device = each.device if hasattr(each, "device") else each
    name = device.name.decode() if isinstance(device.name, bytes) else str(device.name)
    major, minor = device.compute_capability[:2]
    return Card(number, name, (int(major), int(minor)), memory, int(device.MULTIPROCESSOR_COUNT))


def place_on_host(serves_apart: bool) -> tuple[int, int]:
    """Return the number of this rank among those of its host that may want cards, and how many they are.

    `serves_apart`: the first rank of the job serves, and needs none. It is taken to be on each host the first
    one, since only on its own would the number be one too low, and then two ranks share a card that might
    have had one each.
    """
    number, size = local_rank_of_environment() or 0, local_size_of_environment() or 1
    if serves_apart and size > 1:
        return max(0, number - 1), size - 1
    return number, size


def card_of_rank(found: list[Card], number: int) -> Card:
    """Return the card of the rank of this number on its host: each its own, as far as there are."""
    return found[number % len(found)]


def free_memory(card: Card) -> int:
    """Return how many bytes of a card's memory nobody has."""
    if card.is_simulated:
        return card.memory
    cuda = numba_cuda()
    with cuda.gpus[card.number]:
        return int(cuda.current_context().get_memory_info().free)
