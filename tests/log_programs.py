"""The program whose logs and traces are looked at."""

# The program of the document about what is traced; then a break, which makes it a second place, and a recompile.
PROGRAM = """
import torch, magneto

def g(x, y):
    return x + y

@magneto.compile
def f(x):
    x = torch.sin(x)
    x = g(x, x)
    return x

f(torch.ones(3, 3))
f(torch.ones(4, 4))

@magneto.compile
def broken(x):
    x = x.cos()
    print(end="")
    return x + 1

broken(torch.ones(3))
"""
