"""What `dist-classicrl doctor` examines: the MPI, the machine and the files that a training is to run on."""
