"""The asynchronous engine: a parameter server and workers that push affine maps."""
