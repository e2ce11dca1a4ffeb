"""Class methods that make an agent, which an agent itself refuses, and what others call them."""

from __future__ import annotations

from abc import ABCMeta
from functools import wraps
from typing import TYPE_CHECKING, Any

from dist_classicrl._arguments import OF_AGENT, unknown_attribute
from dist_classicrl.errors import SettingsError

if TYPE_CHECKING:
    OfTheClass = classmethod
else:

    class OfTheClass(classmethod):
        """A class method that an instance refuses: there it would seem to change the instance."""

        def __get__(self, instance: Any, owner: type | None = None) -> Any:
            bound = super().__get__(None, owner or type(instance))
            if instance is None:
                return bound

            @wraps(bound)
            def refuse(*_: Any, **__: Any) -> None:
                name, kind = bound.__name__, type(instance).__name__
                raise SettingsError(
                    f"{name}() makes another agent, and this one would stay as it is. Write agent = "
                    f"{kind}.{name}(path); to put values into this one, agent.q_table = "
                    f"{kind}.{name}(path).q_table."
                )

            return refuse


class OtherNames(ABCMeta):
    """The type of a class that says what its methods are called here, where it is asked for another name.

    Classes with abstract methods may inherit from such a class.
    """

    if not TYPE_CHECKING:  # else every name would pass for one of these

        def __getattr__(cls, name: str) -> Any:
            if name in OF_AGENT:
                raise unknown_attribute(cls, name)
            raise AttributeError(f"type object {cls.__name__!r} has no attribute {name!r}")
