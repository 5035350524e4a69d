"""NSX123: numbers that are converted on the CPU, in the words of the line that does it."""

from __future__ import annotations

import pytest

from nsysx.findings._case import Fix
from nsysx.findings._scaled_in_text import converted_later, in_names_of_line


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("return self.frames[window].astype(np.float32) / 255.0", "return self.frames[window]  #"),
        ("batch = np.asarray(frames, np.float32) / 255", "batch = np.asarray(frames)  #"),
        (
            "x = (torch.tensor(obs, dtype=torch.float32) / 255.0).to(device)",
            "x = torch.tensor(obs).to(device)  #",
        ),
        ("a, b = f(p.astype('float32') / 255), g(q.astype('float32') / 255)", "a, b = (f(p), g(q))  #"),
        ("a, b = p.astype('float32') / 255, q.astype('float32') / 127", ""),  # two kinds of numbers
        ("x = p.astype(np.float64) / 255", ""),
        ("x = p.astype(np.float32) / scale", ""),
        ("x = p.astype(np.float32) * 2", ""),
        ("for x in p.astype(np.float32) / 255:", ""),
    ],
)
def test_a_line_is_told_without_its_conversion(text: str, first: str) -> None:
    paste = converted_later(text)
    assert paste.startswith(first) and bool(paste) == bool(first)
    assert not paste or paste.endswith("x = x.float().div_(255)  # on the GPU, before the network takes it")
    fix = in_names_of_line({"a.py": {"3": text}}, "a.py", 3, Fix.by_name("converted-on-gpu"))
    assert fix.paste == (paste or Fix.by_name("converted-on-gpu").paste)
