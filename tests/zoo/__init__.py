"""Modules in the styles of other people's code, each small, each with inputs: see tests/test_zoo.py."""
