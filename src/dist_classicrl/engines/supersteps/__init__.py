"""One table for all, on any number of hosts: each rank owns rows, and walkers travel between the owners."""
