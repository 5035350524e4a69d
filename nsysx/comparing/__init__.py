"""Two sides compared, and one side held against a budget: from Summaries alone, so that old ones work too."""
