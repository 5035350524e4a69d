"""What all tests share: property tests try the same examples every time, so that a failure belongs to the change at hand.

``pytest --hypothesis-profile=search`` tries others.
"""

from hypothesis import settings

settings.register_profile("same", derandomize=True)
settings.register_profile("search", derandomize=False)
settings.load_profile("same")
