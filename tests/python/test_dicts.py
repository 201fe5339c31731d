"""The version of a dict: another number after each change, whoever makes it."""

import collections
import gc
import sys
import types

import pytest

from magneto import _testing


class Plain:
    pass


KEPT = []  # instances: a dict that outlives its instance has its values to itself


def instance(**attributes):
    made = Plain()
    vars(made).update(attributes)
    return made


def fresh(**attributes):
    """Its values lie in the instance, if those of any dict do."""
    made = Plain()
    for name, value in attributes.items():
        setattr(made, name, value)
    return made


def dict_of(made):
    KEPT.append(made)
    return vars(made)


def often(owner, count):
    """In a loop that CPython has specialised."""
    for i in range(count):
        owner.x = i


CHANGES = {
    "set": lambda d: d.__setitem__("a", 5),
    "add": lambda d: d.__setitem__("c", 5),
    "add a key that is no string": lambda d: d.__setitem__(5, 5),
    "delete": lambda d: d.__delitem__("a"),
    "pop": lambda d: d.pop("a"),
    "popitem": lambda d: d.popitem(),
    "setdefault": lambda d: d.setdefault("c", 5),
    "update": lambda d: d.update(a=5),
    "or": lambda d: d.__ior__({"c": 5}),
    "init": lambda d: d.__init__(a=5),
    "clear": lambda d: d.clear(),
    "clear and fill": lambda d: (d.clear(), d.update({"a": 1, "b": 2})),
    "exec": lambda d: exec("a = 5", {}, d),
    "grow": lambda d: d.update({f"n{i}": i for i in range(100)}),
}
DICTS = {
    "dict": lambda: {"a": 1, "b": 2},
    "OrderedDict": lambda: collections.OrderedDict(a=1, b=2),
    "defaultdict": lambda: collections.defaultdict(int, a=1, b=2),
    "of an instance": lambda: dict_of(instance(a=1, b=2)),
    "in an instance": lambda: dict_of(fresh(a=1, b=2)),
    "of a namespace": lambda: dict_of(types.SimpleNamespace(a=1, b=2)),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("kind", DICTS)
def test_each_change_changes_the_version(kind, change):
    changed, other = DICTS[kind](), {}
    before, apart = _testing.dict_version(changed), _testing.dict_version(other)
    dict(changed), changed.get("a"), list(changed.items())
    assert _testing.dict_version(changed) == before != apart
    CHANGES[change](changed)
    assert _testing.dict_version(changed) not in (before, apart) and _testing.dict_version(other) == apart


@pytest.mark.parametrize("make", [instance, fresh])
def test_attributes_of_an_instance(make):
    made = make(x=1)
    for change in (
        lambda: setattr(made, "x", 2),
        lambda: setattr(made, "y", 2),
        lambda: delattr(made, "y"),
        lambda: often(made, 1),
        lambda: often(made, 1000),
        lambda: often(made, 1),
    ):
        before = _testing.dict_version(vars(made))
        change()
        assert _testing.dict_version(vars(made)) != before


def test_attributes_that_code_was_specialised_for():
    often(fresh(x=1), 1000)
    for made in (fresh(x=1), fresh(x=1, **{f"n{i}": i for i in range(60)})):
        versions = [_testing.dict_version(vars(made))]
        for _ in range(3):
            often(made, 1 + 50 * (len(versions) % 2))
            versions.append(_testing.dict_version(vars(made)))
        assert len(set(versions)) == 4


def assign(value):
    global assigned
    assigned = value


def test_global_variables():
    for _ in range(200):
        before = _testing.dict_version(globals())
        assign(object())
        assert _testing.dict_version(globals()) != before


def test_a_dict_that_outlives_its_instance():
    made = fresh(x=1)
    kept = vars(made)
    before = _testing.dict_version(kept)
    del made
    gc.collect()
    kept["x"] = 2
    assert kept == {"x": 2} and _testing.dict_version(kept) != before


def test_no_version_is_used_again():
    seen = set()
    for i in range(10_000):
        one = {"i": i}  # mostly where the last one was
        for _ in range(2):
            version = _testing.dict_version(one)
            assert version not in seen
            seen.add(version)
            one["i"] = -1


def test_versions_cost_no_references():
    one = {}
    count = sys.getrefcount(one)
    _testing.dict_version(one)
    assert sys.getrefcount(one) == count
