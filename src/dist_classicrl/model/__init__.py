"""What was learned: the state of an agent, its policy, and files of it."""
