// CPython 3.11.
