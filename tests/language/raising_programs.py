"""Operators that raise because of values, which only the run shows: as in eager, at the same line, handlers included."""

from __future__ import annotations

import time

import torch
from programs import Programs, vector

programs = Programs()

GOOD = torch.eye(3)
BAD = -torch.eye(3)


def calls(*makers):
    """A good call first, which is captured; then one that raises under the same guards; then a good one again."""
    return makers


def matrices():
    return calls(lambda: (GOOD * 2,), lambda: (BAD * 2,), lambda: (GOOD * 3,))


def indices(good=1, bad=9):
    return tuple((lambda n=n: (vector(), torch.tensor([0, n]))) for n in (good, bad, good))


@programs(*matrices())
def cholesky_leaves(a):
    b = a + 1
    return torch.linalg.cholesky(a) + b


@programs(*matrices())
def cholesky_in_try(a):
    log = []
    b = a * 2
    try:
        log.append("try")
        c = torch.linalg.cholesky(b)
        log.append("done")
    except RuntimeError as error:
        log.append(type(error).__name__)
        c = b
    finally:
        log.append("finally")
    return c, log


@programs.made(*matrices())
def writes_up_to_the_error_stay():
    log = []
    state = {"n": 0}

    def program(a):
        log.append("before")
        state["n"] += 1
        b = torch.linalg.cholesky(a)
        state["n"] += 10
        log.append("after")
        return b

    program.watched = (log, state)
    return program


@programs(*matrices())
def input_changed_in_place_before_the_error(a):
    a.add_(0.0)
    a.mul_(2)
    return torch.linalg.cholesky(a)


@programs.made(*matrices())
def outside_tensor_changed_in_place_before_the_error():
    counter = torch.zeros(2)

    def program(a):
        counter[0] += 1
        try:
            b = torch.linalg.cholesky(a)
        except RuntimeError:
            counter[1] += 1
            return a
        return b * counter[0]

    program.watched = (counter,)
    return program


@programs(*matrices())
def random_numbers_drawn_before_the_error(a):
    noise = torch.rand(3)
    try:
        b = torch.linalg.cholesky(a)
    except RuntimeError:
        b = a
    return b, noise, torch.rand(2)


@programs(*indices())
def index_out_of_range(x, i):
    y = x * 2
    return y[i]


@programs(*indices())
def index_out_of_range_in_try(x, i):
    y = x * 2
    try:
        return y[i] + 1
    except IndexError:
        return y - 1


@programs(*indices())
def gather_out_of_range(x, i):
    try:
        return x.gather(0, i)
    except (RuntimeError, IndexError):
        return x


@programs(*indices())
def embedding_out_of_range(x, i):
    table = x.view(3, 2)
    try:
        return torch.nn.functional.embedding(i, table)
    except IndexError:
        return table


@programs(*indices())
def index_put_out_of_range(x, i):
    x[i] = 7.0
    return x


@programs(*indices())
def error_in_a_called_function(x, i):
    def pick(v):
        w = v + 1
        return w[i]

    try:
        return pick(x) * 2
    except IndexError:
        return x, "caught"


@programs(*indices())
def error_in_a_loop(x, i):
    out = []
    for k in range(3):
        try:
            out.append(x[i + k])
        except IndexError:
            out.append(k)
    return out


@programs(*indices())
def error_in_with(x, i):
    log = []

    class Manager:
        def __enter__(self):
            log.append("enter")

        def __exit__(self, kind, value, traceback):
            log.append(kind.__name__ if kind else None)
            return True

    with Manager():
        y = x[i]
        return y, log
    return x, log


@programs(*tuple((lambda n=n: (torch.tensor([6, 4]), torch.tensor([2, n]))) for n in (2, 0, 1)))
def integer_division_by_zero(a, b):
    try:
        return a // b
    except RuntimeError as error:
        return a, str(error)


@programs(*indices(), breaks=True)
def error_after_a_break(x, i):
    x = x + 1
    print("break")
    try:
        y = x * 2
        return y[i]
    except IndexError:
        print("handler")
        return x


@programs(*tuple((lambda n=n: (vector(), torch.ones(n))) for n in (6, 4, 6)))
def shape_error_in_second_branch(x, y):
    try:
        return x + y
    except RuntimeError as error:
        return x, str(error)


