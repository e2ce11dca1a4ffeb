"""What the processes of one host do together: they are helpers of one, and compile once for all."""
