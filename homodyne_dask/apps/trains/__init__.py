"""Trains of pulses of the European XFEL."""
