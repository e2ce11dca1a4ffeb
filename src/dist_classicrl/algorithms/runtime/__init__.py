"""Import paths that existing scripts use."""
