"""State-space models, and filtering, smoothing, forecasting and simulation with them."""