def text_of(operator):
    try:
        return operator()
    except RuntimeError as error:
        return str(error)


@programs(lambda: (torch.ones(2, 3), torch.ones(1, 3, 8, 8), torch.ones(4, 3, 3, 3)))
def lists_of_sizes_in_messages(x, image, weight):
    """The messages are those of the rules for shapes: std::vector prints without brackets."""
    texts = [text_of(lambda n=n: x.expand(n)) for n in ((), (3,))]
    texts += [text_of(lambda n=n: x.split(n)) for n in ([1, -1], [1, 2])]
    for name in ("stride", "padding", "dilation"):
        texts.append(text_of(lambda n=name: torch.nn.functional.conv2d(image, weight, **{n: (1, 2, 3)})))
    transposed = torch.nn.functional.conv_transpose2d
    texts.append(text_of(lambda: transposed(image, weight[:3], output_padding=(1, 2, 3))))
    return texts


@programs(lambda: (torch.ones(3), torch.ones(2, 2, 2), torch.ones(3) > 0, torch.ones(5, 4)))
def words_of_rules_and_meta_kernels(x, cube, mask, rows):
    """What they refuse, the operator's own kernel is asked about: its message is the one that the handler reads."""
    loss = torch.nn.functional.multi_margin_loss
    return [
        text_of(lambda: torch.vdot(x, x.half())),
        text_of(lambda: torch.trace(cube)),
        text_of(lambda: -mask),
        text_of(lambda: torch.complex(x, x.int())),
        text_of(lambda: loss(rows, rows.long())),
        text_of(lambda: torch.nn.functional.soft_margin_loss(rows, torch.ones(5))),
        text_of(lambda: torch.nn.functional.conv1d(cube, cube, groups=3)),
    ]


@programs(*matrices())
def generator_raises_at_an_operator(a):
    def rows():
        yield a.sum()
        yield torch.linalg.cholesky(a).sum()

    out = []
    try:
        for row in rows():
            out.append(row)
    except RuntimeError:
        out.append("stopped")
    return out


@programs(*matrices(), breaks=True)
def handler_goes_on_after_a_stepped_error(a):
    log = []
    for i in range(3):
        try:
            a = a + 1
            time.sleep(-1)
            log.append(i)
        except ValueError as error:
            log.append(error.args)
            a = a * 2
        else:
            log.append("never")
    return a * 2, log


# -- contexts of exceptions that leave a handler inside a handler -----------------------------------------------------------


def contexts(error):
    found = []
    while error is not None and len(found) < 6:
        found.append(repr(error))
        error = error.__context__
    return found


def later():
    raise TypeError("later")


class Failing:
    def __enter__(self):
        return self

    def __exit__(self, *error):
        raise TypeError("later")


@programs(breaks=True)
def raised_in_a_handler_in_a_handler(x):
    found = []
    try:
        raise KeyError("q")
    except KeyError:
        try:
            try:
                raise ValueError("first")
            except ValueError:
                later()
        except TypeError as error:
            found.append(contexts(error))
        try:
            try:
                raise ValueError("first")
            finally:
                later()
        except TypeError as error:
            found.append(contexts(error))
        try:
            with Failing():
                raise ValueError("first")
        except TypeError as error:
            found.append(contexts(error))
    return x, found


@programs()
def given_back_with_its_contexts(x):
    try:
        raise KeyError("q")
    except KeyError:
        try:
            try:
                raise ValueError("first")
            except ValueError:
                later()
        except TypeError as error:
            kept = error
    return x, kept.__class__, kept, kept.__cause__


@programs()
def raised_again_in_a_handler(x):
    first = ValueError("first")
    try:
        raise KeyError("q")
    except KeyError:
        try:
            try:
                raise first
            except ValueError:
                raise
        except ValueError as error:
            kept = error
        try:
            try:
                raise first from None
            finally:
                x = x + 1
        except ValueError as error:
            other = error
    return x, kept is other, kept


@programs.made()
def leaves_the_function_with_its_contexts():
    def program(x):
        try:
            raise KeyError("q")
        except KeyError:
            try:
                raise ValueError("first")
            except ValueError:
                later()

    def watched(x):
        try:
            program(x)
        except TypeError as error:
            return x, error

    return watched
