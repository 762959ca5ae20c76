"""Pauses between attempts."""

from qimd.client.backoff import Backoff


def test_pauses_double_up_to_the_bound() -> None:
    backoff = Backoff(0.1, 1.0, random=lambda: 1.0)
    assert [round(backoff.next_s(), 3) for _ in range(6)] == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]


def test_jitter_keeps_at_least_half_of_a_pause() -> None:
    assert Backoff(0.1, 1.0, random=lambda: 0.0).next_s() == 0.05


def test_a_success_begins_anew() -> None:
    backoff = Backoff(0.1, 1.0, random=lambda: 1.0)
    backoff.next_s()
    backoff.next_s()
    backoff.reset()
    assert backoff.next_s() == 0.1


def test_a_day_of_failures_stays_at_the_bound() -> None:
    backoff = Backoff(0.1, 10.0, random=lambda: 1.0)
    assert [backoff.next_s() for _ in range(10_000)][-1] == 10.0
