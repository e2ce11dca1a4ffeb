"""A policy as text, as a program and as tables."""
