"""How good a policy is: by playing, and exactly where the model is known."""

LONGEST_EPISODE = 10_000
"""In steps: by default an evaluation cuts an episode off there, as a policy need not come to an end."""
