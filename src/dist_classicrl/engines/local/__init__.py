"""The engine of one process: no messages."""
