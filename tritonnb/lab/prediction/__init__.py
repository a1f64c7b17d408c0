"""Predictions with stated uncertainty: twins, their verification, plans of replicas."""
