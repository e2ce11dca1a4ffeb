"""Learners and learning rules: environments joined to a table, in compiled loops."""
