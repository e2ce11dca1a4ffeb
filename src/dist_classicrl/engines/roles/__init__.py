"""What the engines of several ranks have in common: servers, workers, and how ranks change between them."""
