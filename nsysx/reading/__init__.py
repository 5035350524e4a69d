"""A report on disk becomes frames: which tables and columns there are, how they are read, what NCCL notes in them."""
