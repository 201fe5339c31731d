"""`transformers` architectures by kind; tests/models.py puts them together."""
