"""What several tables of this room are made from."""
