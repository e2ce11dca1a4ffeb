"""Learning rules as jitted functions over plain arrays."""
