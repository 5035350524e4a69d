"""Many reports of one job: read in parallel, matched by their collectives, compared."""
