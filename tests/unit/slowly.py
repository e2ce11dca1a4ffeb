"""Run a program whose learners take their time, so that what a test does to it comes before its end.

`python slowly.py [--calls N] [--until FILE] [--at-least S] PROGRAM ARGUMENTS`: after N calls of `train` at
full speed each process makes but 50,000 steps per second, as long as there is no FILE, and takes S seconds at
least whenever it learns, however few steps that is.
"""

import argparse
import os
import runpy
import sys
import time

STEPS_PER_SECOND = 50_000


def one_by_one(*arguments):
    """Take the place of `CompiledLearner.learn_apart`, so that rounds call `learn` for each walker."""
    return None


def slow_down(calls=0, until=None, at_least=0.0, steps_per_second=STEPS_PER_SECOND):
    """Slow down the compiled learners of this process."""
    from dist_classicrl import DistAsyncQLearning
    from dist_classicrl.learning.compiled import CompiledLearner

    train, learn, begun = DistAsyncQLearning.train, CompiledLearner.learn, []

    def train_and_count(agent, *arguments, **options):
        begun.append(agent)
        return train(agent, *arguments, **options)

    def learn_slowly(self, walker, stream, steps):
        learn(self, walker, stream, steps)
        if len(begun) > calls and not (until and os.path.exists(until)):
            time.sleep(max(steps / steps_per_second, at_least))

    DistAsyncQLearning.train, CompiledLearner.learn = train_and_count, learn_slowly
    CompiledLearner.learn_apart = one_by_one


def now_and_then(function, pace, share):
    """Return a function that first waits, in that share of its calls, up to 10 ms by `pace`."""

    def slow(*arguments):
        if pace.random() < share:
            time.sleep(0.01 * pace.random())
        return function(*arguments)

    return slow


def slowly(arguments, calls=0, until=None, at_least=0.0):
    """Return the arguments with which Python runs slowly what it would run with `arguments`."""
    options = ["--calls", calls, "--at-least", at_least, *(["--until", until] if until else [])]
    return [__file__, *options, *arguments]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=0)
    parser.add_argument("--until")
    parser.add_argument("--at-least", type=float, default=0.0)
    parser.add_argument("program", nargs=argparse.REMAINDER)
    arguments = parser.parse_args()
    slow_down(arguments.calls, arguments.until, arguments.at_least)
    sys.argv = arguments.program
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
