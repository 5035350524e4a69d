"""The probe that ``nsysx run`` puts into a PyTorch program: standard library and torch only, Python 3.9 or newer.

``bootstrap`` waits for torch; ``probe`` arms everything else once torch has been imported. Importing this package alone loads nothing.
"""
