"""The public classes: settings in, results out."""
