"""Applications: built on fits, and no part of one. Nothing of the core imports them."""
