"""The page on which a store or results are looked into: data, model and residual down to single pairs."""
