"""Beliefs about network weights: one file per covariance structure."""
