"""The first signal ends a request in good order, a second one at once; what is ignored stays so."""

import os
import signal
from contextlib import nullcontext

import pytest

from recap_cli.signals import ENDING, HANGUP, Interrupted, Interrupts

EACH = pytest.mark.parametrize("signum", ENDING, ids=lambda signum: signum.name)


@EACH
def test_the_first_asks_for_an_end_and_the_second_ends_but_a_terminal_is_closed_once(
    signum: signal.Signals,
) -> None:
    with Interrupts() as interrupts:
        interrupts.graceful = True
        os.kill(os.getpid(), signum)
        assert interrupts.cancel.is_set()
        assert interrupts.signum == signum
        with nullcontext() if signum == HANGUP else pytest.raises(Interrupted):
            os.kill(os.getpid(), signum)


@EACH
def test_one_that_is_ignored_stays_so(signum: signal.Signals) -> None:
    signal.signal(signum, signal.SIG_IGN)
    with Interrupts() as interrupts:
        os.kill(os.getpid(), signum)
        assert not interrupts.cancel.is_set()
    assert signal.getsignal(signum) is signal.SIG_IGN
