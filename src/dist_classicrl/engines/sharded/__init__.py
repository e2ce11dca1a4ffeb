"""One table for all: the ranks of a host learn in the same rows, which are in memory that they share."""
