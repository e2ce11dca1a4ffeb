"""Step sizes and exploration rates as functions of the global step, or of the visits to an entry.

`Constant`, `Linear`, `Exponential` and `Piecewise` follow the global step: the number of steps that the whole
run has been given, over all workers and all calls of ``train``. With a `fraction` they last for a share of
the first call of ``train``, however long it is. A learning rate goes on with the transitions of a call of
``learn``. `PerVisit` follows the number of visits to the entry that is updated.
"""

from dist_classicrl.schedules.by_step import Constant, Exponential, Linear, Piecewise
from dist_classicrl.schedules.by_visit import PerVisit

__all__ = ["Constant", "Exponential", "Linear", "PerVisit", "Piecewise"]
