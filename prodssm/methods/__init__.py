"""Ways to find the affine Gaussian channel of a network around a belief, one per file."""
