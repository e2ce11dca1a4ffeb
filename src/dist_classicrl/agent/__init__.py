"""The public classes: settings in, training, results out."""
