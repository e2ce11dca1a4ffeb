"""Rows of action values and what is done with them: affine maps, packing, refreshes, windows, snapshots."""
