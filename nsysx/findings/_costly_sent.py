"""What ranks send to each other that they need not, or not like that."""

from __future__ import annotations

from nsysx.findings import _sent_copies as sent_copies
from nsysx.findings._case import way
from nsysx.findings._costly_setting import Costly

OF_SENT = (
    Costly(
        "copies sent",
        sent_copies.copies_are_sent,
        "Rows are copied before they are sent",
        way("copied-behind"),
        worth=sent_copies.sent_once,
        seen=sent_copies.copies_are_sent,
        takes=sent_copies.taken,
        oversight=True,
        at=sent_copies.place_of_message,
        worded=sent_copies.in_its_words,
    ),
)
