"""State to disk and back."""
