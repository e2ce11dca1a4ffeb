"""What commands do with several runs: read them, list them, put them into groups."""
