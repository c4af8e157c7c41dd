"""Descent of the gradient of a loss: losses, regularisers, learning rates, and the pass that yields derivatives."""
