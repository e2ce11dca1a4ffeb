"""Pages about one or several runs."""
