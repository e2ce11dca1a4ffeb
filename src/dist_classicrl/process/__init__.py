"""The life of one process: signals, requests to stop or leave, its exit, and programs that it runs."""
