"""Guards described by tuples and called with the values of locals; see src/guards/bindings.cpp."""

from magneto import _testing

UNBOUND = NotImplemented


def local(index=0, name="x"):
    return (("local", index, name),)


X = local()


class Guards:
    """A compiled guard set, called with the values of the locals."""

    def __init__(self, *descriptions):
        self.program = _testing.guards_compile(list(descriptions))

    def roots(self, values, function=None, stack=()):
        return (function, values, stack)

    def __call__(self, *values, **roots):
        """Whether the guards hold; `explain` must agree, and asking again must not change the answer.

        The second answer comes from a snapshot if the first one was yes, and so does the next call's first."""
        roots = self.roots(values, **roots)
        first = _testing.guards_check(self.program, roots)
        again = _testing.guards_check(self.program, roots)
        assert (first is None) == (again is None)
        assert first is None or all(a is b for a, b in zip(first, again, strict=True))
        reason = _testing.guards_explain(self.program, roots)
        second = _testing.guards_check(self.program, roots)
        assert (first is None) == (second is None) == (reason != "")
        return first is not None

    def values(self, *values, **roots):
        return _testing.guards_check(self.program, self.roots(values, **roots))

    def why(self, *values, **roots):
        return _testing.guards_explain(self.program, self.roots(values, **roots))

    def text(self):
        return _testing.guards_print(self.program)


class Plain:
    def __init__(self, **attributes):
        for name, value in attributes.items():
            setattr(self, name, value)


class Slotted:
    __slots__ = ("a", "b")


def make_closure():
    captured = [1]

    def inner():
        return captured

    def set_captured(value):
        nonlocal captured
        captured = value

    def delete():
        nonlocal captured
        del captured

    return inner, set_captured, delete


def bound():
    class Bound:
        def method(self):
            pass

    return Bound().method
