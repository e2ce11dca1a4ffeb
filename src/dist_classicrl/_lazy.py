"""What is imported when it is first asked for, so that importing this package is quick."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def lazy_names(
    package: str, homes: Mapping[str, str], instead: Mapping[str, str] | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` (PEP 562) for a package whose public names live in these modules.

    `instead` says what to write in place of names that others have.
    """

    def get(name: str) -> Any:
        if instead and name in instead:
            told = f"{package} has no {name}: {instead[name]}"
            # `from package import name` has importlib ask first, and drops what an AttributeError says.
            if sys._getframe(1).f_code.co_name == "_handle_fromlist":
                raise ImportError(told, name=package)
            raise AttributeError(told)
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(homes[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes})

    return get, names


def after_import(module: str, function: str) -> None:
    """Call ``module:function`` once `module` is imported: now, or at the end of its import."""
    if module in sys.modules:
        _call(function)
    else:
        sys.meta_path.insert(0, _Waiting(module, function))


def _call(path: str) -> None:
    module, _, name = path.partition(":")
    getattr(importlib.import_module(module), name)()


class _Waiting:
    """Stands before the finders of modules until one of them is imported."""

    def __init__(self, module: str, function: str) -> None:
        self.module, self.function = module, function

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != self.module:
            return None
        # Someone may only ask whether it is there: until it is executed this stays where it is.
        others = [finder.find_spec for finder in sys.meta_path if finder is not self]
        spec = next(filter(None, (find(name, path, target) for find in others)), None)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_call(module: Any) -> None:
                execute(module)
                if self in sys.meta_path:
                    sys.meta_path.remove(self)
                    _call(self.function)

            spec.loader.exec_module = execute_and_call  # type: ignore[method-assign]
        return spec
