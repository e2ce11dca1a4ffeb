"""Who is in a run: views, signs of life, elections, the agreement before the first step, new ranks."""
