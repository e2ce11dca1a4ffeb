"""What doctor examines where a training is to run on several hosts."""
