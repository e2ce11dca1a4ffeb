"""Parts for MPI programs of your own: failure detector, monitor, debugger, compressed sums, sampler."""

from dist_classicrl.mpi_tools.compressed import CompressedAllreduce, Traffic
from dist_classicrl.mpi_tools.sampler import DistributedSampler

__all__ = ["CompressedAllreduce", "DistributedSampler", "Traffic"]
