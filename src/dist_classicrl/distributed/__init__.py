"""The parameter server, the workers and what passes between them: the only place that knows mpi4py."""
