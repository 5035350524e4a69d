"""NSX117: the lines that keep a network and its pictures in channels last, in the program's own words."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from nsysx.events.profile import Profile
from nsysx.events.recorded_settings import RecordedSettings
from nsysx.findings import _converted_inputs, _freezing_pastes

ONCE = [{"class": "Net", "place": "/job/a.py:7"}]


@pytest.mark.parametrize(
    ("text", "inputs", "told"),
    [
        ("y, z = net(images[pick])", ONCE, "y, z = net(images[pick].to(memory_format=torch.channels_last))"),
        ("loss = f(net(x - mean, t), y)", ONCE, "net((x - mean).to(memory_format=torch.channels_last), t)"),
        ("y = net(*batch)", ONCE, None),
        ("y = net(pixel_values=x)", ONCE, None),
        ("y = net(", ONCE, None),  # the statement goes on in the next line
        ("y = net(x)", [*ONCE, {"class": "Net", "place": "/job/a.py:9"}], None),  # called from two lines
        ("y = net(x)", [], None),
    ],
)
def test_the_call_of_the_network_is_told_as_it_is_with_its_input_in_channels_last(
    text: str, inputs: list[dict[str, Any]], told: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (_converted_inputs, _freezing_pastes):
        monkeypatch.setattr(module, "settings_of", lambda _: RecordedSettings({"inputs": inputs}))
        monkeypatch.setattr(module, "texts", lambda _: {"/job/a.py": {"7": text}})
    call = _converted_inputs.call_of_network(cast(Profile, SimpleNamespace()))
    assert (call is None) == (told is None)
    if call is not None:
        assert call.where == {"file": "/job/a.py", "line": 7}
        assert call.paste.startswith("net = net.to(memory_format=torch.channels_last)") and (told or "") in call.paste
