"""Time series in and out: series, data frames, scaling, batching and splitting."""
