"""The library measured from outside, on scans of counted photons that this package simulates itself.

    python -m tests.verification                            # lists the rows
    python -m tests.verification rings-0.9 --scans 40       # prints one row of the table
    python -m tests.verification 'loss-*' 5 --jobs 2        # patterns, and numbers of claims
    python -m tests.verification '*' --out measured.json    # all rows, with the numbers of every scan

Public names alone are used; docs/evidence/verification.md is what they gave.
"""
