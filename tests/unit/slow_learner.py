"""Q-learning in plain Python, written from the documentation of the kernels and not from their code.

It uses Python's own integers and floats, which are IEEE doubles too: the kernels must give the same bits.
"""

from dist_classicrl.environments.simulate import ModelTables

TWO_64 = 2**64
GOLDEN = 0x9E3779B97F4A7C15


def splitmix(z):
    """Return the finaliser of SplitMix64 (Steele, Lea and Flood, 2014) at the counter `z`."""
    z %= TWO_64
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % TWO_64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % TWO_64
    return z ^ (z >> 31)


def share_of(bits, n):
    """Return a number below `n` from the low 32 of `bits`."""
    return (bits % 2**32) * n >> 32


def visit_slot(visits):
    """Return the slot of a per-visit table: halve until it is below 8192, 4096 slots for each halving."""
    octave = 0
    while visits >= 8192:
        visits //= 2
        octave += 1
    return 4096 * octave + visits


class SlowModel:
    """Samples a model from its alias tables."""

    def __init__(self, tables: ModelTables, n_actions):
        self.tables = tables
        self.n_actions = n_actions

    def begin(self, bits):
        tables = self.tables
        slot = share_of(bits, tables.start_threshold.size)
        second = (bits >> 32) > int(tables.start_threshold[slot])
        return int(tables.start_states[2 * slot + second])

    def advance(self, state, action, bits):
        tables = self.tables
        pair = state * self.n_actions + action
        if tables.first is None:
            slot = pair * tables.width + share_of(bits, tables.width)
        else:
            low, high = int(tables.first[pair]), int(tables.first[pair + 1])
            slot = low + share_of(bits, high - low)
        threshold, targets, rewards = tables.slot(slot)
        second = (bits >> 32) > threshold
        return targets[second] // 2, rewards[second], targets[second] % 2 == 1


class SlowTable:
    """A table whose rows are lists, with the maps that its updates make."""

    def __init__(self, n_states, n_actions, legal=None, q=None, visits=None):
        self.n_actions = n_actions
        self.legal = [[a for a in range(n_actions) if legal is None or legal[s][a]] for s in range(n_states)]
        self.q = (
            [[0.0] * n_actions for _ in range(n_states)]
            if q is None
            else [list(map(float, row)) for row in q]
        )
        self.visits = [0] * (n_states * n_actions) if visits is None else [int(n) for n in visits]
        self.maps = {}  # entry: [weight, shift, visits, replays], in the order of the first touch

    def top(self, state):
        return self.top_of(state, self.legal[state])

    def top_of(self, state, allowed):
        return max((self.q[state][a] for a in allowed), default=0.0)

    def ties(self, state):
        top = self.top(state)
        return [a for a in self.legal[state] if self.q[state][a] == top]

    def step_size(self, table, entry, extra):
        known = self.visits[entry] + self.maps.get(entry, (1.0, 0.0, 0, 0))[2] + extra
        return float(table[visit_slot(max(known, 1))])

    def update(self, entry, target, alpha, replayed=False):
        state, action = divmod(entry, self.n_actions)
        old = self.q[state][action]
        self.q[state][action] = old + alpha * (target - old)
        made = self.maps.setdefault(entry, [1.0, 0.0, 0, 0])
        made[0] *= 1.0 - alpha
        if made[0] <= 1e-290:
            made[0] = 0.0
        made[1] = (1.0 - alpha) * made[1] + alpha * target
        made[3 if replayed else 2] += 1


class SlowReplay:
    """The last `capacity` transitions; a list that is overwritten from the front once it is full."""

    def __init__(self, capacity, ratio):
        self.capacity, self.ratio = capacity, ratio
        self.kept, self.place, self.owed = [], 0, 0.0

    def remember(self, *transition):
        if len(self.kept) < self.capacity:
            self.kept.append(transition)
        else:
            self.kept[self.place] = transition
        self.place = (self.place + 1) % self.capacity
        self.owed += self.ratio

    def replay(self, table, discount, step_sizes, alpha, bits):
        counter = bits
        while self.owed >= 1.0:
            self.owed -= 1.0
            counter += GOLDEN
            entry, reward, next_state, terminated, allowed = self.kept[
                share_of(splitmix(counter), len(self.kept))
            ]
            target = reward if terminated else reward + discount * table.top_of(next_state, allowed)
            rate = alpha if step_sizes is None else table.step_size(step_sizes, entry, 0)
            table.update(entry, target, rate, replayed=True)


class SlowLearner:
    """The twin of `learn_steps`: one environment, episode after episode."""

    def __init__(self, game, table, discount, rates, time_limit=None, replay=None):
        self.game, self.table, self.discount, self.rates = game, table, discount, rates
        self.time_limit, self.replay = time_limit, replay
        self.state, self.elapsed, self.collected = None, 0, 0.0
        self.episodes = self.returns = self.lengths = self.errors = 0.0
        self.actions = []

    def learn(self, key, start, used, steps):
        """Make `steps` steps of stream `key`, which served `used` before and began at global step `start`."""
        table = self.table
        if self.state is None:
            self.state = self.game.begin(splitmix(~(key + 3 * used * GOLDEN)))
        for step in range(used, used + steps):
            counter = key + 3 * step * GOLDEN
            bits = splitmix(counter)
            epsilon, alpha = self.rates(start + step)
            legal = table.legal[self.state]
            ties = table.ties(self.state)
            explore = (bits >> 32) / 2**32 < epsilon
            choices = legal if explore else ties
            action = choices[share_of(bits, len(choices))]
            self.actions.append((self.state, action))
            next_state, reward, terminated = self.game.advance(self.state, action, splitmix(counter + GOLDEN))
            entry = self.state * table.n_actions + action
            step_sizes = None
            if not isinstance(alpha, float):
                step_sizes, alpha = alpha, table.step_size(alpha, entry, 1)
            target = reward if terminated else reward + self.discount * table.top(next_state)
            self.errors += abs(target - table.q[entry // table.n_actions][entry % table.n_actions])
            table.update(entry, target, alpha)
            if self.replay is not None:
                self.replay.remember(entry, reward, next_state, terminated, table.legal[next_state])
                self.replay.replay(table, self.discount, step_sizes, alpha, ~bits)
            self.collected += reward
            self.elapsed += 1
            self.state = next_state
            if terminated or self.elapsed == self.time_limit:
                self.episodes += 1
                self.returns += self.collected
                self.lengths += self.elapsed
                self.collected, self.elapsed = 0.0, 0
                self.state = self.game.begin(splitmix(counter + 2 * GOLDEN))
