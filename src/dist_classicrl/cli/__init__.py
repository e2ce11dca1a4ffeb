"""What a person types: the commands of `dist-classicrl`."""
