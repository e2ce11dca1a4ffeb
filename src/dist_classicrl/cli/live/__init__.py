"""A run or a study on the whole screen of a terminal, while it goes on."""
