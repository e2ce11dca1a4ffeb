"""Side by side with what people would use instead: scripts/benchmark."""
