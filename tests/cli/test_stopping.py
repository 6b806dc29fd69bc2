"""Signals of a verb that ends in an orderly way: the first asks, the second gives up, and afterwards all is as before."""

from __future__ import annotations

import signal

import pytest

from headstone.cli.stopping import signals_heard, soft_stop, terminated_as_interrupted

NUMBERS = (signal.SIGTERM, signal.SIGINT)


@pytest.mark.parametrize("number", NUMBERS)
def test_the_first_signal_asks_and_the_second_gives_up(
    number: signal.Signals, capfd: pytest.CaptureFixture[str]
) -> None:
    before = [signal.getsignal(each) for each in NUMBERS]
    with soft_stop("stopping") as stop:
        assert not stop()
        signal.raise_signal(number)
        assert stop()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
    assert capfd.readouterr().err == "stopping\n"
    assert [signal.getsignal(each) for each in NUMBERS] == before


def test_signals_of_both_kinds_are_counted_together() -> None:
    counts: list[int] = []
    with signals_heard(counts.append):
        for number in NUMBERS:
            signal.raise_signal(number)
    assert counts == [1, 2]


def test_sigterm_ends_a_verb_as_ctrl_c_does() -> None:
    """With what is cleaned up on the way out; afterwards it is as before."""
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), terminated_as_interrupted():
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) == before
