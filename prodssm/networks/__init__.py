"""Feed-forward networks with Gaussian weights, and the Hermite expansions of their activations."""
