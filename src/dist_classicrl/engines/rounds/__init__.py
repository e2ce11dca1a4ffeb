"""The reproducible engine: rounds of fixed quotas, merged in a fixed order."""
