"""How a training is spread over ranks; each engine in a folder of its own."""
