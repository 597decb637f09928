"""A linear model with controls on which every library must agree, in plain NumPy."""

import numpy as np

RNG = np.random.default_rng(3)
A, B, C = np.array([[0.9, 0.2, 0.0], [-0.1, 0.8, 0.1], [0.0, 0.3, 0.7]]), RNG.normal(size=(3, 1)), RNG.normal(size=(2, 3))
Q, R, OFFSET = np.array([0.1, 0.2, 0.05]), np.array([0.3, 0.4]), np.array([0.1, -0.2, 0.3])
MEAN, COV = np.array([0.5, -0.3, 0.1]), np.diag([1.0, 0.5, 0.8]) + 0.1
Y, U = RNG.normal(size=(25, 2)), RNG.normal(size=(25, 1))
