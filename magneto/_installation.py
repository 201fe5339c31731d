"""`magneto.install`: loads what serves torch.compile's names when a program asks for it."""

from __future__ import annotations


def install() -> None:
    """Makes torch.compile and the names around it (torch._dynamo, torch._inductor...) Magneto's, for the process.

    Programs written for torch.compile then run unchanged; PyTorch's compiler is not loaded. See docs/install.md.
    """
    from magneto import _install

    _install.install()


def uninstall() -> None:
    """Takes `install` back; what was compiled meanwhile stays Magneto's."""
    from magneto import _install

    _install.uninstall()
