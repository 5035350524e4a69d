"""What limits the step, and how far the capture can be trusted."""
