"""The forward model and its adjoint, on plain tensors."""
