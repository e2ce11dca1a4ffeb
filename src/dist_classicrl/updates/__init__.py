"""Affine maps: accumulated by workers, applied by the server."""
