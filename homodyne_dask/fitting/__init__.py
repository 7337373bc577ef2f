"""A fit from data and model to result: options, initial values, passes, errors."""
