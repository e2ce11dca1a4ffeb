"""Parts for MPI programs of your own: failure detector, monitor, debugger, collectives, barrier, sampler."""

from dist_classicrl.mpi_tools.barrier import QuorumBarrier
from dist_classicrl.mpi_tools.compressed import CompressedAllreduce, Traffic
from dist_classicrl.mpi_tools.parameters import ParameterSync, SyncHandle
from dist_classicrl.mpi_tools.sampler import DistributedSampler
from dist_classicrl.mpi_tools.two_level import TwoLevel

__all__ = [
    "CompressedAllreduce",
    "DistributedSampler",
    "ParameterSync",
    "QuorumBarrier",
    "SyncHandle",
    "Traffic",
    "TwoLevel",
]
