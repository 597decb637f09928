"""Estimators in scikit-learn's conventions, what they return, and their files."""
