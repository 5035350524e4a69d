"""nsysx: where the step time of a PyTorch program went, from an Nsight Systems capture."""

__version__ = "0.1.0"
