"""How good a policy is: by playing, and exactly where the model is known."""
