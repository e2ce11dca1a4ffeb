"""CUDA cards: which there are, which of them a rank takes, and why none can be had.

numba-cuda is imported when a card is asked for, and not before: it takes a second, and most runs need none.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np

from dist_classicrl._hints import has_cards_of_its_own, local_task_of_environment, local_tasks_of_environment
from dist_classicrl.errors import DeviceError, DeviceMemoryError, MissingExtraError

VISIBLE = "CUDA_VISIBLE_DEVICES"

NO_NUMBA_CUDA = (
    'device="cuda" needs numba-cuda, which is an extra: pip install ".[gpu]" in a clone of this project, or '
    'pip install "numba-cuda[cu13]" (with a driver below 580, "numba-cuda[cu12]"). Else write device="cpu".'
)
_ON_CORES = 'Write device="cpu" to learn on cores, or device="auto" to take a card where there is one.'

USUAL_SHARED_BYTES = 48 << 10
"""Shared memory that every card gives a block without being asked."""


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
    shared_bytes : int
        Shared memory that a block may have.
    is_simulated : bool
        Whether numba's CUDA simulator runs kernels as Python threads instead (NUMBA_ENABLE_CUDASIM=1).
    threads : int
        That it can have under way at once, for each of which the driver keeps a stack; 0 if simulated.
    """

    number: int
    name: str
    capability: tuple[int, int]
    memory: int
    multiprocessors: int
    shared_bytes: int = USUAL_SHARED_BYTES
    is_simulated: bool = False
    threads: int = 0

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

    DeviceError where it is and cannot be imported, or numba's own has been imported in its place.
    """
    if find_spec("numba_cuda") is None:
        raise MissingExtraError(NO_NUMBA_CUDA)
    if not hasattr(np, "row_stack"):  # gone from NumPy 2.5, and numba-cuda 0.30 still names it
        np.row_stack = np.vstack  # noqa: NPY201
    with suppress(ImportError):  # what its .pth file does, which Python runs in its own site-packages alone
        import_module("_numba_cuda_redirector")
    try:
        cuda: Any = import_module("numba.cuda")
    except Exception as error:  # what is missing may be a library that it loads
        raise DeviceError(
            f"numba-cuda is installed, but cannot be imported: {error}. Install it anew with the libraries "
            f'of your driver, pip install --force-reinstall "numba-cuda[cu13]" (below driver 580, '
            f'"numba-cuda[cu12]"). {_ON_CORES}'
        ) from error
    if getattr(cuda, "implementation", "") == "Built-in":
        raise DeviceError(
            "numba-cuda is installed, but this process has imported numba's own numba.cuda, "
            f"{cuda.__file__}, which knows no cards of today. Python puts the one in the place of the other "
            "by a .pth file, which it runs in site-packages, and not where PYTHONPATH or pip --target leads "
            "it: install numba-cuda in a virtual environment, or write import _numba_cuda_redirector before "
            f"whatever imports numba.cuda. {_ON_CORES}"
        )
    return cuda


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
            f'device="cuda" needs a card and NVIDIA\'s driver, and there is none that works '
            f"{_among_visible()}: {reason}. See whether nvidia-smi lists a card; in a container, start it "
            f"with --gpus all or --nv. {_ON_CORES}"
        ) from error
    return int(major), int(minor)


def _among_visible() -> str:
    """Return where cards are looked for: a driver says that there are none where a variable hides them."""
    seen = os.environ.get(VISIBLE)
    return "here" if seen is None else f"among those that {VISIBLE}={seen!r} lets this process see"


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
    """Return the cards that this process can see, at least one. None of them is begun to be used by that.

    Cards that do not answer, or for which kernels cannot be compiled, are left out.

    Raises
    ------
    MissingExtraError
        Without numba-cuda.
    DeviceError
        If there is no driver, it is too old, or there is no card that works.
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
    if has < needs:
        _check_linker(has, needs)
    try:
        listed, least = list(cuda.gpus), _least_capability()
    except Exception as error:
        raise DeviceError(f"NVIDIA's driver lists no card: {error}. {_ON_CORES}") from error
    found, left_out = [], []
    for number, each in enumerate(listed):
        try:
            card = _card(number, each)
        except Exception as error:  # others may work
            left_out.append(f"card {number} does not answer ({error})")
            continue
        if card.capability >= least:
            found.append(card)
        else:
            left_out.append(f"{card} is too old for CUDA {needs[0]}.{needs[1]}, see numba-cuda[cu12]")
    if not found:
        why = f": {'; '.join(left_out)}" if left_out else ""
        raise DeviceError(f"There is a driver, but no card that works {_among_visible()}{why}. {_ON_CORES}")
    return found


