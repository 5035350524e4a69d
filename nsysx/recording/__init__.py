"""`nsysx run` and `doctor`: find nsys, record an unmodified command with it, and export the recording."""
