"""Proper scores, calibration metrics and diagnostics of Gaussian forecasts."""
