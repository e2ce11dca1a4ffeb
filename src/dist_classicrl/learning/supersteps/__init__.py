"""Learning in supersteps: rows stay with their owners, and walkers travel."""
