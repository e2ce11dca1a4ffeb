"""What the files of a study say: its runs, the seeds that were added to it, what is other in a plan."""
