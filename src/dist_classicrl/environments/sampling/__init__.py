"""How models are sampled: packed alias slots of arrays or of a function, or the function itself."""
