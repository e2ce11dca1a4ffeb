"""Parts for MPI programs of your own: failure detector, monitor, debugger, communication profile."""
