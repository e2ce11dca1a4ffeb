"""Supersteps of environments that are stepped in Python: they stay where they are, and rows are asked for."""
