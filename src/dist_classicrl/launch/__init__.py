"""Starting a job and seeing it through: hosts, networks, SLURM, the words of each mpirun, restarts."""
