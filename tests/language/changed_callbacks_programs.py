"""Code of the program that C code and Python's library call back, with what it reads changed between calls."""

import enum
import re
import typing

from scenario import Registry, v

scenario = Registry()
T = typing.TypeVar("T")


@scenario
def index_of_an_object_in_a_list_alone(start):
    """Only the list asks the object for its number."""

    class Place:
        def __init__(self, n):
            self.n = n

        def __index__(self):
            return self.n

    place = Place(2)

    def program(l):
        return l[place], (5, 6, 7, 8)[place]

    c = start(program)
    for place.n in (2, 1, 3, -1):
        c([1, 2, 3, 4])


@scenario
def hash_of_a_key_that_changes(start):
    class Key:
        def __init__(self, n):
            self.n = n

        def __hash__(self):
            return self.n

        def __eq__(self, other):
            return self.n == other.n

    key, held = Key(1), {Key(1): 1.0, Key(2): 2.0}

    def program(x):
        return x * held.get(key, 7.0), key in held, {Key(1): 5}.get(key)

    c = start(program)
    for key.n in (1, 2, 3, 1):
        c(v())


@scenario
def instance_of_a_generic_class(start):
    scale = [2]

    class Box(typing.Generic[T]):
        def __init__(self, value):
            self.value = value * scale[0]

    def program(x):
        return Box[int](x).value

    c = start(program)
    for scale[0] in (2, 1, 3):
        c(v())


@scenario
def library_functions_that_call_the_program(start):
    scale = [2]

    class Colour(enum.Enum):
        RED = 1
        BLUE = 2

        @classmethod
        def _missing_(cls, value):
            return cls.RED if scale[0] == 2 else cls.BLUE

    def program(x):
        return x * 2, re.sub("a", lambda m: str(scale[0]), "banana"), Colour(9).name

    c = start(program)
    for scale[0] in (2, 1, 3):
        c(v())
