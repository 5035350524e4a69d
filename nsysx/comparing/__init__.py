"""Two sides held against each other, and one side against a budget: from Summaries alone, so that old ones do too."""
