"""Which settings a study tries: all, drawn ones, those that look best, and for how many steps."""
