"""What a program asks of numbers that follow from sizes, in exports: another size is refused, or right."""

from __future__ import annotations

import io
from collections.abc import Callable

import pytest
import torch
from compare import assert_same
from torch import nn
from torch.export import Dim, ExportedProgram, export

pytestmark = pytest.mark.usefixtures("installed")

ROWS = {0: Dim.DYNAMIC}


def loaded(program: ExportedProgram) -> ExportedProgram:
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    return torch.export.load(file)


FLOATS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "whole": lambda x: torch.ones(int(x.shape[0] * 1.5)) + x.sum(),
    "power": lambda x: torch.full((2,), x.shape[0] ** 0.5) + x.sum(),
    "asked": lambda x: x.sin() if x.shape[0] / 4 > 1.2 else x.cos(),
}


@pytest.mark.parametrize("name", FLOATS)
def test_floats_of_sizes(name: str) -> None:
    program = export(FLOATS[name], (torch.ones(4, 3),), dynamic_shapes=(ROWS,))
    for module in (program.module(), loaded(program).module()):
        assert_same(module(torch.ones(4, 3)), FLOATS[name](torch.ones(4, 3)))
        for rows in (6, 9):
            try:
                got = module(torch.ones(rows, 3))
            except RuntimeError as error:
                assert "Guard failed" in str(error)
            else:
                assert_same(got, FLOATS[name](torch.ones(rows, 3)))


@pytest.mark.parametrize("text", ["int(9 ** 9 ** 9) == L['x'].size()[0]", "math.factorial(9) == 1", "open('x') == 1"])
def test_conditions_of_a_stranger(text: str) -> None:
    from magneto._export import conditions

    with pytest.raises(ValueError, match="condition"):
        conditions.check(text)


def test_a_network_of_as_many_steps_as_the_size_says() -> None:
    torch.manual_seed(0)
    network = nn.GRU(4, 6, batch_first=True)
    program = export(network, (torch.randn(3, 5, 4),), dynamic_shapes=({0: Dim.DYNAMIC, 1: Dim.DYNAMIC},))
    for batch, steps in ((3, 5), (7, 9)):
        x = torch.randn(batch, steps, 4)
        torch.testing.assert_close(program.module()(x), network(x))


def test_a_program_is_saved_after_decompositions() -> None:
    network = nn.Sequential(nn.Linear(4, 4), nn.GELU())
    program = export(network, (torch.randn(3, 4),), dynamic_shapes=(ROWS,)).run_decompositions()
    names = [spec.arg.name for spec in program.graph_signature.input_specs]
    placeholders = [node.name for node in program.graph.nodes if node.op == "placeholder"]
    assert names == placeholders and not any(name.endswith("_1") for name in names[:2])
    for module in (program.module(), loaded(program).module()):
        for rows in (3, 6):
            x = torch.randn(rows, 4)
            torch.testing.assert_close(module(x), network(x))
