"""The library measured from outside, by public names, on scans of photons simulated here.

    python -m tests.verification                              # lists the rows of the table
    python -m tests.verification 5 'loss-*' --scans 40        # rows by number of a claim, name or pattern

docs/evidence/verification.md is what they gave.
"""
