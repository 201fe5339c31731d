"""What is read behind a program's back, by C code or through a class, is changed between calls: each was missed once."""

import abc
import sys
import types
import typing
import weakref

import torch
from scenario import Registry, v

scenario = Registry()


@scenario
def weak_reference_to_a_local_that_is_not_read_again(start):
    refs = []

    def program(x):
        y = x + 1
        refs.append(weakref.ref(y))
        return len([r for r in refs if r() is not None])

    c = start(program)
    [c(v()) for _ in range(4)]


@scenario
def order_of_a_set(start):
    s = {"a", "b", "c"}

    def program(x):
        out = []
        for k in s:
            out.append(k)
        return (x + len(s), out)

    c = start(program)
    c(v())
    s.add("d")
    c(v())
    s.discard("a")
    c(v())
    s.discard("d")
    s.add("a")
    c(v())


@scenario
def key_error_of_none(start):

    def program(x, k):
        try:
            try:
                x = x + {}[k]
            except KeyError as e:
                raise ValueError(k) from e
        except ValueError as e:
            return (x, type(e.__cause__).__name__, e.__cause__.args, e.__suppress_context__)

    c = start(program)
    c(v(), "a")
    c(v(), 3)
    c(v(), None)


@scenario
def effects_of_methods_that_c_code_finds(start):
    log = []

    class K:
        def __init__(s, n):
            s.n = n

        def __eq__(s, o):
            log.append((s.n, getattr(o, "n", o)))
            return s.n == getattr(o, "n", o)

        def __hash__(s):
            return s.n % 2

    ks = [K(1), K(3), K(2)]

    def program(x):
        d = {k: i for i, k in enumerate(ks)}
        return (x + d[K(3)], K(2) in ks, ks.index(K(2)))

    c = start(program, log)
    c(v())
    c(v())
    ks[0].n = 3
    c(v())
    ks.reverse()
    c(v())


@scenario
def bases_of_a_class_assigned(start):

    class A:
        def f(s, x):
            return x + 1

    class C:
        def f(s, x):
            return x * 100

    class B(A):
        pass

    b = B()

    def program(x):
        return (b.f(x), isinstance(b, C))

    c = start(program)
    c(v())
    B.__bases__ = (C,)
    c(v())
    B.__bases__ = (A, C)
    c(v())


@scenario
def class_registered_with_an_abstract_base_class(start):

    class A(abc.ABC):
        pass

    class B:
        pass

    b = B()

    def program(x):
        return x + 1 if isinstance(b, A) else x - 1

    c = start(program)
    c(v())
    A.register(B)
    c(v())


@scenario
def attributes_that_a_protocol_asks_for(start):

    @typing.runtime_checkable
    class P(typing.Protocol):
        def go(self): ...

    class B:
        pass

    def program(b, x):
        return (isinstance(b, P), x + 1)

    c = start(program)
    b = B()
    c(b, v())
    b.go = lambda: 1
    c(b, v())
    del b.go
    B.go = lambda s: 2
    c(b, v())
    del B.go
    c(b, v())


@scenario
def metaclass_that_answers_by_its_state(start):

    class M(type):
        flag = True

        def __instancecheck__(cls, o):
            return M.flag

    class A(metaclass=M):
        pass

    def program(x):
        return (isinstance(x, A), x + 1)

    c = start(program)
    c(v())
    M.flag = False
    c(v())


@scenario
def descriptor_that_becomes_a_data_descriptor(start):

    class D:
        def __init__(s):
            s.k = 2

        def __get__(s, o, t=None):
            return s.k

    d = D()

    class A:
        p = d

    a = A()

    def program(x):
        return x * a.p

    c = start(program)
    c(v())
    d.k = 3
    c(v())
    D.__get__ = lambda s, o, t=None: 11
    c(v())
    D.__set__ = lambda s, o, w: None
    a.__dict__["p"] = 50
    c(v())
    del D.__set__
    c(v())


@scenario
def attribute_given_to_all_tensors(start):

    def program(x):
        return x.foo() if hasattr(x, "foo") else x.neg()

    c = start(program)
    c(v())
    try:
        torch.Tensor.foo = lambda s: s * 9
        c(v())
        torch.Tensor.neg_ = torch.Tensor.neg_
        torch.Tensor.foo = lambda s: s * 8
        c(v())
    finally:
        del torch.Tensor.foo
        del torch.Tensor.neg_
    c(v())


@scenario
def module_replaced_in_sys_modules(start):

    def program(x):
        import hunt_mod
        from hunt_mod import k

        return x * k + hunt_mod.z

    mod = types.ModuleType("hunt_mod")
    mod.k = 1
    mod.z = 2
    sys.modules["hunt_mod"] = mod
    c = start(program)
    c(v())
    mod.k = 5
    c(v())
    m2 = types.ModuleType("hunt_mod")
    m2.k = 7
    m2.z = 0
    sys.modules["hunt_mod"] = m2
    c(v())
    del sys.modules["hunt_mod"]
    c(v())


@scenario
def closure_of_a_method_that_c_code_finds(start):
    order = [2, 0, 1]

    class K:
        def __init__(s, n):
            s.n = n

        def __lt__(s, o):
            return order.index(s.n) < order.index(o.n)

    ks = [K(0), K(1), K(2)]

    def program(x):
        r = sorted(ks)
        return (x * r[0].n, [k.n for k in r], max(ks, key=lambda k: k.n).n, min(ks).n)

    c = start(program)
    c(v())
    order.reverse()
    c(v())
    ks.append(K(0))
    c(v())
    K.__lt__ = lambda s, o: s.n < o.n
    c(v())


@scenario
def data_of_two_tensors_swapped(start):

    def program(x, y):
        x.data, y.data = (y.data, x.data)
        return (x + 1, y)

    c = start(program)
    c(v(), v(2))
    c(v(), v(3))
    x = v()
    c(x, x)


@scenario
def out_tensor_that_is_resized_while_sizes_are_symbols(start):
    buf = torch.empty(6)
    small = torch.empty(0)

    def program(x):
        torch.add(x, 1, out=buf)
        r = torch.mul(x, 2, out=small)
        return (buf, r, r is small, small.shape)

    c = start(program, buf)
    c(v())
    c(v(2))
    c(v()[:3])
