"""What costs hosts on all ranks of a job: loops of the program over tensors. No setting turns them on, and all ranks run them."""

from __future__ import annotations

from nsysx.findings import _looped_parameters as parameters
from nsysx.findings._case import way
from nsysx.findings._costly_setting import Costly

OF_LOOPS = (
    Costly(
        "parameters one by one",
        parameters.updated_one_by_one,
        "Tensors are updated one by one on each rank",
        way("foreach-parameters"),
        worth=parameters.in_one_call,
        seen=parameters.updated_one_by_one,
        takes=parameters.taken,
        oversight=True,
        at=parameters.place_of_loop,
        worded=parameters.worded,
    ),
)