def _check_linker(has: tuple[int, int], needs: tuple[int, int]) -> None:
    """Raise DeviceError without nvJitLink: a driver itself links nothing that a newer CUDA has compiled.

    cuda.core would let it try.
    """
    try:
        import_module("cuda.bindings.nvjitlink").version()
    except Exception as error:  # of the library's own kinds
        raise DeviceError(
            f"nvJitLink is not found: kernels are compiled with CUDA {needs[0]}.{needs[1]}, and the driver, "
            f"of CUDA {has[0]}.{has[1]}, takes them only from that. Install it: pip install "
            f'"numba-cuda[cu{needs[0]}]". {_ON_CORES}'
        ) from error


def _least_capability() -> tuple[int, int]:
    """Return the lowest compute capability for which kernels can be compiled."""
    major, minor = import_module("numba.cuda.cudadrv.nvrtc").get_lowest_supported_cc()[:2]
    return int(major), int(minor)


def _card(number: int, each: Any) -> Card:
    """Return what a card is. That makes no context on it, which a card may grant to one process alone."""
    device = each.device if hasattr(each, "device") else each
    driver: Any = import_module("numba.cuda.cudadrv.driver").driver
    memory = int(driver.cuDeviceTotalMem(device.id))
    name = device.name.decode() if isinstance(device.name, bytes) else str(device.name)
    major, minor = device.compute_capability[:2]
    shared = max(int(device.MAX_SHARED_MEMORY_PER_BLOCK_OPTIN), USUAL_SHARED_BYTES)
    processors = int(device.MULTIPROCESSOR_COUNT)
    threads = processors * int(device.MAX_THREADS_PER_MULTIPROCESSOR)
    return Card(number, name, (int(major), int(minor)), memory, processors, shared, threads=threads)


def place_on_host() -> tuple[int, int]:
    """Return the number of this process among those of its host that may want cards, and how many they are.

    It is what launchers say, and what a process that belongs to no group of ranks goes by.
    """
    number = local_task_of_environment() or 0
    return number, max(number + 1, local_tasks_of_environment() or 1)


def place_among(found: list[Card], place: tuple[int, int]) -> tuple[int, int]:
    """Return a place among those of a host that share these cards: a task may see none but its own."""
    return (0, 1) if has_cards_of_its_own() and len(found) < place[1] else place


def card_of_rank(found: list[Card], number: int) -> Card:
    """Return the card of the rank of this number on its host: each its own, as far as there are."""
    return found[number % len(found)]


def free_memory(card: Card) -> int:
    """Return how many bytes of a card's memory nobody has.

    DeviceError if the card does not answer.
    """
    if card.is_simulated:
        return card.memory
    cuda = numba_cuda()
    try:
        with cuda.gpus[card.number]:
            context = cuda.current_context()
            context.deallocations.clear()  # what this process gave back, and has not returned yet
            return int(context.get_memory_info().free)
    except Exception as error:
        if is_of_card(error):
            raise trouble(card, error) from error
        raise


_OF_CARD = {"CudaDriverError", "CudaAPIError", "CUDAError", "nvJitLinkError", "DeviceError"}
"""Names of the classes of errors that a driver, or what makes code for a card, has: each library its own."""


def is_of_card(error: BaseException) -> bool:
    """Whether an error is a card's own: it has no memory left, or does not work."""
    return any(kind.__name__ in _OF_CARD for kind in type(error).__mro__)


def trouble(card: Card, error: BaseException) -> DeviceError:
    """Return an error of a card as one of the package."""
    if isinstance(error, DeviceError):
        return error
    if "OUT_OF_MEMORY" in str(error):
        return DeviceMemoryError(
            f"The memory of {card} is full: {error}. End what else uses the card, take a larger one "
            f'({VISIBLE}), or write device="cpu".'
        )
    if re.search(r"UNSUPPORTED_PTX_VERSION|Unsupported \.version", str(error)):
        return DeviceError(
            f"{card} cannot have what kernels are compiled to: {error}. What compiles them, NVVM, is of a "
            "newer CUDA than the driver and what links them, nvJitLink: install libraries of one version, "
            'pip install --upgrade "numba-cuda[cu13]", or [cu12] where that is installed, or a newer driver, '
            'or write device="cpu".'
        )
    return DeviceError(
        f"A call to {card} failed: {error}. After that nothing more can be done with a card in this process: "
        'see whether nvidia-smi lists the card without errors, and start anew, or write device="cpu".'
    )
