"""Learning on a CUDA card, with a hundred thousand walkers at a time."""
