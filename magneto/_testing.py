"""What only tests and benchmarks call of the core: graphs, kernels and guards as text, its parts one by one.

In a checkout, not in wheels: src/testing. It is a second module of the file of `magneto._C`, so that it shows the state
of the core that runs.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util

from magneto import _C

_loader = importlib.machinery.ExtensionFileLoader("magneto._testing", _C.__file__)
_spec = importlib.util.spec_from_loader("magneto._testing", _loader)
assert _spec is not None
_module = importlib.util.module_from_spec(_spec)
_loader.exec_module(_module)
globals().update({name: value for name, value in vars(_module).items() if not name.startswith("__")})
