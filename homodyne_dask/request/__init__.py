"""What is asked of a fit: its options, and the checked request."""
