"""Supersteps of ranks that exchange messages: what they tell each other, and which rows all can read."""
