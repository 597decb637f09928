"""What forecasts are compared with."""
