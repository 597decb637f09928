"""Plots of forecasts, states, training curves and calibration."""
