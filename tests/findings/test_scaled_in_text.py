"""NSX123: numbers that are converted on the CPU, in the words of the line that does it."""

from __future__ import annotations

import pytest

from nsysx.findings._case import Fix
from nsysx.findings._pieces_in_text import whole_statement
from nsysx.findings._scaled_in_text import _copied_behind, converted_later, in_names_of_line


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


@pytest.mark.parametrize(
    ("behind", "copied"),
    [
        ({7: "return self.upload(obs)"}, (7, "return self.upload(obs)", "")),  # whose lines copy
        ({7: "q = net(obs.to(device))"}, (7, "q = net(obs.to(device)", ")")),
        ({7: "x = torch.from_numpy(obs).cuda()", 8: "y = net(x)"}, (7, "x = torch.from_numpy(obs).cuda()", "")),
        ({7: "q = net(obs)"}, None),  # nothing says that this copies
        ({7: "low = obs.min()", 8: "return self.upload(obs)"}, None),  # read on the CPU, too
        ({7: "return obs.to(device, dtype=torch.bfloat16)"}, None),
    ],
)
def test_what_is_left_is_done_where_the_numbers_are_copied(
    behind: dict[int, str], copied: tuple[int, str, str] | None
) -> None:
    lines = {
        2: "return torch.from_numpy(array).to(self.device)",
        6: "obs = self.obs[at].astype(np.float32) / 255",
        **behind,
    }
    function = dict.fromkeys(lines, "Replay.frames") | {2: "Replay.upload"}
    found = _copied_behind(
        {str(n): text for n, text in lines.items()}, whole_statement(lines[6]), list(behind), function
    )
    assert found == copied
