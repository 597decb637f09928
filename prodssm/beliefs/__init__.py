"""Gaussian beliefs, affine Gaussian channels, and the linear algebra behind them."""
