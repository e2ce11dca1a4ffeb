"""The rounds of a card in plain Python, as what its learners do is compared with."""

import math

import numpy as np

from dist_classicrl._random import GAMMA
from dist_classicrl.learning.card.plan import blocks_of, next_round, of_blocks

WORD = (1 << 64) - 1


def mix(z):
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & WORD
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & WORD
    return z ^ (z >> 31)


def below(bits, n):
    return ((bits & 0xFFFFFFFF) * n) >> 32


def rounds_of(start, steps, shape):
    used = 0
    while used < steps:
        one = next_round(start, used, steps - used, shape)
        yield used, one
        used += one.moving * one.steps


class Twin:
    """Q-learning with epsilon-greedy actions in a model of two actions, in the rounds of a card.

    `model` has two outcomes for each pair; `tables` are its simulator's.
    """

    first_bound = 2.0**20

    def __init__(self, model, tables, settings, shape):
        self.model, self.tables, self.settings, self.shape = model, tables, settings, shape
        states = range(model.n_states)
        self.q, self.known = [[0.0, 0.0] for _ in states], [[0, 0] for _ in states]
        self.state, self.elapsed = [-1] * shape.walkers, [0] * shape.walkers

    def begin(self, random):
        tables = self.tables
        if tables.start_threshold.size == 0:
            return int(tables.start_states[0]) + below(random, int(tables.start_states[1]))
        slot = below(random, tables.start_threshold.size)
        return int(tables.start_states[2 * slot + (random >> 32 > int(tables.start_threshold[slot]))])

    def outcome(self, state, action, random):
        threshold, targets, rewards = self.tables.slot(state * 2 + action)  # two outcomes have one slot
        other = random >> 32 > threshold
        return targets[other] >> 1, rewards[other], bool(targets[other] & 1)

    def step(self, w, counter, q):
        random = mix(counter)
        if self.state[w] < 0:
            self.state[w] = self.begin(mix(~counter & WORD))
        state, row = self.state[w], q[self.state[w]]
        if (random >> 32) * 2.0**-32 < self.settings.epsilon.value or row[0] == row[1]:
            action = below(random, 2)
        else:
            action = int(row[1] > row[0])
        after, reward, terminated = self.outcome(state, action, mix((counter + int(GAMMA)) & WORD))
        target = reward
        if not terminated:
            target += self.settings.discount_factor * max(q[after])
        self.elapsed[w] += 1
        self.state[w] = after
        if terminated or self.elapsed[w] >= self.model.max_episode_steps:
            self.elapsed[w] = 0
            self.state[w] = self.begin(mix((counter + 2 * int(GAMMA)) & WORD))
        return state, action, target

    def learn(self, key, steps):
        for used, one in rounds_of(0, steps, self.shape):
            blocks = blocks_of(one.moving, self.shape)
            sizes = of_blocks(self.settings.learning_rate.table(1), blocks)
            maps = [self.block(block, key, used, one, sizes) for block in range(blocks)]
            for s in range(self.model.n_states):
                for a in range(2):
                    self.merge(s, a, [each[s][a] for each in maps])

    def block(self, block, key, used, one, sizes):
        q = [list(row) for row in self.q]
        maps = [[(0.0, 0.0, 0) for _ in range(2)] for _ in self.q]
        threads = self.shape.threads
        for i in range(one.steps):
            found = {}
            for w in range(block * threads, min(one.moving, (block + 1) * threads)):
                counter = (key + (used + i * one.moving + w) * 3 * int(GAMMA)) & WORD
                state, action, target = self.step(w, counter, q)
                found.setdefault((state, action), []).append(target)
            for (s, a), targets in found.items():
                share, shift, fresh = maps[s][a]
                fresh += len(targets)
                keep, mean = self.towards(targets, sizes[self.known[s][a] + fresh], threads)
                q[s][a] = keep * q[s][a] + (1.0 - keep) * mean
                maps[s][a] = self.share(share, keep), keep * shift + (1.0 - keep) * mean, fresh
        return maps

    def merge(self, s, a, maps):
        weight, targets, count = 1.0, 0.0, 0
        for share, shift, fresh in maps:
            if fresh:
                targets += fresh * (shift / (share if share >= 0.0 else 1.0 + share))
                count, weight = count + fresh, weight * (1.0 - share if share >= 0.0 else -share)
        for _ in range(len(maps).bit_length() - 1):  # the root of the product, by square roots
            weight = math.sqrt(weight)
        if count:
            self.known[s][a] += count
            self.q[s][a] = weight * self.q[s][a] + (1.0 - weight) * (targets / count)

    def share(self, before, keep):
        """Return 1 - W after some more targets, or -W from a half on."""
        if before >= 0.0:
            after, weight = before + (1.0 - keep) * (1.0 - before), (1.0 - before) * keep
        else:
            weight = -before * keep
            after = 1.0 - weight
        return after if after < 0.5 else -max(weight, 2.0**-100)

    def towards(self, targets, alpha, most):
        """Return W and the mean of targets; below 8192 visits each has a step size of its own."""
        keep, base, k = 1.0, 1.0 - float(alpha), len(targets)
        while k:  # by squares, as the card does
            keep, base, k = keep * base if k & 1 else keep, base * base, k >> 1
        scale = 2.0 ** (62 - (most - 1).bit_length()) / self.first_bound
        return keep, sum(int(np.floor(each * scale + 0.5)) for each in targets) / scale / len(targets)


class OneTableTwin(Twin):
    """The same where all learn in one table."""

    first_bound = 2.0**10

    def learn(self, key, steps, start=0):
        """Make steps of a stream that begins with this global step."""
        sizes, walkers = self.settings.learning_rate.table(1), self.shape.walkers
        for used, one in rounds_of(start, steps, self.shape):
            found = {}
            for w in range(one.moving):
                counter = (key + (used + w) * 3 * int(GAMMA)) & WORD
                state, action, target = self.step(w, counter, self.q)
                found.setdefault((state, action), []).append(target)
            for (s, a), targets in found.items():
                self.known[s][a] += len(targets)
                keep, mean = self.towards(targets, sizes[self.known[s][a]], walkers)
                self.q[s][a] = keep * self.q[s][a] + (1.0 - keep) * mean


class RowsTwin(Twin):
    """The same where walkers write to the table, one after the other."""

    def learn(self, key, steps, start=0):
        """Make steps of a stream that begins with this global step."""
        sizes = self.settings.learning_rate.table(1)
        for used, one in rounds_of(start, steps, self.shape):
            for w in range(one.moving):
                for i in range(one.steps):
                    counter = (key + (used + i * one.moving + w) * 3 * int(GAMMA)) & WORD
                    s, a, target = self.step(w, counter, self.q)
                    self.known[s][a] += 1
                    self.q[s][a] += float(sizes[self.known[s][a]]) * (target - self.q[s][a])
