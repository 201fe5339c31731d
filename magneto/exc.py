"""The exceptions that Magneto raises. What a user's own code raises is never wrapped."""

from __future__ import annotations

from collections.abc import Iterable


class MagnetoError(RuntimeError):
    """Base of the errors that are Magneto's own."""


class Unsupported(MagnetoError):
    """Something in the program can't be captured, under `fullgraph=True`."""


class UncapturedHigherOrderOpError(Unsupported):
    """The functions of a torch.cond can't be graphs: their results differ, or they do more than compute tensors."""


class NestedFxTrace(MagnetoError):
    """`torch.fx.symbolic_trace` meets compiled code, under `torch._dynamo.config.error_on_nested_fx_trace`."""


class InvalidName(MagnetoError, ValueError):
    """A name that Magneto does not know. The message lists the valid ones and the nearest.

    `given` is the unknown name, `valid` the known names, `nearest` the closest of them or None.
    """

    def __init__(self, kind: str, name: object, valid: Iterable[str], hint: str = "") -> None:
        self.given = name
        self.valid = sorted(valid)
        self.nearest = nearest(str(name), self.valid)
        guess = f" Did you mean {self.nearest!r}?" if self.nearest else ""
        known = ", ".join(map(repr, self.valid)) or "none"
        super().__init__(f"Unknown {kind} {name!r}.{guess} Valid: {known}.{' ' + hint if hint else ''}")


class InvalidBackend(InvalidName):
    """`backend=` names no known backend."""


class InvalidMode(InvalidName):
    """`mode=` names no known mode."""


class InvalidOption(InvalidName):
    """`options=` holds a key that the backend does not know."""


class InvalidSetting(InvalidName, AttributeError):
    """`magneto.config` has no such setting."""


class InvalidLog(InvalidName, TypeError):
    """`torch._logging.set_logs` is given a name that is no log's."""


class InvalidAttribute(InvalidName, AttributeError):
    """A module of PyTorch's compiler (under `magneto.install()`), or `comptime`, has no such name."""


class InvalidModule(InvalidName, ModuleNotFoundError):
    """Under `magneto.install()`: a module of PyTorch's compiler is imported that Magneto does not serve."""


class NotYet(MagnetoError, NotImplementedError):
    """A name of PyTorch's compiler was used for which Magneto has nothing yet; the message says what to use."""


class InvalidValue(MagnetoError, TypeError):
    """A setting or an argument has a value of a wrong type or out of its range."""


class BackendCompilerFailed(MagnetoError):
    """A backend raised or returned something that can't be called; its own exception is the cause."""

    @property
    def inner_exception(self) -> BaseException | None:
        """What the backend raised."""
        return self.__cause__


BackendFailed = BackendCompilerFailed


class RecompileError(MagnetoError):
    """A recompile happened while `config.error_on_recompile` is on; the message gives the guards that failed."""


class FailOnRecompileLimitHit(MagnetoError):
    """A limit of captures is reached, with `fullgraph=True` or `config.fail_on_recompile_limit_hit`."""


class AccuracyError(MagnetoError):
    """Compiled results are not eager's, found by `repro_level` 4. `minifier_path` is the launcher's."""

    minifier_path: str = ""


class InvalidRecord(MagnetoError, ValueError):
    """A record of a frame (`config.replay_record_enabled`) can't be read or replayed; the message says what to do."""


class InvalidProgram(MagnetoError, ValueError):
    """A file of `torch.export.save` or `magneto.aot_compile` can't be used here; the message says what to do."""


class ConstraintViolation(MagnetoError):
    """A size was marked as dynamic, and the program forces it to one value; the message names the line that does.

    Of torch.export: what the program asks of sizes does not follow from what `dynamic_shapes` says. The message
    suggests what to say.
    """

    @property
    def msg(self) -> str:
        """The message, as PyTorch's error has it."""
        return str(self)


class FailedFallback(MagnetoError):
    """In strict mode: capture failed by our own fault and would have fallen back to CPython."""


def nearest(name: str, valid: Iterable[str]) -> str | None:
    """The valid name that is spelt most like `name`, or None when nothing is close."""
    import difflib  # only on the way to an error message

    folded = {candidate.lower().replace("-", "_"): candidate for candidate in valid}
    close = difflib.get_close_matches(name.lower().replace("-", "_"), folded, n=1, cutoff=0.5)
    return folded[close[0]] if close else None
