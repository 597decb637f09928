"""Type-II MAP training: objectives, recipes, initialisation and the training loop."""
