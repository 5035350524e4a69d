"""`nsysx run` and `doctor`: find nsys, put it around a command that stays as it is, export what it recorded."""
