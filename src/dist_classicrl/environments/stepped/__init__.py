"""Environments that Gymnasium steps, as batches with integer states and actions."""
