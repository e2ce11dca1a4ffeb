"""How good a policy is: by playing, and exactly where the model is known."""

from dist_classicrl.checks import WholeNumber

LONGEST_EPISODE = 10_000
"""In steps: by default an evaluation cuts an episode off there, as a policy need not come to an end."""

SEED, EPISODES, STEPS = WholeNumber(0, "None", 63), WholeNumber(1, bits=31), WholeNumber(1, bits=62)
"""What the arguments `seed`, `episodes` and `max_steps` of an evaluation may be."""
