"""Reports of one or several runs."""
