"""Where existing scripts import the agent from: `dist_classicrl.algorithms.runtime.q_learning_async_dist`."""
