"""Tic-tac-toe: rules, Gymnasium environment, compiled simulator and exact model."""
