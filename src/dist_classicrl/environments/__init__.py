"""Environments: finite models as arrays, compiled simulation, Gymnasium stepping."""
