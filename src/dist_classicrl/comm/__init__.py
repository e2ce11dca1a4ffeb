"""Messages between ranks over MPI: channels, collectives with deadlines, errors that cross ranks."""
