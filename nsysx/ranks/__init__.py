"""Many reports of one job: read side by side, matched by their collectives, compared."""
